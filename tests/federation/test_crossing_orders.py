"""Orders that are on their way while a learner answers them."""

from __future__ import annotations

from pathlib import Path

import pytest

from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from tests.security.lying_controller import Site, study

pytestmark = pytest.mark.slow


def test_an_order_that_crosses_its_answer_is_left_out(tmp_path: Path) -> None:
    """A learner that comes back sends what it owes while the controller gives it its open task again."""
    site = Site(study(), tmp_path)
    plan, model = messages.encode_plan(site.honest, site.key()), site._model(site._vector())
    order = pb.Order(train=pb.Train(task=1, plan=plan, **model))
    assert [head.task for head in site.do(order)] == [1]
    assert site.do(order) == []

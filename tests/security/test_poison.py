"""One learner sends finite numbers that would ruin the model: it is clipped, and the others go on.

On the code before the default limit of movements, each of these runs ends with a model of the liar's numbers, or with
honest updates refused because the merged model would not be finite.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from archipel.federation.wire import federation_pb2 as pb
from tests.federation.hand_made import Act, Liar, run, study

HONEST = 10.0
"""No number of an honest run is as large."""


def poisons(factor: float) -> Act:
    """An update in the direction of an honest one, multiplied by a factor."""

    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        update.numbers[:] = factor * (1 + abs(update.numbers))
        await bad.reply(update.head, update.sign())

    return act


def without_limit() -> dict[str, Any]:
    return {"limits": {"most_movement": False, "most_share": 1.0}}


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e38, -1e30, 1e6])
@pytest.mark.parametrize("method", ["fedavg", "async_fedavg"])
def test_finite_poison_is_clipped(method: str, factor: float, tmp_path: Path) -> None:
    raw = study(algorithms=method, ending={"commits": 12})
    left = run(tmp_path, *[poisons(factor)] * 2, raw=raw)
    assert left.version == 12
    assert left.model.abs().max() < HONEST
    assert torch.isfinite(left.model).all()


@pytest.mark.slow
def test_without_the_limit_the_same_poison_ruins_the_model(tmp_path: Path) -> None:
    raw = study(ending={"commits": 1}, federation=without_limit())
    left = run(tmp_path, poisons(1e6), raw=raw)
    assert left.model.abs().max() > 1e5

"""What a commit adds to a controller's journal grows with its learners, and not with learners times layers."""

from __future__ import annotations

import zlib

from archipel.core.records import Committed
from archipel.federation.storage.durable_controller import CODEC

LEARNERS = 500


def commit(layers: int) -> Committed:
    """As a mean over learners makes one: a learner's weight is the same for every layer."""
    names = tuple(f"hospital-{number}" for number in range(LEARNERS))
    weights = tuple((100.0 + number / 7,) * layers for number in range(LEARNERS))
    tasks, zeros = tuple(range(LEARNERS)), (0,) * LEARNERS
    paths = tuple((name,) for name in names)
    return Committed(1, 1, names, paths, tasks, weights, zeros, zeros, tuple(range(layers)), {"train up": 1})


def test_a_commit_does_not_grow_with_the_layers() -> None:
    """One of 5,000 learners and 62 layers had 2.4 MB."""
    few, many = (CODEC.text(commit(layers)).encode() for layers in (2, 62))
    assert len(many) < 1.05 * len(few)
    assert len(zlib.compress(many)) < 30 * LEARNERS
    assert CODEC.value(many.decode()) == commit(62)

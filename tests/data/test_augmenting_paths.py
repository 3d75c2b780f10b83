"""Augmenting paths are searched lazily, and equal those of a search that lists all learners first."""

from __future__ import annotations

import numpy as np
import pytest

from archipel.data import transport
from archipel.data.array_types import IntArray


def eager_path(start: int, room: IntArray, table: IntArray, spare: IntArray) -> list[tuple[int, int]] | None:
    """Return the first chain of (learner, class it takes) that a breadth-first search over all learners finds."""
    taker: dict[int, int] = {}
    gives: dict[int, int] = {}
    queue = [start]
    for learner in queue:
        for c in np.flatnonzero(room[learner]).tolist():
            if c in taker:
                continue
            taker[c] = learner
            if spare[c] > 0:
                chain = [(learner, c)]
                while chain[-1][0] != start:
                    given = gives[chain[-1][0]]
                    chain.append((taker[given], given))
                return chain
            for other in np.flatnonzero(table[:, c]).tolist():
                if other != start and other not in gives:
                    gives[other] = c
                    queue.append(other)
    return None


@pytest.mark.parametrize("chunk", [1, 3, 1024])
def test_paths_are_those_of_an_eager_search(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CHUNK", chunk)
    lengths = set()
    for seed in range(300):
        draw = np.random.default_rng(seed)
        learners, classes = int(draw.integers(2, 9)), int(draw.integers(2, 7))
        table = draw.integers(0, 3, (learners, classes)) * (draw.random((learners, classes)) < 0.5)
        room = draw.integers(0, 2, (learners, classes)) * (draw.random((learners, classes)) < 0.4)
        spare = draw.integers(0, 2, classes) * (draw.random(classes) < 0.4)
        chain = eager_path(0, room, table, spare)
        before, there = table.copy(), room.copy()
        assert transport.Exchange(table, room, spare).augment(0, 1) is (chain is not None)
        changed = {(int(k), int(c)) for k, c in np.argwhere(table > before)}
        assert changed == set(chain or ())
        assert ((table - before) == (there - room)).all()
        lengths.add(len(chain or ()))
    assert lengths >= {0, 1, 2, 3}

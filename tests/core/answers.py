"""What the learners of a random history say of models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from archipel.core.types import Consistency, Consistent, Evaluate, PooledScore, Result, Scored

LEARNERS = "abcde"


def confusion(right: int, wrong: int) -> Scored:
    return Scored(right + wrong, float(wrong), np.array([[right, wrong], [0, 0]]))


def scored_on(name: str) -> int:
    """Return the examples that a learner has to score models on."""
    return 4 - LEARNERS.index(name)


def pooled(question: Evaluate, sites: Sequence[str], wrong: bool = False) -> PooledScore:
    """What the scores of these sites add up to."""
    count = sum(map(scored_on, sites)) + wrong
    rows = tuple(row for row, site in enumerate(question.sites) if site in sites)
    return PooledScore(rows, confusion(count - count // 3, count // 3))


def opinion(question: Evaluate, site: str) -> Result:
    draw = np.random.default_rng([abs(question.task), *site.encode()])
    if isinstance(question.probe, Consistency):
        return Consistent((float(draw.random()), float(draw.random())))
    right, wrong = draw.integers(0, 5, size=2)
    return confusion(int(right), int(wrong))

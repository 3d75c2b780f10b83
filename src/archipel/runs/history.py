"""Read a run's evaluations, its traffic and how it was scored from its records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from archipel.runs.final_score import finite
from archipel.runs.run_data import RunData

MEGABYTE = 2**20
WORK = ("train", "evaluate")
"""The traffic of a method itself, for training and weighing; scoring for the records does not count."""


class Point(NamedTuple):
    """An evaluation; the score is NaN if it is not finite."""

    seconds: float
    rounds: int
    version: int
    score: float


def history(run: RunData) -> list[Point]:
    """Return the evaluations of a run, by its metric."""
    points = []
    for time, scores in run.scores:
        score = finite(scores.metrics.get(run.metric, math.nan))
        points.append(Point(time, scores.rounds, scores.version, score))
    return points


def moved(traffic: Mapping[str, int], unit: str, *kinds: str) -> int:
    """Return the bytes or models of the kinds of traffic that begin with one of these words."""
    return sum(n for name, n in traffic.items() if name.startswith(kinds) and name.endswith(unit))


def megabytes(traffic: Mapping[str, int], *kinds: str) -> float:
    """Return the megabytes (2^20 bytes) of these kinds of traffic."""
    return moved(traffic, "bytes", *kinds) / MEGABYTE


def scoring(run: RunData) -> str:
    """Describe by what metric, where and how a run was scored."""
    if run.scored_at == "home":
        return f"{run.metric} on the global test set"
    how = {"examples": "pooled", "learners": "averaged"}[run.scored_mean]
    place = {
        "learners": "the learners' own test parts",
        "validation parts": "the learners' validation parts",
        "held-out validation": "the learners held out for validation",
        "held-out test": "the learners held out for the test",
    }[run.scored_at]
    return f"{run.metric} {how} over {place}"

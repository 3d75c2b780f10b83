"""The rounds of a run: which part of the net each of them trained, how well that did, and what it moved."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

from archipel.papers.figure_measures import of_runs
from archipel.papers.finished_runs import FinishedRuns
from archipel.papers.reproduction import Measure
from archipel.report.measures import Spread
from archipel.runs.history import WORK, history, moved
from archipel.runs.run import Run

Kind = Literal["whole", "features", "tuning"]
LATEST = 3
"""Rounds of a kind whose scores are averaged."""


def kinds(run: Run) -> dict[int, Kind]:
    """Return what each version's round trained: the whole network, as in the pre-pass, its first layers or its last."""
    everything = set(range(len(run.layout.layers)))
    return {
        one.version: "whole" if set(one.layers) == everything else "features" if 0 in one.layers else "tuning"
        for _, one in run.commits
    }


def score_after(kind: Kind) -> Measure:
    """Return the score after the last rounds of a kind, in per cent."""

    def find(run: Run) -> float:
        of = kinds(run)
        scores = [100 * point.score for point in history(run) if of.get(point.version) == kind]
        return statistics.fmean(scores[-LATEST:]) if scores else float("nan")

    return of_runs(find)


def bytes_of_rounds(run: Run) -> dict[int, int]:
    """Return what the round of each version moved, both ways."""
    totals = [0, *(moved(one.traffic, "bytes", *WORK) for _, one in run.commits)]
    return {
        one.version: after - before for (_, one), (before, after) in zip(run.commits, pairwise(totals), strict=True)
    }


def bytes_beside(other: str, *, rounds: int | None = None, divided: bool = False) -> Measure:
    """Return what was moved in per cent of what the other method's same rounds moved, run by run.

    rounds: the first so many alone; divided: only rounds that train a part of the net, so without the pre-pass.
    """

    def measure(evidence: FinishedRuns, part: str, method: str) -> Spread:
        theirs = {run.seed: bytes_of_rounds(run) for run in evidence.runs(part, other)}
        return Spread.of(_share(run, theirs[run.seed], rounds, divided) for run in evidence.runs(part, method))

    return measure


def _share(run: Run, theirs: Mapping[int, int], rounds: int | None, divided: bool) -> float:
    of, mine = kinds(run), bytes_of_rounds(run)
    counted = [
        version
        for version in mine
        if version in theirs and (rounds is None or version <= rounds) and not (divided and of[version] == "whole")
    ]
    return 100 * sum(mine[v] for v in counted) / sum(theirs[v] for v in counted) if counted else float("nan")

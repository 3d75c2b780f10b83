"""How a figure of a table is taken from the runs of a method. Scores are in per cent, as the papers print them."""

from __future__ import annotations

import math
from collections.abc import Callable

from archipel.papers.evidence import Evidence
from archipel.papers.records import Measure
from archipel.report.measures import SLACK, Measured, Spread, history, mean, measured, scores_of, tail
from archipel.runs.run import Run


def scaled(spread: Spread, factor: float) -> Spread:
    return Spread(spread.mean * factor, spread.deviation * factor, spread.n)


def compared(evidence: Evidence, part: str, method: str) -> Measured:
    """The report's own measures of a method."""
    return measured(method, evidence.runs(part, method), evidence.marks(part))


def score(name: str = "last") -> Measure:
    """A score of the report in per cent: last (the mean of each run's last five), best, at_seconds, at_rounds."""
    return lambda evidence, part, method: scaled(compared(evidence, part, method)[name], 100)


def score_by_seconds() -> Measure:
    """The mean of each run's last five scores by the time that the study names (`report.seconds`), in per cent."""

    def measure(evidence: Evidence, part: str, method: str) -> Spread:
        by = evidence.marks(part).seconds.value * (1 + SLACK)
        found = (last_five(run, seconds=by) for run in evidence.runs(part, method))
        return scaled(Spread.of(found), 100)

    return measure


def score_by_rounds(rounds: int) -> Measure:
    """The mean of each run's last five scores by that local round, in per cent."""
    return of_runs(lambda run: 100 * last_five(run, rounds=rounds))


def amount(name: str, factor: float = 1.0) -> Measure:
    """Another measure of the report: target_rounds, target_commits, target_megabytes, up, down, models, commits …"""
    return lambda evidence, part, method: scaled(compared(evidence, part, method)[name], factor)


def of_runs(find: Callable[[Run], float]) -> Measure:
    """A figure of one's own, of each run."""
    return lambda evidence, part, method: Spread.of(find(run) for run in evidence.runs(part, method))


def last_five(run: Run, *, seconds: float = math.inf, rounds: float = math.inf) -> float:
    """The mean of the last five scores by that time and that local round."""
    return mean(scores_of(tail([at for at in history(run) if at.seconds <= seconds and at.rounds <= rounds])))


def paired(evidence: Evidence, part: str, method: str, other: str, share: float = 1.0) -> list[tuple[float, float]]:
    """The scores of two methods in their runs of the same seed and the same held-out learners."""

    def scores(one: str) -> dict[object, float]:
        return {(run.seed, run.fold): last_five(run, rounds=share * run.rounds) for run in evidence.runs(part, one)}

    mine, theirs = scores(method), scores(other)
    return [(mine[key], theirs[key]) for key in sorted(mine.keys() & theirs.keys(), key=str)]


def gain_over(other: str, share: float = 1.0) -> Measure:
    """By how many per cent of the other method's score ours is above it, run by run, at a share of the local rounds."""
    return lambda evidence, part, method: Spread.of(
        100 * (mine - theirs) / theirs for mine, theirs in paired(evidence, part, method, other, share)
    )

"""Compute the figures of a table from the runs of a method. Scores are in per cent, as the papers print them."""

from __future__ import annotations

from collections.abc import Callable

from archipel.papers.finished_runs import FinishedRuns
from archipel.papers.reproduction import Measure
from archipel.report.measures import Measured, Spread, measured
from archipel.runs.final_score import final_score
from archipel.runs.run import Run


def scaled(spread: Spread, factor: float) -> Spread:
    return Spread(spread.mean * factor, spread.deviation * factor, spread.n)


def compared(evidence: FinishedRuns, part: str, method: str) -> Measured:
    """Return the report's measures of a method."""
    return measured(method, evidence.runs(part, method), evidence.marks(part))


def score(name: str = "final") -> Measure:
    """Return a score of the report in per cent: final, last, validated, best, at_seconds, at_rounds."""
    return lambda evidence, part, method: scaled(compared(evidence, part, method)[name], 100)


def score_by_seconds() -> Measure:
    """Return the final score of runs cut at the time that the study names (`report.seconds`), in per cent."""

    def measure(evidence: FinishedRuns, part: str, method: str) -> Spread:
        by = evidence.marks(part).seconds.value
        found = (final_score(run, "seconds", by) for run in evidence.runs(part, method))
        return scaled(Spread.of(found), 100)

    return measure


def score_by_rounds(rounds: int) -> Measure:
    """Return the final score of runs cut at a local round, in per cent."""
    return of_runs(lambda run: 100 * final_score(run, "rounds", rounds))


def amount(name: str, factor: float = 1.0) -> Measure:
    """Return another measure of the report, such as target_rounds, target_megabytes, up, models or commits."""
    return lambda evidence, part, method: scaled(compared(evidence, part, method)[name], factor)


def of_runs(find: Callable[[Run], float]) -> Measure:
    """Return a figure that a function computes from each run."""
    return lambda evidence, part, method: Spread.of(find(run) for run in evidence.runs(part, method))


def final(run: Run) -> float:
    return run.final_score


def at_share(share: float) -> Callable[[Run], float]:
    """Return the final score of a run cut at a share of its local rounds."""
    return lambda run: final_score(run, "rounds", share * run.rounds)


def paired(
    evidence: FinishedRuns, part: str, method: str, other: str, find: Callable[[Run], float] = final
) -> list[tuple[float, float]]:
    """Return the scores of two methods in runs of the same seed and the same held-out learners."""
    mine, theirs = ({(run.seed, run.fold): find(run) for run in evidence.runs(part, one)} for one in (method, other))
    return [(mine[key], theirs[key]) for key in sorted(mine.keys() & theirs.keys(), key=str)]


def gain_over(other: str, find: Callable[[Run], float] = final) -> Measure:
    """Return the lead over another method in per cent of its score, run by run."""
    return lambda evidence, part, method: Spread.of(
        100 * (mine - theirs) / theirs for mine, theirs in paired(evidence, part, method, other, find)
    )

"""Measure methods over their runs: scores, what reaching a target took, and what whole runs took.

Methods are compared at equal seconds, equal local rounds or an equal score, never at equal aggregations. The target
columns are Fed2A's indicators (section 4.1): I1 is the final score, I2 what it took to reach the target, I3 the bytes
until then.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from archipel.core.checks import at_least, more_than, require
from archipel.core.metrics import higher_is_better
from archipel.runs.final_score import STRETCH, final_stretch
from archipel.runs.grouping import groups
from archipel.runs.history import WORK, Point, history, megabytes, moved, scoring
from archipel.runs.run import Run

SLACK = 1e-9
"""Relative tolerance: virtual times are sums of floats, and 12.8 must not come after 12.799999999999999."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A number over the n runs of a method that have it."""

    mean: float
    deviation: float
    """Of the sample; NaN for fewer than two."""
    n: int

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        kept = [float(value) for value in values if math.isfinite(value)]
        return Spread(mean(kept), statistics.stdev(kept) if len(kept) > 1 else math.nan, len(kept))


@dataclass(frozen=True, slots=True)
class Mark:
    """A place at which methods are compared, and how it was chosen."""

    value: float
    why: str


@dataclass(frozen=True, slots=True)
class Marks:
    seconds: Mark
    rounds: Mark
    targets: Mapping[str, Mark]
    """By metric."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A method, measured over its runs: one for each seed and fold."""

    method: str
    runs: int
    seeds: tuple[int, ...]
    folds: tuple[int, ...]
    """None where it was not cross-validated."""
    metric: str
    scoring: str
    """What was scored, where and how, in words: methods with the same words were scored alike."""
    stretch: str
    """The stretch that the final scores are the mean over, in words."""
    target: float
    final: Spread
    swing: Spread
    """The range of the scores that the final one is the mean of."""
    last: Spread
    """The last version's score."""
    validated: Spread
    """The test score of the version that the validation learners score best."""
    best: Spread
    at_seconds: Spread
    at_rounds: Spread
    target_seconds: Spread
    """Seconds to the target; n is the number of runs that reached it."""
    target_rounds: Spread
    target_commits: Spread
    target_megabytes: Spread
    total: Spread
    up: Spread
    down: Spread
    weighing: Spread
    models: Spread
    commits: Spread
    rounds: Spread
    seconds: Spread
    staleness: Spread

    def __getitem__(self, column: str) -> Spread:
        """Return a measure by its column's name."""
        spread = getattr(self, column)
        assert isinstance(spread, Spread), column
        return spread


@dataclass(frozen=True, slots=True)
class MeasureColumn:
    """A measure as tables show it."""

    name: str
    """The field of Measured."""
    head: str
    """Its heading; {seconds} and {rounds} are the marks."""
    unit: str
    table: Literal["scores", "target", "traffic", "course"]
    better: Literal["score", "less", "neither"]
    """Which way is better: as for the score itself, less, or neither by itself."""


COLUMNS = (
    MeasureColumn("final", "final", "", "scores", "score"),
    MeasureColumn("swing", "swing", "", "scores", "neither"),
    MeasureColumn("last", "last version", "", "scores", "score"),
    MeasureColumn("validated", "at best validation", "", "scores", "score"),
    MeasureColumn("best", "best", "", "scores", "score"),
    MeasureColumn("at_seconds", "at {seconds} s", "", "scores", "score"),
    MeasureColumn("at_rounds", "at {rounds} rounds", "", "scores", "score"),
    MeasureColumn("target_seconds", "seconds", "s", "target", "less"),
    MeasureColumn("target_rounds", "local rounds", "", "target", "less"),
    MeasureColumn("target_commits", "commits", "", "target", "less"),
    MeasureColumn("target_megabytes", "MB", "MB", "target", "less"),
    MeasureColumn("total", "MB in all", "MB", "traffic", "neither"),
    MeasureColumn("up", "MB up", "MB", "traffic", "neither"),
    MeasureColumn("down", "MB down", "MB", "traffic", "neither"),
    MeasureColumn("weighing", "MB for weighing", "MB", "traffic", "neither"),
    MeasureColumn("models", "models moved", "", "traffic", "neither"),
    MeasureColumn("commits", "commits", "", "course", "neither"),
    MeasureColumn("rounds", "local rounds", "", "course", "neither"),
    MeasureColumn("seconds", "seconds", "s", "course", "neither"),
    MeasureColumn("staleness", "staleness", "versions", "course", "neither"),
)


# -------------------------------------------------------------------------------------------------------- one run


def mean(scores: Sequence[float]) -> float:
    return statistics.fmean(scores) if scores else math.nan


def scores_of(points: Iterable[Point]) -> list[float]:
    return [point.score for point in points]


def swing(run: Run) -> float:
    """Return the range of the scores that the final one is the mean of; NaN if one of them is."""
    scores = [share.score for share in final_stretch(run)]
    return math.nan if math.isnan(mean(scores)) else max(scores) - min(scores)


def latest(points: Iterable[Point], by: Callable[[Point], bool]) -> float:
    """Return the last score for which a condition holds."""
    return next((point.score for point in reversed(list(points)) if by(point)), math.nan)


def best_of(metric: str, scores: Iterable[float]) -> float:
    pick = max if higher_is_better(metric) else min
    return pick((score for score in scores if not math.isnan(score)), default=math.nan)


def reached(run: Run, points: Iterable[Point], target: float) -> Point | None:
    """Return the first evaluation that meets the target."""
    if higher_is_better(run.metric):
        return next((point for point in points if point.score >= target), None)
    return next((point for point in points if point.score <= target), None)


# ----------------------------------------------------------------------------------------------------------- marks

ASKED = "as asked"


def marks(
    runs: Sequence[Run], *, target: float | None = None, seconds: float | None = None, rounds: int | None = None
) -> Marks:
    """Return where these runs are compared: as asked, or where all of them have results."""
    require(bool(runs), "report: there are no runs to compare.")
    if seconds is not None:
        more_than(0, "report", seconds=seconds)
    if rounds is not None:
        at_least(1, "report", rounds=rounds)
    methods = groups(runs)
    metrics = list(dict.fromkeys(run.metric for run in runs))
    if target is not None:
        require(math.isfinite(target), f"report: target should be a number, got {target!r}.")
        require(
            len(metrics) == 1,
            f"report: the target {target!r} would hold for {' and '.join(metrics)}; report runs of one metric, or give "
            "no target.",
        )
        targets = {metrics[0]: Mark(target, ASKED)}
    else:
        targets = {
            metric: chosen_target(metric, [mine for mine in methods.values() if mine[0].metric == metric])
            for metric in metrics
        }
    return Marks(
        Mark(seconds, ASKED) if seconds else Mark(min(run.seconds for run in runs), "where the shortest run ends"),
        Mark(rounds, ASKED) if rounds else Mark(min(run.rounds for run in runs), "where the run of fewest rounds ends"),
        targets,
    )


def chosen_target(metric: str, methods: Sequence[Sequence[Run]]) -> Mark:
    """Return a round number that at least half of the methods reach, by the mean of their runs' best scores."""
    higher = higher_is_better(metric)
    means = [Spread.of(best_of(metric, scores_of(history(run))) for run in runs).mean for runs in methods]
    ranked = sorted((one for one in means if not math.isnan(one)), reverse=higher)
    if not ranked:
        return Mark(math.nan, "there are no scores to choose it from")
    middle = ranked[(len(ranked) - 1) // 2]
    if higher:
        return Mark(
            round(math.floor(middle / 0.05 + SLACK) * 0.05, 2),
            "the largest multiple of 0.05 that at least half of the methods reach",
        )
    places = 1 - math.floor(math.log10(abs(middle))) if middle else 0
    return Mark(
        round(math.ceil(middle * 10**places - SLACK) / 10**places, places),
        "the smallest number of two significant digits that at least half of the methods reach",
    )


# ---------------------------------------------------------------------------------------------------- over the runs


def measure(runs: Sequence[Run], at: Marks) -> list[Measured]:
    """Return every method's measures, in the order in which the methods first appear."""
    return [measured(method, mine, at) for method, mine in groups(runs).items()]


def measured(method: str, runs: Sequence[Run], at: Marks) -> Measured:
    check_one_method(method, runs)
    metric = runs[0].metric
    target = at.targets[metric].value
    histories = [history(run) for run in runs]
    arrivals = [reached(run, points, target) for run, points in zip(runs, histories, strict=True)]
    there = [(run, point) for run, point in zip(runs, arrivals, strict=True) if point is not None]
    by_then = at.seconds.value * (1 + SLACK)
    return Measured(
        method=method,
        runs=len(runs),
        seeds=tuple(sorted({run.seed for run in runs})),
        folds=tuple(sorted({run.fold for run in runs if run.fold is not None})),
        metric=metric,
        scoring=scoring(runs[0]),
        stretch=STRETCH[runs[0].budget],
        target=target,
        final=Spread.of(run.final_score for run in runs),
        swing=Spread.of(map(swing, runs)),
        last=Spread.of(run.score for run in runs),
        validated=Spread.of(run.validated_score for run in runs),
        best=Spread.of(best_of(metric, scores_of(points)) for points in histories),
        at_seconds=Spread.of(latest(points, lambda point: point.seconds <= by_then) for points in histories),
        at_rounds=Spread.of(latest(points, lambda point: point.rounds <= at.rounds.value) for points in histories),
        target_seconds=Spread.of(point.seconds for _, point in there),
        target_rounds=Spread.of(point.rounds for _, point in there),
        target_commits=Spread.of(point.version for _, point in there),
        target_megabytes=Spread.of(megabytes(traffic_by(run, point.version), *WORK) for run, point in there),
        total=Spread.of(megabytes(run.traffic, *WORK) for run in runs),
        up=Spread.of(megabytes(run.traffic, "train up") for run in runs),
        down=Spread.of(megabytes(run.traffic, "train down") for run in runs),
        weighing=Spread.of(megabytes(run.traffic, "evaluate") for run in runs),
        models=Spread.of(moved(run.traffic, "models", *WORK) for run in runs),
        commits=Spread.of(len(run.commits) for run in runs),
        rounds=Spread.of(run.rounds for run in runs),
        seconds=Spread.of(run.seconds for run in runs),
        staleness=Spread.of(map(mean_staleness, runs)),
    )


def check_one_method(method: str, runs: Sequence[Run]) -> None:
    """Refuse runs of one name that are not repetitions of each other: they must not be averaged."""
    for what, values in (
        ("were scored differently", {f"{scoring(run)}, over {STRETCH[run.budget]}" for run in runs}),
        # tuning may choose otherwise for each, and is part of the method then
        ("are different algorithms", {run.algorithm for run in runs if not run.tuned}),
    ):
        require(
            len(values) <= 1,
            f"report: the runs named {method!r} {what}: {'; '.join(sorted(values))}. Report them apart, or give each "
            'its own "name" in its run.json.',
        )


def traffic_by(run: Run, version: int) -> Mapping[str, int]:
    """Return what was moved by the commit of a version; nothing for the initial model."""
    return next((commit.traffic for _, commit in run.commits if commit.version == version), {})


def mean_staleness(run: Run) -> float:
    """Return the mean number of versions that passed while an update was made."""
    return mean([versions for _, commit in run.commits for versions in commit.stale_versions])


def ahead(methods: Sequence[Measured], column: MeasureColumn) -> Measured | None:
    """Return the method that is better than every other by more than one deviation of either, if there is one.

    Only methods whose every run has the number compete. No method is ahead if one has a single run, which has no
    deviation, or if methods were scored differently.
    """
    alike = {(one.scoring, one.stretch if column.name == "final" else "") for one in methods}
    if column.better == "neither" or len(methods) < 2 or len(alike) > 1:
        return None
    lower = column.better == "less" or not higher_is_better(methods[0].metric)
    able = [one for one in methods if one[column.name].n == one.runs]
    if not able or any(one[column.name].n < 2 for one in able):
        return None
    first, *others = sorted(able, key=lambda one: one[column.name].mean * (1 if lower else -1))
    mine = first[column.name]
    clear = all(
        abs(theirs.mean - mine.mean) > max(theirs.deviation, mine.deviation)
        for theirs in (other[column.name] for other in others)
    )
    return first if clear else None


# ------------------------------------------------------------------------------------------------------ as text


def number(value: float) -> str:
    """Return a mark in few digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def decimals(column: MeasureColumn, methods: Sequence[Measured]) -> int:
    """Return how many decimals a column needs: three digits of the largest score, two of the smallest other number."""
    spreads = [one[column.name] for one in methods if one[column.name].n]
    means = [abs(spread.mean) for spread in spreads if spread.mean] or [1.0]
    if column.table == "scores":
        return max(3, 2 - math.floor(math.log10(max(means))))
    if all(spread.mean.is_integer() and not spread.deviation > 0 for spread in spreads):
        return 0
    return min(3, max(1, 1 - math.floor(math.log10(min(means)))))


def shown(spread: Spread, places: int) -> tuple[str, str]:
    """Return mean and deviation as text; empty where there is none."""
    mean, deviation = ("" if math.isnan(value) else f"{value:,.{places}f}" for value in (spread.mean, spread.deviation))
    return mean, deviation


def plain(measured: Measured) -> dict[str, object]:
    """Return the measures as JSON data, NaN as None."""
    told: dict[str, object] = {}
    for one in fields(measured):
        value = getattr(measured, one.name)
        if isinstance(value, Spread):
            told[one.name] = {"mean": real(value.mean), "deviation": real(value.deviation), "n": value.n}
        else:
            told[one.name] = real(value) if isinstance(value, float) else value
    return told


def real(value: float) -> float | None:
    """Return the value, None for NaN."""
    return None if math.isnan(value) else value

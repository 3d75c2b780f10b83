"""Draw when learners were at work and when idle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low
from typing import TYPE_CHECKING, NamedTuple

from archipel.core.records import Handed, Probed, Refused, Returned
from archipel.drawing.colours import INK, NOTHING
from archipel.drawing.drawing import Drawing
from archipel.drawing.style import TIME, legend_below, look, panels, title
from archipel.report.sample import first_runs, group_colours, group_patches, note, sampled, training
from archipel.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TASKS = 3
"""The window is this many times the longest task of the median method."""
BARS = 60
"""Up to this many tasks of a learner are separated by white lines."""
EVALUATED = "evaluated"
"""Outcome of the evaluation of others' models."""


class TaskBar(NamedTuple):
    """A stretch of a learner's work."""

    start: float
    stop: float
    outcome: str


@look()
def gantt(runs: Sequence[Run]) -> Drawing | None:
    """Draw when each learner was at work, and when the model changed."""
    shown = first_runs(runs, lambda run: run.of(Handed))
    if not shown:
        return None
    colours = group_colours(runs)
    end = window(list(shown.values()))
    cast = {method: sampled(run) for method, run in shown.items()}
    longest = max(len(one.name) for learners in cast.values() for one in learners)
    height = 0.17 * max(map(len, cast.values())) + 0.95
    figure, axes = panels(len(shown), height, across=2, longest=longest, sharex=True)
    rows: list[tuple[object, ...]] = []
    for panel, (method, run) in zip(axes, shown.items(), strict=True):
        work = work_of(run, end)
        commits = [time for time, _ in run.commits if time <= end]
        panel.vlines(commits, -1.5, -0.8, color=INK, linewidth=0.8)
        for place, one in enumerate(cast[method]):
            draw_row(panel, place, work.get(one.name, []), min(end, run.seconds), colours[one.group])
            rows += [(method, run.seed, one.name, one.group, *task) for task in work.get(one.name, [])]
        rows += [(method, run.seed, "", "", time, time, "commit") for time in commits]
        panel.set_ylim(len(cast[method]) - 0.4, -1.6)
        panel.set_yticks(range(len(cast[method])), [one.name for one in cast[method]])
        panel.grid(visible=False, axis="y")
        panel.set_xlim(0, end)
        panel.tick_params(labelbottom=True)
        panel.set_ylabel("learner")
        panel.set_xlabel(TIME)
        title(panel, f"{method}: {share_at_work(run, end):.0%} at work")
    legend = {**colours, **({"evaluating": INK} if any(row[-1] == EVALUATED for row in rows) else {}), "idle": NOTHING}
    legend_below(figure, group_patches(legend), list(legend))
    return Drawing(
        "gantt",
        "Learners at work",
        "Tasks of learners from hand-out to return, transfers included, pale if the update was not applied; the ticks "
        "above are commits, and in the title is the share of all learners' time, as far as it is shown, that they were "
        "at work. The dark line is the evaluation of others' models, beside training; federations do not record it."
        + note(runs, shown),
        figure,
        ("method", "seed", "learner", "group", "from (s)", "to (s)", "outcome"),
        tuple(rows),
    )


def draw_row(axes: Axes, place: int, work: Sequence[TaskBar], end: float, colour: str) -> None:
    """Draw a learner's row: its tasks as bars, evaluations as a line below them."""
    axes.broken_barh([(0, end)], (place - 0.38, 0.76), color=NOTHING, linewidth=0)
    trained = [bar for bar in work if bar.outcome != EVALUATED]
    for fades, alpha in ((False, 1.0), (True, 0.35)):
        axes.broken_barh(
            [(bar.start, bar.stop - bar.start) for bar in trained if (bar.outcome == "not applied") == fades],
            (place - 0.38, 0.76),
            facecolor=colour,
            alpha=alpha,
            edgecolor="white",
            linewidth=0.5 if len(trained) <= BARS else 0,
        )
    evaluated = [(bar.start, bar.stop - bar.start) for bar in work if bar.outcome == EVALUATED]
    axes.broken_barh(evaluated, (place + 0.2, 0.18), facecolor=INK, linewidth=0)


def window(runs: Sequence[Run]) -> float:
    """Return the time shown, the same for all methods."""
    longest = [max(task.stop - task.start for own in tasks(run).values() for task in own) for run in runs]
    end = min(TASKS * median_low(longest), max(run.seconds for run in runs))
    return end or 1.0  # tasks of a fleet may take no time at all


def share_at_work(run: Run, end: float) -> float:
    """Return the share of the time of all who train that they were at work, up to that time or the run's end."""
    work = work_of(run, end)
    busy = sum(busy_seconds(work.get(one.name, [])) for one in training(run))
    whole = min(end, run.seconds) * len(training(run))
    return busy / whole if whole else 0.0


def busy_seconds(work: Sequence[TaskBar]) -> float:
    """Return how long a learner did at least one thing."""
    busy, until = 0.0, 0.0
    for bar in sorted(work):
        busy += max(0.0, bar.stop - max(bar.start, until))
        until = max(until, bar.stop)
    return busy


def work_of(run: Run, end: float) -> dict[str, list[TaskBar]]:
    """Return each learner's tasks and evaluations up to that time."""
    found = tasks(run, end)
    for start, probed in run.of(Probed):
        for name, seconds in zip(probed.evaluators, probed.seconds, strict=True):
            if start < end:
                found.setdefault(name, []).append(TaskBar(start, min(start + seconds, end, run.seconds), EVALUATED))
    return found


def tasks(run: Run, end: float = math.inf) -> dict[str, list[TaskBar]]:
    """Return each learner's tasks up to that time; one that was still out at the run's end goes on until then."""
    ends: dict[int, tuple[float, str]] = {}
    for stamped in run.records:
        record = stamped.record
        if isinstance(record, Returned):
            ends.setdefault(record.task, (stamped.time, "returned"))
        elif isinstance(record, Refused):
            # an update that was refused later ended when it came back
            stop, _ = ends.get(record.task, (stamped.time, ""))
            ends[record.task] = (stop, "not applied")
    found: dict[str, list[TaskBar]] = {}
    for start, handed in run.of(Handed):
        stop, outcome = ends.get(handed.task, (run.seconds, "still out"))
        if start < end:
            found.setdefault(handed.learner, []).append(TaskBar(start, min(stop, end), outcome))
    return found

"""Draw validation cycles: how long learners train before they ask for a new model (Metis fig. 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low
from typing import TYPE_CHECKING

import numpy as np

from archipel.core.records import Handed, Returned
from archipel.drawing.colours import INK
from archipel.drawing.drawing import Drawing
from archipel.drawing.style import TIME, legend_below, look, panels, title
from archipel.report.sample import first_runs, group_colours, note, training
from archipel.runs.run import Run
from archipel.runs.run_data import Participant

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

CYCLES = 25
"""Number of a learner's first cycles that are shown: Metis recalls from the 20th on."""


@look()
def validation_cycles(runs: Sequence[Run]) -> Drawing | None:
    """Draw the validation loss along the first cycles of one learner of each group."""
    shown = first_runs(runs, cycles)
    if not shown:
        return None
    colours = group_colours(runs)
    rows: list[tuple[object, ...]] = []
    picked = [(method, run, one) for method, run in shown.items() for one in typical(run)]
    figure, axes = panels(len(picked), 2.5, across=2)
    for panel, (method, run, one) in zip(axes, picked, strict=True):
        for number, (start, stop, told) in enumerate(cycles(run)[one.name][:CYCLES], start=1):
            times = np.linspace(start, stop, len(told.losses)).tolist()
            draw_cycle(panel, times, told, colours[one.group])
            rows += [
                (method, run.seed, one.name, one.group, number, epoch, time, loss, int(told.recalled))
                for epoch, (time, loss) in enumerate(zip(times, told.losses, strict=True))
            ]
        panel.set_xlim(left=0)
        panel.set_xlabel(TIME)
        panel.set_ylabel("validation loss")
        title(panel, f"{method}: learner {one.name} ({one.group})")
    legend_below(figure, marks(), ["new model received", "after each epoch", "recalled as too stale"])
    return Drawing(
        "validation-cycles",
        "Validation cycles",
        f"The loss on a learner's own validation part, before its first epoch and after each, over its first {CYCLES} "
        "cycles (Metis fig. 3): for each group of a fleet the learner whose cycles take the median time. Epochs are "
        "spread evenly between hand-out and return." + note(runs, shown, samples=False),
        figure,
        ("method", "seed", "learner", "group", "cycle", "epoch", TIME, "validation loss", "recalled (1: yes)"),
        tuple(rows),
    )


def cycles(run: Run) -> dict[str, list[tuple[float, float, Returned]]]:
    """Return (start, end, record) of each learner's tasks that report losses."""
    start = {handed.task: time for time, handed in run.of(Handed)}
    found: dict[str, list[tuple[float, float, Returned]]] = {}
    for stop, told in run.cycles:
        if any(map(math.isfinite, told.losses)):
            found.setdefault(told.learner, []).append((start[told.task], stop, told))
    return found


def typical(run: Run) -> list[Participant]:
    """Return for each group the learner whose mean cycle is the median one."""
    found = cycles(run)
    mean = {name: (own[-1][1] - own[0][0]) / len(own) for name, own in found.items()}
    there: dict[str, list[Participant]] = {}
    for one in training(run):
        if one.name in found:
            there.setdefault(one.group, []).append(one)
    middle = {group: median_low(mean[one.name] for one in members) for group, members in there.items()}
    return [next(one for one in members if mean[one.name] == middle[group]) for group, members in there.items()]


def draw_cycle(axes: Axes, times: Sequence[float], told: Returned, colour: str) -> None:
    axes.plot(times, told.losses, color=colour, marker=".", markersize=4, linewidth=1.2)
    axes.plot(times[0], told.losses[0], marker="v", color=INK, markersize=4)
    if told.recalled:
        axes.plot(times[-1], told.losses[-1], marker="o", color=colour, markerfacecolor="white", markersize=5)


def marks() -> list[Artist]:
    """Return the marks for the legend, in no group's colour."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=INK, marker="v", markersize=4, linestyle=""),
        Line2D([], [], color=INK, marker=".", markersize=4, linewidth=1.2),
        Line2D([], [], color=INK, marker="o", markerfacecolor="white", markersize=5, linestyle=""),
    ]

"""Draw how stale each learner's updates were (Metis fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
import numpy.typing as npt

from archipel.drawing.colours import INK
from archipel.drawing.drawing import Drawing
from archipel.drawing.style import legend_below, logarithmic, look, panels, title
from archipel.report.sample import first_runs, group_colours, group_patches, note, sampled, training
from archipel.runs.run import Run

BINS = 30
WIDE = 20
"""From this ratio of the largest staleness to the least, the axis is logarithmic."""
TALL = 0.8
"""Height of a histogram, of the distance to the next."""


@look()
def staleness(runs: Sequence[Run]) -> Drawing | None:
    """Draw a histogram of effective staleness for each learner; None if no update was stale."""
    shown = first_runs(runs, overtaken)
    if not shown:
        return None
    colours = group_colours(runs)
    rows: list[tuple[object, ...]] = []
    found = {method: run.staleness() for method, run in shown.items()}
    cast = {method: sampled(run, among=found[method]) for method, run in shown.items()}
    longest = max(len(one.name) for learners in cast.values() for one in learners)
    figure, axes = panels(len(shown), 0.24 * max(map(len, cast.values())) + 1.1, longest=longest)
    for panel, (method, run) in zip(axes, shown.items(), strict=True):
        edges = bins([steps for one in cast[method] for steps in found[method][one.name]])
        for place, one in enumerate(cast[method]):
            steps = found[method][one.name]
            counts, _ = np.histogram(steps, edges)
            heights = place - TALL * counts / counts.max()
            panel.stairs(heights, edges, baseline=place, fill=True, color=colours[one.group])
            middle = median(steps)
            panel.plot([middle, middle], [place, place - TALL], color=INK, linewidth=1.2)
            rows += [
                (method, run.seed, one.name, one.group, low, high, count, middle)
                for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
            ]
        panel.set_ylim(len(cast[method]) - 0.7, -1.1)
        panel.set_yticks(range(len(cast[method])), [one.name for one in cast[method]])
        if edges[0] > 0:
            panel.set_xscale("log")
            logarithmic(panel.xaxis)
        panel.set_xlim(edges[0], edges[-1])
        panel.set_xlabel("effective staleness (steps)")
        panel.set_ylabel("learner")
        medians = ", ".join(f"{group} {value:,.0f}" for group, value in group_medians(run).items())
        title(panel, f"{method} (median: {medians})")
    legend_below(figure, group_patches(colours), list(colours))
    return Drawing(
        "staleness",
        "Staleness",
        "Histograms of each learner's effective staleness: the steps committed while it made an update, and its own "
        "(Metis fig. 4). Each has its own scale; strokes are the learners' medians, in the title are those of groups. "
        "Methods whose updates are never overtaken are left out." + note(runs, shown),
        figure,
        ("method", "seed", "learner", "group", "from (steps)", "below (steps)", "updates", "learner's median (steps)"),
        tuple(rows),
    )


def bins(steps: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return the edges of the bins: linear from 0, or logarithmic if the largest staleness is many times the least."""
    low, high = min(steps), max(steps) + 1
    return np.geomspace(low, high, BINS + 1) if 0 < WIDE * low < high else np.linspace(0, high, BINS + 1)


def overtaken(run: Run) -> bool:
    """Return whether an update was ever committed to a newer version than it had started from."""
    return any(any(commit.stale_versions) for _, commit in run.commits)


def group_medians(run: Run) -> dict[str, float]:
    found = run.staleness()
    steps: dict[str, list[int]] = {}
    for one in training(run):
        steps.setdefault(one.group, []).extend(found.get(one.name, []))
    return {group: median(values) for group, values in steps.items() if values}

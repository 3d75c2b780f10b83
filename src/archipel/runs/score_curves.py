"""Draw scores against virtual time, local rounds and megabytes, the papers' three axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from archipel.core.checks import require
from archipel.core.metrics import higher_is_better
from archipel.core.records import Committed
from archipel.drawing.drawing import Drawing
from archipel.drawing.lines import HEADER, MEANS, draw_lines, mean_line
from archipel.drawing.style import TIME, legend_below, logarithmic, look, panels
from archipel.runs.grouping import groups
from archipel.runs.history import WORK, history, megabytes, scoring
from archipel.runs.run_data import RunData

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

AXES = (TIME, "local rounds", "moved (MB)")
WIDE = 30
"""From this ratio of the largest loss to the smallest, the axis is logarithmic."""


def scores(runs: Sequence[RunData]) -> Drawing | None:
    """Draw `score_curves`; return None if nothing was scored."""
    return score_curves(runs) if any(curves(run) for run in runs) else None


@look()
def score_curves(runs: Sequence[RunData]) -> Drawing:
    """Draw the score of every method against virtual time, local rounds and megabytes moved."""
    found = {id(run): curves(run) for run in runs}
    scored = [run for run in runs if found[id(run)]]
    require(bool(scored), "score_curves: none of these runs has a score; give simulate an Evaluation that finds sites.")
    metrics = list(dict.fromkeys(run.metric for run in scored))
    methods = list(groups(runs))
    figure, axes = panels(3 * len(metrics), 3.1, sharey="row")
    rows: list[tuple[object, ...]] = []
    handles: dict[str, Line2D] = {}
    for row, metric in enumerate(metrics):
        there = groups(run for run in scored if run.metric == metric)
        for column, axis in enumerate(AXES):
            panel = axes[3 * row + column]
            lines = {method: mean_line([found[id(run)][axis] for run in own]) for method, own in there.items()}
            handles |= draw_lines(panel, lines, methods)
            rows += [(method, metric, axis, *point) for method, line in lines.items() for point in line.rows()]
            panel.set_xlabel(axis)
        first = axes[3 * row]
        first.set_ylabel(metric.replace("_", " ") + ("" if higher_is_better(metric) else " (lower is better)"))
        values = [value for own in there.values() for run in own for value in found[id(run)][TIME].values()]
        if metric == "loss" and max(values) > WIDE * min(values) > 0:
            first.set_yscale("log")
            logarithmic(first.yaxis)
    ways = {method: scoring(own[0]) for method, own in groups(scored).items()}
    differ = len(set(ways.values())) > 1  # scores that cannot be compared are marked in the legend
    legend_below(figure, list(handles.values()), [f"{m}: {ways[m]}" if differ else m for m in handles])
    return Drawing(
        "score-curves",
        "Score",
        caption(ways, several=any(len(own) > 1 for own in groups(scored).values())),
        figure,
        ("method", "metric", "axis", "place on the axis", *HEADER),
        tuple(rows),
    )


def curves(run: RunData) -> dict[str, dict[float, float]]:
    """Return {place: score} along each axis; empty without scores."""
    moved, so_far = {}, 0.0
    for _, made in run.versions:  # a rollback moves nothing
        so_far = megabytes(made.traffic, *WORK) if isinstance(made, Committed) else so_far
        moved[made.version] = so_far
    points = [point for point in history(run) if math.isfinite(point.score)]
    if not points:
        return {}
    return {
        TIME: {point.seconds: point.score for point in points},
        # a stream commits many times before its count of rounds moves on: the first was made of just so many
        "local rounds": {point.rounds: point.score for point in reversed(points)},
        "moved (MB)": {moved.get(point.version, 0.0): point.score for point in points},
    }


def caption(ways: Mapping[str, str], several: bool) -> str:
    """Return the caption; `several` if a method has several runs."""
    """Return the caption; `several` if a method has several runs."""
    names = {way: ", ".join(method for method in ways if ways[method] == way) for way in dict.fromkeys(ways.values())}
    what = "; ".join(f"{way} ({names[way]})" for way in names) if len(names) > 1 else next(iter(names))
    return (
        f"{what[0].upper()}{what[1:]}, against time (virtual in a simulation; Metis figs. 5 to 8), local rounds, of "
        "which a hop of a relay is one (RADFed figs. 3 and 4; of several scores in a round the first), and megabytes "
        "(of 2^20 bytes) "
        "moved for training and weighing. Where lines differ much in length, the axis is logarithmic."
        + (f" {MEANS}" if several else "")
    )

"""Draw RADFed's divergences: from a centralised run, and between local updates (figs. 6 and 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from archipel.drawing.drawing import Drawing
from archipel.drawing.lines import HEADER, MEANS, draw_lines, mean_line
from archipel.drawing.style import legend_below, look, panels
from archipel.runs.grouping import groups
from archipel.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

NAMES = {"dc": "DC, from a centralised run", "dl": "DL, between local models"}


@look()
def shadows(runs: Sequence[Run]) -> Drawing | None:
    """Draw DC and DL of every method along its rounds."""
    methods = list(groups(runs))
    found = {
        which: {method: kept for method, own in groups(runs).items() if (kept := curves(own, which))} for which in NAMES
    }
    drawn = [which for which in NAMES if found[which]]
    if not drawn:
        return None
    figure, axes = panels(len(drawn), 3.1, across=2)
    rows: list[tuple[object, ...]] = []
    handles: dict[str, Line2D] = {}
    for panel, which in zip(axes, drawn, strict=True):
        lines = {method: mean_line(own) for method, own in found[which].items()}
        handles |= draw_lines(panel, lines, methods)
        rows += [(method, which.upper(), *point) for method, line in lines.items() for point in line.rows()]
        panel.set_xlabel("rounds of the centralised run")
        panel.set_ylabel(NAMES[which])
        panel.set_ylim(bottom=0)
    order = [method for method in methods if method in handles]
    legend_below(figure, [handles[method] for method in order], order)
    return Drawing(
        "shadows",
        "Divergence from a centralised run",
        "DC, how far the model is from one trained centrally on the same data, relative to that one's norm, and DL, "
        "the mean over pairs of 1 - cos between the local models of a round (RADFed figs. 6 and 7). The centralised "
        "run makes a round at every commit and every hop, so under asynchrony a round is one commit."
        + (f" {MEANS}" if any(len(own) > 1 for own in groups(runs).values()) else ""),
        figure,
        ("method", "divergence", "round of the centralised run", *HEADER),
        tuple(rows),
    )


def curves(runs: Sequence[Run], which: str) -> list[dict[float, float]]:
    """Return {round: divergence} of the runs that have any."""
    told = ([(shadow.rounds, getattr(shadow, which)) for _, shadow in run.shadows] for run in runs)
    found = [{float(at): y for at, y in points if y is not None and math.isfinite(y)} for points in told]
    return [curve for curve in found if curve]

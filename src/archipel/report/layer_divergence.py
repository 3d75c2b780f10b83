"""Draw how far local models diverge, layer by layer (D&C figs. 5 and 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from archipel.core.records import Divergence
from archipel.drawing.class_tables import label as label_places
from archipel.drawing.colours import INK, SHADES
from archipel.drawing.drawing import Drawing
from archipel.drawing.style import label_ends, logarithmic, look, panels, title
from archipel.report.sample import first_runs, note
from archipel.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VERSIONS = 6
"""Number of versions that are drawn, evenly spaced from the first to the last."""
WIDE = 50
"""From this ratio of the largest divergence to the smallest, the axis is logarithmic."""


@look()
def layer_divergence(runs: Sequence[Run]) -> Drawing | None:
    """Draw the divergence of every layer between the local models of a commit, for some versions of each method."""
    shown = first_runs(runs, known)
    if not shown:
        return None
    rows: list[tuple[object, ...]] = []
    figure, axes = panels(len(shown), 3.0)
    for panel, (method, run) in zip(axes, shown.items(), strict=True):
        told = spaced(known(run))
        draw(panel, told)
        title(panel, method)
        rows += [
            (method, run.seed, one.kind, one.version, layer, value, one.split or "")
            for one in told
            for layer, value in zip(one.names, one.values, strict=True)
            if math.isfinite(value)
        ]
    return Drawing(
        "layer-divergence",
        "Divergence by layer",
        f"Weight divergence between the local models of a commit, by layer in forward order, for up to {VERSIONS} "
        "versions from light to dark (D&C figs. 5 and 7). Layers behind a dashed line are the classifier. A layer that "
        "fewer than two learners sent has no point." + note(runs, shown, samples=False),
        figure,
        ("method", "seed", "kind", "version", "layer", "divergence", "split"),
        tuple(rows),
    )


def known(run: Run) -> list[Divergence]:
    """Return the divergences that have a number for some layer."""
    return [one for _, one in run.divergences if any(map(math.isfinite, one.values))]


def spaced(told: Sequence[Divergence]) -> list[Divergence]:
    last = len(told) - 1
    places = sorted({round(i * last / (VERSIONS - 1)) for i in range(VERSIONS)})
    return [told[place] for place in places]


def draw(axes: Axes, told: Sequence[Divergence]) -> None:
    from matplotlib import colormaps

    finite = [value for one in told for value in one.values if math.isfinite(value)]
    if max(finite) > WIDE * min(finite) > 0:
        axes.set_yscale("log")
        logarithmic(axes.yaxis)
    names = told[-1].names
    ends = {}
    for i, one in enumerate(told):
        values = [value if math.isfinite(value) else math.nan for value in one.values]
        colour = colormaps[SHADES](0.2 + 0.8 * (i + 1) / len(told))
        axes.plot(range(len(names)), values, color=colour, marker="o", markersize=3)
        ends[f"v{one.version}"] = next(value for value in reversed(values) if not math.isnan(value))
    if told[-1].split is not None:
        axes.axvline(names.index(told[-1].split) - 0.5, color=INK, linestyle="--", linewidth=1)
    axes.margins(x=0.08)
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    label_places(axes, "x", names)
    label_ends(axes, ends, "versions")
    axes.set_xlabel("layer")
    axes.set_ylabel(f"divergence ({told[-1].kind})")

"""Draw tables as coloured cells, such as classes by learners (HDAFL fig. 2) with the learners' sizes above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from archipel.drawing.colours import INK, NOTHING, SHADES, SLATE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

LEARNERS = 200
"""Up to this number of learners, all are drawn; of more, so many, evenly spaced."""
NUMBERS = 200
"""Up to this number of cells, each shows its number, if there is room."""
GAPS = 2000
"""Up to this number of cells, white lines separate them."""
LABELS = 50
"""Up to this number of learners or classes, each has a label."""
WIDE = 20
"""Colours are on a logarithmic scale if the largest number is at least this many times the smallest."""

Item = TypeVar("Item")


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """Return all items or, if there are more than this many, an evenly spaced sample with the first and the last."""
    if len(items) <= most:
        return [*items]
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def size(names: Sequence[str], classes: int) -> tuple[float, float]:
    """Return the width and height in inches of a picture of these learners and classes."""
    longest = max(map(len, names)) * slanted(names)
    wide, high = np.clip(0.42 * len(names), 4.5, 8.5), np.clip(0.3 * classes, 2, 10)
    return min(10.0, wide + 1.5 + 0.03 * longest), high + 1.7 + 0.06 * longest


def draw(
    figure: Figure | SubFigure, names: Sequence[str], table: npt.NDArray[np.int64], values: str = "examples"
) -> None:
    """Draw the sizes above, the classes by learners below, and the scale at the side."""
    from matplotlib.ticker import StrMethodFormatter

    shown, what = evenly(range(len(names)), LEARNERS), "learner"
    if len(shown) < len(names):
        what = f"learner ({len(shown)} of {len(names):,}, evenly spaced)"
        names, table = [names[place] for place in shown], table[shown]
    above, below = figure.subplots(
        2, 1, sharex=True, height_ratios=[1, max(2.2, 0.3 * table.shape[1])], gridspec_kw={"hspace": 0.02}
    )
    above.bar(np.arange(len(table)), table.sum(1), color=SLATE, width=0.8)
    above.set_ylabel("examples")
    above.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    above.locator_params(axis="y", nbins=3)
    above.tick_params(axis="x", which="both", length=0, labelbottom=False)
    above.grid(visible=False, axis="x")
    above.spines[["top", "right"]].set_visible(False)
    classes = [str(number) for number in range(table.shape[1])]
    if values == "share":
        shares = table / table.sum(1, keepdims=True)
        cells(below, shares.T, names, classes, "{x:.0%}", "part of the learner's examples", logarithmic=False)
    else:
        cells(below, table.T.astype(np.float64), names, classes, "{x:,.0f}", "training examples")
    below.set_xlabel(what)
    below.set_ylabel("class")


def cells(
    axes: Axes,
    table: npt.NDArray[np.float64],
    columns: Sequence[str],
    rows: Sequence[str],
    form: str,
    scale: str,
    logarithmic: bool | None = None,
) -> None:
    """Draw a table as coloured cells with their scale at the side; 0 is grey.

    columns, rows: their labels; form: format of a number x; scale: label of the scale.
    logarithmic: whether the scale is; None: if the numbers differ by a large factor.
    """
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    some = table[table > 0]
    if logarithmic is None:
        logarithmic = bool(some.max() >= WIDE * some.min())
    norm = LogNorm(some.min(), some.max()) if logarithmic else Normalize(0, some.max())
    colours = colormaps[SHADES].with_extremes(bad=NOTHING)
    picture = axes.imshow(np.ma.masked_equal(table, 0), cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    label(axes, "x", columns)
    label(axes, "y", rows)
    axes.grid(visible=False)
    if table.size <= GAPS:
        axes.set_xticks(np.arange(len(columns) - 1) + 0.5, minor=True)
        axes.set_yticks(np.arange(len(rows) - 1) + 0.5, minor=True)
        axes.grid(visible=True, which="minor", color="white", linewidth=0.6)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    figure = axes.get_figure(root=True)
    assert figure is not None, "axes belong to a figure"
    slender = 6 * axes.figure.bbox.height / figure.dpi  # the same width in inches for any height of the picture
    beside = figure.colorbar(picture, ax=axes, pad=0.015, aspect=slender, format=StrMethodFormatter(form))
    beside.ax.yaxis.set_minor_formatter(NullFormatter())
    beside.outline.set_visible(False)
    beside.set_label(f"{scale} (grey: none)")
    letters = max(len(form.format(x=number)) for number in some)
    points = min(9.0, 72 * 0.8 * figure.get_figwidth() / (0.65 * len(columns) * letters))
    if table.size <= NUMBERS and points >= 6:
        for row, column in zip(*np.nonzero(table), strict=True):
            red, green, blue, _ = colours(norm(table[row, column]))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            text, ink = form.format(x=table[row, column]), "white" if dark else INK
            axes.text(column, row, text, ha="center", va="center", fontsize=points, color=ink)


def label(axes: Axes, which: str, names: Sequence[str]) -> None:
    """Label all rows or columns, or every n-th if there are too many to read."""
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000, len(names)) if len(names) / step <= LABELS)
    places = list(range(0, len(names), every))
    shown = [names[place] for place in places]
    if which == "y":
        axes.set_yticks(places, shown)
    else:
        axes.set_xticks(places, shown)
        if slanted(shown):
            axes.tick_params(axis="x", rotation=60)
            for text in axes.get_xticklabels():
                text.set(ha="right", rotation_mode="anchor")


def slanted(names: Sequence[str]) -> bool:
    """Return whether the names are too long to be written horizontally side by side."""
    return max(map(len, names)) * min(len(names), LABELS) > 60

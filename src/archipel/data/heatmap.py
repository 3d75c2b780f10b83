"""A picture of a split: classes by learners, as in HDAFL's figure 2, with the learners' sizes above (Metis' insets)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from archipel.checks import one_of, require
from archipel.data.islands import Islands
from archipel.data.sizes import Counts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg")
COLOURS = "viridis_r"
"""Light is few, dark is many; it reads the same to the colour-blind and in print."""
NOTHING, INK, BARS = "#eeeeee", "#333333", "#5c6f7b"
NUMBERS = 200
"""Up to so many cells, each shows its number too."""
LABELS = 50
"""Up to so many learners or classes, each has its label."""
WIDE = 20
"""When the largest number is so many times the smallest, colours are on a logarithmic scale."""


def heat_map(
    islands: Islands, path: str | os.PathLike[str], values: str = "examples", title: str | None = None
) -> list[Path]:
    """Draw how much of every class every learner has; the path's ending says PNG or SVG, without one it is both.

    `values` is "examples", their number, or "share", their part of the learner's own examples. The paths written are
    returned; equal islands give equal files. It needs matplotlib: `pip install 'archipel[plots]'`.
    """
    one_of("heat_map", "values", values, ("examples", "share"))
    path = Path(path)
    require(
        path.suffix.lower() in ("", *ENDINGS),
        f"heat_map: {path.name!r} should end in {' or '.join(ENDINGS)}, or in neither to have both.",
    )
    table = islands.class_table().numpy()
    try:
        # imported late: only pictures need it
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "heat_map needs matplotlib, which is not installed. Install it with: pip install 'archipel[plots]'"
        ) from error
    paths = [path] if path.suffix else [path.with_name(path.name + ending) for ending in ENDINGS]
    # a salt of our own and no date, so that the same islands are the same bytes
    with mpl.rc_context({"svg.hashsalt": "archipel", "font.size": 9, "text.color": INK, "axes.labelcolor": INK}):
        learners, classes = table.shape
        wide, high = np.clip(0.34 * learners, 4.5, 12), np.clip(0.3 * classes, 2, 10)
        figure = Figure(figsize=(wide + 1.6, high + 1.7), layout="constrained")
        draw(figure, islands, table, values)
        figure.suptitle(f"{islands.name}: {learners} learners, {classes} classes" if title is None else title)
        for one in paths:
            one.parent.mkdir(parents=True, exist_ok=True)
            metadata = {"Software": None} if one.suffix.lower() == ".png" else {"Date": None}
            figure.savefig(one, dpi=150, metadata=metadata)
    return paths


def draw(figure: Figure, islands: Islands, table: Counts, values: str) -> None:
    """Sizes above, classes by learners below, the scale beside."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import PercentFormatter, StrMethodFormatter

    shares = values == "share"
    shown = table / table.sum(1, keepdims=True) if shares else table.astype(np.float64)
    some = shown[shown > 0]
    logarithmic = not shares and some.max() >= WIDE * some.min()
    norm = LogNorm(some.min(), some.max()) if logarithmic else Normalize(0, some.max())
    above, below = figure.subplots(
        2, 1, sharex=True, height_ratios=[1, max(2.2, 0.3 * table.shape[1])], gridspec_kw={"hspace": 0.02}
    )
    place = np.arange(len(table))
    above.bar(place, table.sum(1), color=BARS, width=0.8)
    above.set_ylabel("examples")
    above.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    above.locator_params(axis="y", nbins=3)
    above.tick_params(axis="x", which="both", length=0, labelbottom=False)
    above.spines[["top", "right"]].set_visible(False)

    colours = colormaps[COLOURS].with_extremes(bad=NOTHING)
    picture = below.imshow(
        np.ma.masked_equal(shown, 0).T, cmap=colours, norm=norm, aspect="auto", interpolation="nearest"
    )
    below.set_xlabel("learner")
    below.set_ylabel("class")
    label(below, "x", [learner.name for learner in islands.learners])
    label(below, "y", [str(number) for number in range(table.shape[1])])
    below.set_xticks(place[:-1] + 0.5, minor=True)
    below.set_yticks(np.arange(table.shape[1] - 1) + 0.5, minor=True)
    below.tick_params(which="both", length=0)
    below.grid(which="minor", color="white", linewidth=0.6 if table.size <= 2000 else 0.2)
    below.spines[:].set_visible(False)
    scale = figure.colorbar(
        picture,
        ax=below,
        pad=0.015,
        aspect=30,
        format=PercentFormatter(1, decimals=0) if shares else StrMethodFormatter("{x:,.0f}"),
    )
    scale.outline.set_visible(False)
    scale.set_label(("part of the learner's examples" if shares else "training examples") + " (grey: none)")
    if table.size <= NUMBERS:
        for k, c in zip(*np.nonzero(table), strict=True):
            red, green, blue, _ = colours(norm(shown[k, c]))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            text = f"{100 * shown[k, c]:.0f}" if shares else f"{table[k, c]:,}"
            below.text(k, c, text, ha="center", va="center", fontsize=6.5, color="white" if dark else INK)


def label(axes: Axes, which: str, names: list[str]) -> None:
    """Name all rows or columns, or every so many where there are too many to read."""
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000, len(names)) if len(names) / step <= LABELS)
    places = list(range(0, len(names), every))
    shown = [names[place] for place in places]
    if which == "y":
        axes.set_yticks(places, shown)
    else:
        long = max(map(len, shown)) > 3
        axes.set_xticks(
            places, shown, rotation=(30 if len(shown) < 10 else 60) * long, ha="right" if long else "center"
        )

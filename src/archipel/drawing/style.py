"""How every figure looks, and how a drawing is written: the one place that knows whether matplotlib is there."""

from __future__ import annotations

import csv
import math
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archipel.drawing.colours import INK
from archipel.drawing.drawing import Drawing

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's, which the colour-blind tell apart; without their yellow, which white paper swallows."""
STROKES = ("-", "--", "-.", ":")
WIDTH = 10.0
"""Inches across the page at most, so that letters keep their size."""
LETTER = 0.075
"""Inches that a letter takes, on average."""
TIME = "time (s)"


@contextmanager
def look() -> Iterator[None]:
    """Within it, and in functions that it decorates, figures have the look of Archipel."""
    try:
        # imported late, here as everywhere in this package: it is an extra
        import matplotlib as mpl
    except ImportError as error:
        raise ImportError("A figure needs matplotlib: pip install 'archipel[plots]'") from error
    with mpl.rc_context(
        {
            "text.parse_math": False,  # a method may be called "$5 or $6"
            "font.size": 10,
            "figure.titlesize": 11,
            "axes.titlesize": 10,
            "axes.titlelocation": "left",
            "axes.labelsize": 10,
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
            "legend.fontsize": 9,
            "legend.frameon": False,
            "text.color": INK,
            "axes.labelcolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.edgecolor": "#8c8c8c",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.xmargin": 0.02,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#e4e4e4",
            "grid.linewidth": 0.7,
            "xtick.major.size": 3,
            "ytick.major.size": 0,
            "lines.linewidth": 1.6,
            "svg.hashsalt": "archipel",  # a salt of our own, so that the same runs are the same bytes
        }
    ):
        yield


def stroke(place: int) -> dict[str, Any]:
    """Colour and dashes of the method at this place; colours come round before dashes change."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": STROKES[place // len(COLOURS) % len(STROKES)],
    }


def panels(count: int, height: float, across: int = 3, longest: int = 0, **shared: Any) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, so high each; fewer stand side by side if their labels beside them are long."""
    from matplotlib.figure import Figure

    columns = max(1, min(count, across, int(WIDTH / (2.4 + LETTER * longest))))
    rows = math.ceil(count / columns)
    width = WIDTH if columns > 1 else min(WIDTH, 6.5 + LETTER * longest)
    figure = Figure(figsize=(width, rows * height), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for empty in grid[count:]:
        empty.remove()
    return figure, grid[:count]


def title(axes: Axes, text: str) -> None:
    """A panel's title, in as many lines as it takes."""
    figure, grid = axes.get_figure(root=True), axes.get_gridspec()
    assert figure is not None, "it is in one"
    assert grid is not None, "panels makes one"
    axes.set_title(textwrap.fill(text, int(figure.get_figwidth() / grid.ncols / LETTER) - 4))


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """A legend under the panels, where it hides nothing; the figure grows by what it takes."""
    texts = [textwrap.fill(text, int(figure.get_figwidth() / LETTER) - 8) for text in labels]
    widest = max(max(map(len, text.splitlines())) for text in texts)
    columns = max(1, min(len(texts), int(figure.get_figwidth() / (LETTER * widest + 0.6))))
    lines = sum(text.count("\n") + 1 for text in texts)
    figure.set_figheight(figure.get_figheight() + 0.19 * math.ceil(lines / columns) + 0.1)
    figure.legend(handles, texts, loc="outside lower center", ncols=columns, handlelength=2.6)


def logarithmic(axis: XAxis | YAxis) -> None:
    """Plain numbers along a logarithmic axis, two to a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def label_ends(axes: Axes, ends: Mapping[str, float], things: str, apart: float = 0.08) -> None:
    """Name curves at the right of the panel, at the height they end; neighbours that would collide share a line.

    Nearer than `apart` of the panel's height is too near; where many or long names meet, they are so many `things`.
    """
    right, to_panel = axes.get_xlim()[1], axes.transData + axes.transAxes.inverted()
    height = {name: float(to_panel.transform((right, y))[1]) for name, y in ends.items()}
    together: list[list[str]] = []
    for name in sorted(height, key=height.__getitem__):
        if together and height[name] - height[together[-1][0]] < apart:
            together[-1].append(name)
        else:
            together.append([name])
    for names in together:
        text = ", ".join(name for name in ends if name in names)
        if len(names) > 3 or (len(names) > 1 and len(text) > 24):
            text = f"{len(names)} {things}"
        middle = sum(height[name] for name in names) / len(names)
        axes.text(1.02, middle, text, transform=axes.transAxes, va="center", fontsize=9)


def write(figure: Figure, path: Path) -> None:
    """A figure as a PNG or SVG file, by the path's ending; without a date, so that equal figures are equal files."""
    metadata = {"Software": None} if path.suffix.lower() == ".png" else {"Date": None}
    with look():
        figure.savefig(path, dpi=150, metadata=metadata)


def save(drawing: Drawing, folder: str | os.PathLike[str]) -> list[Path]:
    """Write a drawing as PNG and SVG, and its numbers as CSV."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    png, svg, table = (folder / f"{drawing.name}{ending}" for ending in (".png", ".svg", ".csv"))
    write(drawing.figure, png)
    drawing.figure.set_layout_engine("none")  # places are found once, which takes as long as drawing
    write(drawing.figure, svg)
    with open(table, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(drawing.header)
        writer.writerows(drawing.rows)
    return [png, svg, table]

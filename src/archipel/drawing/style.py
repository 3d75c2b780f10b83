"""The look of all figures, and writing of drawings; raises a clear error if matplotlib is missing."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archipel.drawing.colours import INK
from archipel.drawing.csv_tables import write_csv
from archipel.drawing.drawing import Drawing

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's colours, distinct with colour blindness; without their yellow, which is faint on white."""
STROKES = ("-", "--", "-.", ":")
WIDTH = 10.0
"""Largest width in inches, so that text keeps its size on a page."""
LETTER = 0.075
"""Average width of a letter in inches."""
TIME = "time (s)"


@contextmanager
def look() -> Iterator[None]:
    """Apply Archipel's style to figures made inside the context or the decorated function."""
    try:
        # imported late, as everywhere in this package: it is an extra
        import matplotlib as mpl
    except ImportError as error:
        raise ImportError("A figure needs matplotlib: pip install '.[plots]' in the source folder") from error
    with mpl.rc_context(
        {
            "text.parse_math": False,  # a method's name may contain "$"
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
            "svg.hashsalt": "archipel",  # a fixed salt, so that equal runs give equal bytes
        }
    ):
        yield


def stroke(place: int) -> dict[str, Any]:
    """Return the colour and dashes of the method at this place; dashes change when all colours are used."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": STROKES[place // len(COLOURS) % len(STROKES)],
    }


def panels(count: int, height: float, across: int = 3, longest: int = 0, **shared: Any) -> tuple[Figure, list[Axes]]:
    """Make a figure of `count` panels of this height in inches.

    across: largest number of columns; longest: letters of the longest label beside a panel, which needs room.
    shared: further arguments of `Figure.subplots`.
    """
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
    """Set a panel's title, wrapped to its width."""
    figure, grid = axes.get_figure(root=True), axes.get_gridspec()
    assert figure is not None, "axes belong to a figure"
    assert grid is not None, "`panels` makes a grid"
    axes.set_title(textwrap.fill(text, int(figure.get_figwidth() / grid.ncols / LETTER) - 4))


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """Add a legend under the panels, and enlarge the figure by its height."""
    texts = [textwrap.fill(text, int(figure.get_figwidth() / LETTER) - 8) for text in labels]
    widest = max(max(map(len, text.splitlines())) for text in texts)
    columns = max(1, min(len(texts), int(figure.get_figwidth() / (LETTER * widest + 0.6))))
    lines = sum(text.count("\n") + 1 for text in texts)
    figure.set_figheight(figure.get_figheight() + 0.19 * math.ceil(lines / columns) + 0.1)
    figure.legend(handles, texts, loc="outside lower center", ncols=columns, handlelength=2.6)


def logarithmic(axis: XAxis | YAxis) -> None:
    """Label a logarithmic axis with plain numbers, two to a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def label_ends(axes: Axes, ends: Mapping[str, float], things: str, apart: float = 0.08) -> None:
    """Write the names of curves at the right of the panel, at the height of their ends.

    ends: the last y of each curve, by name.
    things: noun for several curves; many or long names at one height are replaced by "5 layers", for example.
    apart: names nearer than this share of the panel's height are written in one line.
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
    """Write a figure as PNG or SVG, by the path's suffix; without a date, so that equal figures give equal files."""
    metadata = {"Software": None} if path.suffix.lower() == ".png" else {"Date": None}
    with look():
        figure.savefig(path, dpi=150, metadata=metadata)


def save(drawing: Drawing, folder: str | os.PathLike[str]) -> list[Path]:
    """Write a drawing as PNG and SVG, and its numbers as CSV."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    png, svg, table = (folder / f"{drawing.name}{ending}" for ending in (".png", ".svg", ".csv"))
    write(drawing.figure, png)
    drawing.figure.set_layout_engine("none")  # the layout is computed once, since it takes as long as drawing
    write(drawing.figure, svg)
    write_csv(table, drawing.header, drawing.rows)
    return [png, svg, table]

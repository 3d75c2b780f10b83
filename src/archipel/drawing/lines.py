"""One line for each method: the mean of its runs, with a band from the lowest to the highest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from archipel.drawing.style import logarithmic, stroke

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

Floats = npt.NDArray[np.float64]

POINTS = 1000
"""A line is drawn through so many points at most."""
WIDE = 10
"""When the longest line is so many times as long as the shortest, their axis is logarithmic."""

MEANS = "Lines are means of a method's runs, as far as all of them go; bands reach from the lowest to the highest."
HEADER = ("mean", "lowest", "highest", "runs")


@dataclass(frozen=True, eq=False)
class Line:
    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    runs: int

    def rows(self) -> list[tuple[float, float, float, float, int]]:
        """(x, mean, lowest, highest, runs) of each point."""
        columns = (self.x.tolist(), self.mean.tolist(), self.low.tolist(), self.high.tolist())
        return [(*point, self.runs) for point in zip(*columns, strict=True)]


def mean_line(curves: Sequence[Mapping[float, float]]) -> Line:
    """The mean of curves {x: y} that have points; between its points a curve is straight."""
    start, stop = max(min(curve) for curve in curves), min(max(curve) for curve in curves)
    if start > stop:  # they have no stretch in common, and one is better than none
        return mean_line(curves[:1])
    x = np.array(sorted({at for curve in curves for at in curve if start <= at <= stop}), dtype=np.float64)
    if len(x) > POINTS:
        x = np.linspace(start, stop, POINTS)
    ys = np.array([np.interp(x, sorted(curve), [curve[at] for at in sorted(curve)]) for curve in curves])
    return Line(x, ys.mean(0), ys.min(0), ys.max(0), len(curves))


def draw_lines(axes: Axes, lines: Mapping[str, Line], methods: Sequence[str]) -> dict[str, Line2D]:
    """Draw a line for each method, in the colour of its place among all methods."""
    uneven = apart([float(line.x[-1]) for line in lines.values()])
    if uneven:
        axes.set_xscale("log")
        logarithmic(axes.xaxis)
    elif all((line.x == line.x.round()).all() for line in lines.values()):
        axes.locator_params(axis="x", integer=True)
    drawn = {}
    for method, line in lines.items():
        look = stroke(methods.index(method))
        shown = line.x > 0 if uneven else slice(None)
        x, mean = line.x[shown], line.mean[shown]
        if line.runs > 1:
            axes.fill_between(x, line.low[shown], line.high[shown], color=look["color"], alpha=0.15, linewidth=0)
        (drawn[method],) = axes.plot(x, mean, marker="o" if len(x) == 1 else None, markersize=4, **look)
    return drawn


def apart(ends: Collection[float]) -> bool:
    """Do some lines end so early that they would be one stroke at the left?"""
    return min(ends) > 0 and max(ends) > WIDE * min(ends)

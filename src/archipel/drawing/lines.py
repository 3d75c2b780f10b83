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

POINTS = 1000
"""Limit on the points of a line."""
WIDE = 10
"""The x axis is logarithmic if the longest line is more than this many times as long as the shortest."""

MEANS = "Lines are means of a method's runs, as far as all of them go; bands reach from the lowest to the highest."
HEADER = ("mean", "lowest", "highest", "runs")


@dataclass(frozen=True, eq=False)
class MeanLine:
    """The mean of the runs of one method, and the lowest and highest values."""

    x: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    runs: int

    def rows(self) -> list[tuple[float, float, float, float, int]]:
        """Return (x, mean, lowest, highest, runs) of each point."""
        columns = (self.x.tolist(), self.mean.tolist(), self.low.tolist(), self.high.tolist())
        return [(*point, self.runs) for point in zip(*columns, strict=True)]


def mean_line(curves: Sequence[Mapping[float, float]]) -> MeanLine:
    """Average curves {x: y}, each of at least one point, with linear interpolation."""
    start, stop = max(min(curve) for curve in curves), min(max(curve) for curve in curves)
    if start > stop:  # no common range: show the first curve
        return mean_line(curves[:1])
    x = np.array(sorted({at for curve in curves for at in curve if start <= at <= stop}), dtype=np.float64)
    if len(x) > POINTS:
        x = np.linspace(start, stop, POINTS)
    ys = np.array([np.interp(x, sorted(curve), [curve[at] for at in sorted(curve)]) for curve in curves])
    return MeanLine(x, ys.mean(0), ys.min(0), ys.max(0), len(curves))


def draw_lines(axes: Axes, lines: Mapping[str, MeanLine], methods: Sequence[str]) -> dict[str, Line2D]:
    """Draw a line for each method, in the colour given by its place among all methods."""
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
    """Return whether some lines are too short to be seen on a linear axis."""
    return min(ends) > 0 and max(ends) > WIDE * min(ends)

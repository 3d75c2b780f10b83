"""A critical-difference diagram as SVG: mean ranks on an axis, and bars over methods that are not told apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from benchmarks.field.ranks import Ranks

WIDTH, MARGIN, SIDE, ROW = 760, 12, 170, 18
"""SIDE: width of the names on either side; ROW: height of a line of names."""


def diagram(ranks: Ranks) -> str:
    """Draw the best half of the methods on the left and the others on the right."""
    ordered = sorted(ranks.mean, key=ranks.mean.__getitem__)
    groups = ranks.groups()
    first, last = math.floor(min(ranks.mean.values())), math.ceil(max(ranks.mean.values()))
    # the critical difference is drawn to the scale of the axis, so it has to fit
    last = max(last, first + math.ceil(ranks.difference), first + 1)
    left, right = MARGIN + SIDE, WIDTH - MARGIN - SIDE

    def x(rank: float) -> float:
        return round(left + (right - left) * (rank - first) / (last - first), 1)

    axis = 62
    names_at = axis + 14 + 7 * len(groups)
    half = (len(ordered) + 1) // 2
    high = names_at + half * ROW + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" width="{WIDTH}" height="{high}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{high}" fill="white"/>',
        _line(x(first), 24, x(first + ranks.difference), 24, 2),
        f'<text x="{x(first)}" y="17">critical difference {ranks.difference:.2f}</text>',
        _line(left, axis, right, axis, 1.5),
    ]
    step = max(1, (last - first) // 12)
    for rank in range(first, last + 1, step):
        lines.append(_line(x(rank), axis - 6, x(rank), axis, 1.5))
        lines.append(f'<text x="{x(rank)}" y="{axis - 10}" text-anchor="middle">{rank}</text>')
    for place, group in enumerate(groups):
        y = axis + 8 + 7 * place
        lines.append(_line(x(ranks.mean[group[0]]) - 3, y, x(ranks.mean[group[-1]]) + 3, y, 3.5))
    lines += _names(ordered[:half], ranks, x, names_at, axis, left=True)
    lines += _names(ordered[half:][::-1], ranks, x, names_at, axis, left=False)
    return "\n".join([*lines, "</svg>", ""])


def _names(
    names: list[str], ranks: Ranks, x: Callable[[float], float], top: float, axis: float, *, left: bool
) -> Iterator[str]:
    """Yield the names of one side, the outermost on the axis first, and the lines that lead to them."""
    edge, end = (MARGIN + SIDE - 10, "end") if left else (WIDTH - MARGIN - SIDE + 10, "start")
    for row, name in enumerate(names):
        y, at = top + row * ROW + ROW / 2, x(ranks.mean[name])
        yield f'<path d="M{at} {axis}V{y}H{edge}" fill="none" stroke="#777"/>'
        yield (
            f'<text x="{edge + (-4 if left else 4)}" y="{y + 4}" text-anchor="{end}">'
            f"{name} {ranks.mean[name]:.1f}</text>"
        )


def _line(x: float, y: float, to_x: float, to_y: float, width: float) -> str:
    return f'<path d="M{x} {y}L{round(to_x, 1)} {to_y}" stroke="black" stroke-width="{width}"/>'

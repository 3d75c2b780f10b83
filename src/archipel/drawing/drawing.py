"""A drawing: a figure, its caption, and the numbers that it shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with its caption and its numbers."""

    name: str
    """Base name of its files: "score-curves" becomes score-curves.png, .svg and .csv."""
    title: str
    caption: str
    """What the figure shows, in a sentence or two, and the figure of a paper to which it corresponds."""
    figure: Figure
    header: tuple[str, ...]
    """Columns of its table, with units."""
    rows: tuple[tuple[Any, ...], ...]
    """The numbers that are shown."""

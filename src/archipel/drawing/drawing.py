"""A drawing: a figure, what it shows in words, and the numbers it was drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Drawing:
    name: str
    """Its files are called so: "score-curves" becomes score-curves.png, .svg and .csv."""
    title: str
    caption: str
    """What one sees, in a sentence or two, and which figure of which paper it corresponds to."""
    figure: Figure
    header: tuple[str, ...]
    """Columns of its table, with units."""
    rows: tuple[tuple[object, ...], ...]
    """The numbers that were drawn."""

"""Print paragraphs folded at the width of the terminal, or at 80 columns in a pipe."""

from __future__ import annotations

import textwrap

from rich.text import Text

from archipel.cli.console import out

MARGIN = 2


def write(text: str, indent: int = 0, style: str = "", name: str = "", colour: str = "cyan") -> None:
    """Print an indented paragraph, with an optional name in the indent of its first line.

    A word is never broken, so that a path or an address can be copied whole.
    """
    head = f"{' ' * MARGIN}{name} ".ljust(indent) if name else " " * indent
    folded = textwrap.fill(
        text,
        out.width,
        initial_indent=head,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    shown = Text(folded, style)
    shown.stylize(colour, MARGIN, MARGIN + len(name))
    out.print(shown, soft_wrap=True)


def heading(text: str) -> None:
    write(text, style="bold")

"""What all commands share: where they print, how they say what went wrong, and how they speak to other programs."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

out = Console()
"""Results. Rich leaves colours and widths alone when this is no terminal, or NO_COLOR is set."""
told = Console(stderr=True)
"""Progress, warnings and errors: they never get into a pipe of results."""

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for other programs.")]


def print_json(result: object) -> None:
    """One JSON document on standard output, never wrapped or coloured."""
    sys.stdout.write(json.dumps(result, indent=2, ensure_ascii=False) + "\n")

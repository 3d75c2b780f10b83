"""What all commands share: where they print, how they say what went wrong, and how they speak to other programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

out = Console()
"""Results. Rich leaves colours and widths alone when this is no terminal, or NO_COLOR is set."""
told = Console(stderr=True)
"""Progress, warnings and errors: they never get into a pipe of results."""

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for other programs.")]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Let the study run any code it names: installed modules and other folders too. For studies you trust.",
    ),
]


def nearby(path: Path) -> str:
    """A path as one would type it here: relative, if it is below this folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def print_json(result: object) -> None:
    """One JSON document on standard output, never wrapped or coloured."""
    sys.stdout.write(json.dumps(result, indent=2, ensure_ascii=False) + "\n")

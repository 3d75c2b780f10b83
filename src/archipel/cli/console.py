"""What all commands share: consoles, options and JSON output."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

out = Console()
"""Results. Rich omits colours if this is not a terminal, or NO_COLOR is set."""
notices = Console(stderr=True)
"""Progress, warnings and errors, on standard error."""

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for other programs.")]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Let the study run any code that it names, also from installed modules and other folders. Only for "
        "studies that you trust.",
    ),
]


def nearby(path: Path) -> str:
    """Return a path as one would type it here: relative if it is below this folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def print_json(result: object) -> None:
    """Print one JSON document, never wrapped or coloured."""
    sys.stdout.write(json.dumps(result, indent=2, ensure_ascii=False) + "\n")

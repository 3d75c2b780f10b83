"""Write docs/reference/command-line.md from the commands themselves: `command_page.py FILE`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from archipel.cli.program import COMMANDS, command

HEAD = """# Command line

Generated from the commands by `make pages`; a test compares it. `archipel COMMAND --help` shows the same.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | a run failed, or an unexpected error |
| 2 | the request cannot be carried out as given |
| 130 | stopped by Ctrl-C or SIGTERM |
"""


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *(line for name in COMMANDS for line in _section(f"archipel {name}", command(name), "##"))])


def _section(name: str, found: Any, level: str) -> Iterator[str]:
    yield f"{level} `{name}`"
    yield ""
    yield " ".join(found.help.split())
    yield ""
    shown = [parameter for parameter in found.params if parameter.name != "help" and not parameter.hidden]
    if shown:
        yield "| argument | meaning |"
        yield "| --- | --- |"
        yield from (_row(parameter) for parameter in shown)
        yield ""
    for inner, part in getattr(found, "commands", {}).items():
        yield from _section(f"{name} {inner}", part, "###")


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = [parameter.name.upper() + ("..." if parameter.nargs == -1 else "")]
    else:
        value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
        names = [f"{option}{value}" for option in (*parameter.opts, *parameter.secondary_opts)]
    meaning = " ".join((parameter.help or "").split())
    default = parameter.default
    if isinstance(parameter.show_default, str):
        meaning += f" Default: {parameter.show_default}."
    elif default not in (None, False, ()) and not callable(default):
        meaning += f" Default: `{default}`."
    if parameter.required:
        meaning += " Required."
    cell = ", ".join(f"`{name}`" for name in names)
    return f"| {cell} | {meaning} |".replace("\\[", "[").replace("[[", "[")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())

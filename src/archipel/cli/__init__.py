"""The command line: `archipel run`, `report`, `algorithms`, `data`, `new`, `doctor`.

Exit codes: 0 done; 1 a run failed; 2 what was asked for cannot be done as it was asked; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import sys
import warnings

import typer
from rich.markup import escape

import archipel
from archipel.checks import ArchipelWarning
from archipel.cli.algorithms import algorithms
from archipel.cli.console import told
from archipel.cli.data import app as data
from archipel.cli.doctor import doctor
from archipel.cli.new import new
from archipel.cli.report import report
from archipel.cli.run import run

EXPECTED = (ValueError, OSError, ImportError)
"""Errors that say what was wrong with what was asked for, in words of their own."""

app = typer.Typer(
    name="archipel",
    help="Federated learning on islands of data that differ in what they hold and how fast they compute.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def archipel_(
    version: bool = typer.Option(False, "--version", help="Print the version and leave."),
    debug: bool = typer.Option(False, "--debug", help="Show where in the code an error arose."),
) -> None:
    if version:
        print(archipel.__version__)
        raise typer.Exit


app.command("run")(run)
app.command("report")(report)
app.command("algorithms")(algorithms)
app.add_typer(data, name="data")
app.command("new")(new)
app.command("doctor")(doctor)


def main() -> None:
    """Run the command; an error is a line or two with the way out, a traceback only with --debug."""
    warnings.showwarning = show_warning
    debug = "--debug" in sys.argv[1:]
    # --debug may stand anywhere, as a person adds it at the end of a line that has failed
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(args=arguments)
    except Exception as error:
        if debug:
            raise
        say(error)
        sys.exit(2 if isinstance(error, EXPECTED) else 1)


def say(error: Exception) -> None:
    """What went wrong, in words; an error that nobody foresaw also says how to see more."""
    text = str(error) or type(error).__name__
    if not isinstance(error, EXPECTED):
        text = f"{type(error).__name__}: {text}\nRun it again with --debug to see where it arose."
    told.print(f"[bold red]error:[/] {escape(text)}", highlight=False, soft_wrap=True)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    """Our own warnings as one line each; others as Python shows them."""
    if issubclass(category, ArchipelWarning):
        told.print(f"[yellow]note:[/] {escape(str(message))}", highlight=False, soft_wrap=True)
    else:
        told.print(escape(warnings.formatwarning(message, category, filename, lineno, line)), end="")

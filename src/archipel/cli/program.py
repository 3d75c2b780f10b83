"""The program `archipel`: its commands, and how errors and warnings are printed."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

import archipel
from archipel.cli.console import notices
from archipel.cli.loading import STOPPED, interruptible, loading
from archipel.core.checks import ArchipelWarning
from archipel.federation.logs import printable
from archipel.study.path_errors import in_words

EXPECTED = (ValueError, OSError, ImportError)
"""Errors whose messages are for users."""

COMMANDS = {
    "run": "Run a study, watch it, and get a table and a report.",
    "reproduce": "Run a table of a paper, and compare the paper's figures with ours.",
    "report": "Compare finished runs: a page with figures, and a table here.",
    "view": "Show runs on one page: curves, learners, versions, traffic, and a slider that replays them.",
    "algorithms": "List the methods and their parts; with a name, show everything about one.",
    "new": "Create a project: a study, a network, made-up data and a test, all of which run.",
    "doctor": "Check the installation, the machine and the data, and train a little; "
    "exit code 1 if something is broken.",
    "data": "List the known data sets, and which are on this machine; `show` draws a split, `get` downloads.",
    "controller": "Run the controller of a real federation, whose learners train on other machines.",
    "learner": "Take part in a real federation with your own data, which never leave this machine.",
    "status": "Show the state of a federation: learners, tasks, version, score.",
    "operator": "Pause, resume, withdraw or readmit a learner of a federation; roll its model back.",
    "replay": "Replay the journal of a federation, and check that it leads to the same models.",
    "ca": "Issue certificates for the controller, learners and operators of a real federation.",
}
"""The commands with the first sentence of their help."""


class Commands(TyperGroup):
    """The commands, each imported when it is called: most need torch, which takes a second."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the module of a command."""
        name, _, rest = super().resolve_command(ctx, args)
        with loading():
            found = None if name is None else command(name)
        interruptible()
        return name, found, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C ends it with one line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # before and after a study: while it runs, it handles the signal itself
            notices.print("Stopped.")
            raise typer.Exit(STOPPED) from None


app = typer.Typer(
    cls=Commands,
    name="archipel",
    help="Federated learning on islands of data that differ in what they hold and how fast they compute.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def archipel_(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    if version:
        print(archipel.__version__)
        raise typer.Exit


def command(name: str) -> Any:
    """Return the command of this name as typer runs it."""
    module = importlib.import_module(f"archipel.cli.{name}")
    alone = typer.Typer(rich_markup_mode="rich", add_completion=False)
    if hasattr(module, "app"):  # it has commands of its own
        alone.add_typer(module.app, name=name)
    else:
        alone.command(name)(getattr(module, name))
    return typer.main.get_group(alone).commands[name]


def stand_in() -> None:
    """Stand for a command in the list; never called."""


for name, summary in COMMANDS.items():
    app.command(name, help=summary)(stand_in)


def run_program() -> None:
    """Run the command; an error is a line or two with the way out, a traceback only with --debug."""
    warnings.showwarning = show_warning
    debug = "--debug" in sys.argv[1:]
    # --debug may be anywhere: it is usually added at the end of a command that has failed
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(args=arguments)
    except Exception as error:
        if debug:
            raise
        say(error)
        sys.exit(2 if isinstance(error, EXPECTED) else 1)


def say(error: Exception) -> None:
    """Print an error; an unexpected one with how to get its traceback."""
    text = (in_words(error) if isinstance(error, OSError) else str(error)) or type(error).__name__
    if not isinstance(error, EXPECTED):
        text = f"{type(error).__name__}: {text}\nRun it again with --debug for the traceback."
    notices.print(f"[bold red]error:[/] {escape(printable(text))}", highlight=False, soft_wrap=True)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    """Print Archipel's warnings as one line each, others as Python does."""
    if issubclass(category, ArchipelWarning):
        notices.print(f"[yellow]note:[/] {escape(printable(str(message)))}", highlight=False, soft_wrap=True)
    else:
        notices.print(escape(warnings.formatwarning(message, category, filename, lineno, line)), end="")

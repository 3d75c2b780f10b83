"""`archipel operator`: what people may do to a federation that runs."""

from __future__ import annotations

from typing import Annotated

import typer

from archipel.cli.console import out
from archipel.cli.federation import Address, Insecure, Papers, identity, link, on_the_line

app = typer.Typer(
    help="Pause, resume, withdraw or readmit a learner of a federation; roll its model back.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="The learner; default: oneself.", metavar="NAME")]


@app.command()
def pause(
    name: Name = "", controller: Address = "127.0.0.1:9443", papers: Papers = None, insecure: Insecure = None
) -> None:
    """Give a learner no more tasks; the one it is at may still come."""
    _steer("pause", name, controller, papers, insecure)


@app.command()
def resume(
    name: Name = "", controller: Address = "127.0.0.1:9443", papers: Papers = None, insecure: Insecure = None
) -> None:
    """Give a learner that was paused tasks again."""
    _steer("resume", name, controller, papers, insecure)


@app.command()
def withdraw(
    name: Name = "", controller: Address = "127.0.0.1:9443", papers: Papers = None, insecure: Insecure = None
) -> None:
    """Take a learner out of the federation: its tasks are given up, and it is not let in until it is readmitted."""
    _steer("withdraw", name, controller, papers, insecure)


@app.command()
def readmit(
    name: Name, controller: Address = "127.0.0.1:9443", papers: Papers = None, insecure: Insecure = None
) -> None:
    """Let a withdrawn learner in again; it may join with other numbers of examples than before."""
    _steer("readmit", name, controller, papers, insecure)


@app.command()
def rollback(
    version: Annotated[int, typer.Argument(help="The version to go back to.", metavar="VERSION", min=0)],
    controller: Address = "127.0.0.1:9443",
    papers: Papers = None,
    insecure: Insecure = None,
) -> None:
    """Make an earlier version's numbers the next version: what came after it, and open tasks, are given up.

    The last versions are stored, and fewer the further back; a version that is not stored is refused with a list of
    those that are.
    """
    _steer("rollback", "", controller, papers, insecure, version)


def _steer(action: str, name: str, controller: str, papers: Papers, insecure: Insecure, version: int = 0) -> None:
    from archipel.federation.processes import ask

    identity(papers, insecure, controller)
    with on_the_line(controller):
        told = ask(lambda: link(controller, papers, insecure), action, name, version)
    out.print(told, markup=False, highlight=False, soft_wrap=True)

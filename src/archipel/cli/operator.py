"""`archipel operator`: what people may do to a running federation."""

from __future__ import annotations

from typing import Annotated

import typer

from archipel.cli.console import out
from archipel.cli.federation import Address, Certificates, Insecure, identity, link, on_the_line

app = typer.Typer(
    help="Pause, resume, withdraw or readmit a learner of a federation; roll its model back.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="The learner; default: yourself.", metavar="NAME")]


@app.command()
def pause(
    name: Name = "",
    controller: Address = "127.0.0.1:9443",
    certificates: Certificates = None,
    insecure: Insecure = None,
) -> None:
    """Give a learner no more tasks; the one it is working on may still be finished."""
    _steer("pause", name, controller, certificates, insecure)


@app.command()
def resume(
    name: Name = "",
    controller: Address = "127.0.0.1:9443",
    certificates: Certificates = None,
    insecure: Insecure = None,
) -> None:
    """Give a learner that was paused tasks again."""
    _steer("resume", name, controller, certificates, insecure)


@app.command()
def withdraw(
    name: Name = "",
    controller: Address = "127.0.0.1:9443",
    certificates: Certificates = None,
    insecure: Insecure = None,
) -> None:
    """Remove a learner: its tasks are cancelled, and it cannot join until it is readmitted."""
    _steer("withdraw", name, controller, certificates, insecure)


@app.command()
def readmit(
    name: Name, controller: Address = "127.0.0.1:9443", certificates: Certificates = None, insecure: Insecure = None
) -> None:
    """Allow a withdrawn learner to join again; its numbers of examples may differ from before."""
    _steer("readmit", name, controller, certificates, insecure)


@app.command()
def rollback(
    version: Annotated[int, typer.Argument(help="The version to go back to.", metavar="VERSION", min=0)],
    controller: Address = "127.0.0.1:9443",
    certificates: Certificates = None,
    insecure: Insecure = None,
) -> None:
    """Roll the model back: an earlier version becomes the next one, and open tasks are cancelled.

    The last versions are stored, and fewer the further back; a version that is not stored is refused with a list of
    those that are.
    """
    _steer("rollback", "", controller, certificates, insecure, version)


def _steer(
    action: str, name: str, controller: str, certificates: Certificates, insecure: Insecure, version: int = 0
) -> None:
    from archipel.federation.processes import ask

    identity(certificates, insecure, controller)
    with on_the_line(controller):
        answer = ask(lambda: link(controller, certificates, insecure), action, name, version)
    out.print(answer, markup=False, highlight=False, soft_wrap=True)

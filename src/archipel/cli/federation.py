"""What the commands of a real federation share: addresses, papers, and the study."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archipel.cli.console import told
from archipel.core.checks import require

try:
    from archipel.federation.security import tls
    from archipel.federation.security.names import Identity, identity_of
except ImportError as error:
    raise ImportError("A real federation needs grpcio: pip install '.[federation]' in the source folder") from error

if TYPE_CHECKING:
    from archipel.federation.learner.link import Link

Address = Annotated[
    str, typer.Option("--controller", help="Where the controller listens, as in host:9443.", metavar="HOST:PORT")
]
Papers = Annotated[
    Path | None,
    typer.Option("--tls", help="Folder of one's certificate, made with `archipel ca request`.", metavar="FOLDER"),
]
Insecure = Annotated[
    str | None,
    typer.Option(
        "--insecure",
        help="Without TLS, as the caller of this name, such as learner/hospital-1; to this very machine only.",
        metavar="IDENTITY",
    ),
]
WARNING = "[yellow]note:[/] insecure: nothing is encrypted, and anybody on this machine can pose as anybody."
Method = Annotated[
    str | None, typer.Option("--algorithm", "-a", help="Which of the study's methods, if it has several.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change a setting, such as training.rate=0.1, on all sides."),
]
AsJsonLines = Annotated[bool, typer.Option("--json-log", help="Log one JSON object a line.")]


def identity(papers: Path | None, insecure: str | None, address: str) -> Identity:
    """Who one is to the controller."""
    require(
        (papers is None) != (insecure is None),
        "Give --tls FOLDER, one's certificate; or, to try things on one machine, --insecure learner/NAME.",
    )
    if papers is not None:
        return tls.own_identity(papers)
    assert insecure is not None
    tls.insecure_allowed(address)
    who = identity_of(insecure)
    if who is None:
        raise ValueError(f"--insecure {insecure}: say whom one is, as in learner/hospital-1 or operator/alice.")
    told.print(WARNING)
    return who


def listening(address: str, papers: Path | None, insecure: bool) -> tls.ServerCredentials | None:
    """Return what a controller listens with."""
    require(
        insecure != (papers is not None),
        "Give --tls FOLDER, the controller's certificate; or, to try things on one machine, --insecure.",
    )
    if papers is not None:
        return tls.server_credentials(papers)
    tls.insecure_allowed(address)
    told.print(WARNING)
    return None


def expiry(papers: Path) -> datetime:
    """Return when one's own certificate expires."""
    return tls.Certificates(papers).expires


def link(address: str, papers: Path | None, insecure: str | None) -> Link:
    from archipel.federation.learner.link import Link

    credentials = None if papers is None else tls.channel_credentials(papers)
    return Link(address, credentials, insecure or "")


@contextmanager
def on_the_line(address: str) -> Iterator[None]:
    """Turn refusals of the controller, and its silence, into error messages."""
    from archipel.federation.learner.link import TurnedAway

    try:
        yield
    except TurnedAway as error:
        if error.nobody_there:
            raise ConnectionError(
                f"No controller answers at {address}: is it running there, and with a certificate of the same "
                f"authority? ({error})"
            ) from error
        raise ValueError(f"The controller at {address} says no: {error}") from error

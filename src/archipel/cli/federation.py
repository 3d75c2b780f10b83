"""What the commands of a real federation share: addresses, certificates and the study."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archipel.cli.console import notices
from archipel.core.checks import require

try:
    from archipel.federation.security import tls
    from archipel.federation.security.names import Identity, identity_of
except ImportError as error:
    raise ImportError("A real federation needs grpcio: pip install '.[federation]' in the source folder") from error

if TYPE_CHECKING:
    from archipel.federation.learner.link import Link

Address = Annotated[
    str, typer.Option("--controller", help="Address of the controller, such as host:9443.", metavar="HOST:PORT")
]
Certificates = Annotated[
    Path | None,
    typer.Option("--tls", help="Folder of your certificate, made with `archipel ca request`.", metavar="FOLDER"),
]
Insecure = Annotated[
    str | None,
    typer.Option(
        "--insecure",
        help="Connect without TLS under this name, such as learner/hospital-1; only to a controller on this machine.",
        metavar="IDENTITY",
    ),
]
WARNING = "[yellow]note:[/] insecure: nothing is encrypted, and anybody on this machine can pose as anybody."
Method = Annotated[
    str | None, typer.Option("--algorithm", "-a", help="Which of the study's methods, if it has several.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Change a setting, such as training.rate=0.1; all sides must give the same.",
    ),
]
AsJsonLines = Annotated[bool, typer.Option("--json-log", help="Log one JSON object a line.")]


def identity(certificates: Path | None, insecure: str | None, address: str) -> Identity:
    """Return the identity of this process for the controller."""
    require(
        (certificates is None) != (insecure is None),
        "Give --tls FOLDER, the folder of your certificate; or, to try things on one machine, --insecure learner/NAME.",
    )
    if certificates is not None:
        return tls.own_identity(certificates)
    assert insecure is not None
    tls.insecure_allowed(address)
    who = identity_of(insecure)
    if who is None:
        raise ValueError(
            f"--insecure {insecure}: give a role and a name, such as learner/hospital-1 or operator/alice."
        )
    notices.print(WARNING)
    return who


def listening(address: str, certificates: Path | None, insecure: bool) -> tls.ServerCredentials | None:
    """Return the credentials that a controller listens with; None without TLS."""
    require(
        insecure != (certificates is not None),
        "Give --tls FOLDER, the folder of the controller's certificate; or, to try things on one machine, --insecure.",
    )
    if certificates is not None:
        return tls.server_credentials(certificates)
    tls.insecure_allowed(address)
    notices.print(WARNING)
    return None


def expiry(certificates: Path) -> datetime:
    """Return when the certificate in a folder expires."""
    return tls.Certificates(certificates).expires


def link(address: str, certificates: Path | None, insecure: str | None) -> Link:
    from archipel.federation.learner.link import Link

    credentials = None if certificates is None else tls.channel_credentials(certificates)
    return Link(address, credentials, insecure or "")


@contextmanager
def on_the_line(address: str) -> Iterator[None]:
    """Turn a refusal by the controller, or no answer from it, into an error message."""
    from archipel.federation.learner.link import TurnedAway

    try:
        yield
    except TurnedAway as error:
        if error.nobody_there:
            raise ConnectionError(
                f"No controller answers at {address}: is it running there, and is its certificate of the "
                f"same authority? ({error})"
            ) from error
        raise ValueError(f"The controller at {address} refused: {error}") from error

"""What the commands of a real federation share: addresses, papers, and the study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archipel.checks import require
from archipel.cli.console import told

try:
    from archipel.engines.federation import tls
except ImportError as error:
    raise ImportError("A real federation needs grpcio: pip install 'archipel[federation]'") from error

if TYPE_CHECKING:
    import grpc

    from archipel.engines.federation.link import Link

Address = Annotated[
    str, typer.Option("--controller", help="Where the controller listens, as in host:9443.", metavar="HOST:PORT")
]
Papers = Annotated[
    Path | None, typer.Option("--tls", help="Folder of one's certificate, made with `archipel ca`.", metavar="FOLDER")
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
AsJsonLines = Annotated[bool, typer.Option("--json-log", help="Log one JSON object a line.")]


def identity(papers: Path | None, insecure: str | None, address: str) -> tls.Identity:
    """Who one is to the controller."""
    require(
        (papers is None) != (insecure is None),
        "Give --tls FOLDER, one's certificate; or, to try things on one machine, --insecure learner/NAME.",
    )
    if papers is not None:
        return tls.own_identity(papers)
    assert insecure is not None
    tls.insecure_allowed(address)
    who = tls.identity_of(insecure)
    if who is None:
        raise ValueError(f"--insecure {insecure}: say whom one is, as in learner/hospital-1 or operator/alice.")
    told.print(WARNING)
    return who


def listening(address: str, papers: Path | None, insecure: bool) -> grpc.ServerCredentials | None:
    """What a controller listens with."""
    require(
        insecure != (papers is not None),
        "Give --tls FOLDER, the controller's certificate; or, to try things on one machine, --insecure.",
    )
    if papers is not None:
        return tls.server_credentials(papers)
    tls.insecure_allowed(address)
    told.print(WARNING)
    return None


def link(address: str, papers: Path | None, insecure: str | None) -> Link:
    from archipel.engines.federation.link import Link

    credentials: grpc.ChannelCredentials | None = None if papers is None else tls.channel_credentials(papers)
    return Link(address, credentials, insecure or "")

"""`archipel ca`: a small private authority, and certificates by which controller, learners and operators are known."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from archipel.cli.console import AsJson, out, print_json
from archipel.cli.folding import MARGIN, write

try:
    from archipel.federation.security import authority
except ImportError as error:
    raise ImportError("archipel ca needs cryptography: pip install '.[federation]' in the source folder") from error

Folder = Annotated[
    Path, typer.Argument(help="The authority's folder, as in ca/.", metavar="FOLDER", show_default=False)
]
Name = Annotated[
    str,
    typer.Argument(
        help="At most 64 letters, digits, dots, underscores and hyphens.", metavar="NAME", show_default=False
    ),
]
Days = Annotated[int, typer.Option(help="How long it is valid.")]
Renew = Annotated[bool, typer.Option("--renew", help="Make a new certificate for the key that is there.")]

app = typer.Typer(
    help="A small private authority for a real federation: certificates for controller, learners and operators.",
    no_args_is_help=True,
)


@app.command()
def init(folder: Folder, days: Days = 3650, renew: Renew = False) -> None:
    """Make an authority: a key that certifies, and its own certificate."""
    made = authority.create_authority(folder, days=days, renew=renew)
    show_made(made)
    if renew:
        write("The others get it when they are renewed themselves, which they are to be before the old one expires.")
    else:
        write("Whoever has this key can admit anybody: back it up, and keep it away from the machines that run. Next:")
        for line in (f"archipel ca controller {folder} --host NAME", f"archipel ca learner {folder} hospital-1"):
            write(line, MARGIN, "cyan")


@app.command()
def controller(
    folder: Folder,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or address by which learners dial it; may be repeated. Default: localhost and this machine's "
            "name, or on renewal those of the certificate before.",
            show_default=False,
        ),
    ] = None,
    days: Days = 365,
    renew: Renew = False,
) -> None:
    """Make the certificate by which learners know the controller."""
    made = authority.issue_controller(folder, host or (), days=days, renew=renew)
    show_made(made)
    write(f"It answers to {', '.join(made.hosts)}.")
    show_travel(renew)


@app.command()
def learner(folder: Folder, name: Name, days: Days = 365, renew: Renew = False) -> None:
    """Make the certificate by which the controller knows a learner."""
    show_made(authority.issue_learner(folder, name, days=days, renew=renew))
    show_travel(renew)


@app.command()
def operator(folder: Folder, name: Name, days: Days = 365, renew: Renew = False) -> None:
    """Make the certificate by which the controller knows an operator, who may look, pause, resume and withdraw."""
    show_made(authority.issue_operator(folder, name, days=days, renew=renew))
    show_travel(renew)


@app.command("list")
def list_(folder: Folder, as_json: AsJson = False) -> None:
    """List who has a certificate, and until when."""
    found = authority.issued(folder)
    if as_json:
        print_json(
            [
                {
                    "name": one.name,
                    "kind": one.kind,
                    "folder": str(one.folder),
                    "hosts": list(one.hosts),
                    "expires": one.expires.isoformat(),
                    "days_left": one.days_left(),
                }
                for one in found
            ]
        )
        return
    table = Table("who", "kind", "expires", box=None, pad_edge=False)
    table.add_column("days left", justify="right")
    for one in found:
        left = one.days_left()
        table.add_row(
            one.name,
            one.kind,
            date(one.expires),
            "expired" if left < 0 else str(left),
            style="red" if left < 0 else "yellow" if left < authority.SOON else "",
        )
    out.print(table)


# ----------------------------------------------------------------------------------------------------- on the terminal


def show_made(made: authority.Issued) -> None:
    files = sorted(path.name for path in made.folder.iterdir())
    write(f"{made.folder}: {', '.join(files)}; valid until {date(made.expires)}")


def show_travel(renewed: bool) -> None:
    if renewed:
        write("The key is the old one: bring certificate.pem and authority.pem to where it is used, by any way.")
    else:
        write("Bring this folder, in secret, to where it is used; then the key is not needed here any more.")


def date(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"

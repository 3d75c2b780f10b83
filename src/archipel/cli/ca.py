"""`archipel ca`: a small private authority, and certificates for controller, learners and operators."""

from __future__ import annotations

import getpass
import sys
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from archipel.cli.console import AsJson, out, print_json
from archipel.cli.folding import MARGIN, write
from archipel.core.checks import require

try:
    from archipel.federation.security import authority
    from archipel.federation.security.certificates import SOON
    from archipel.federation.security.key_files import Passphrase
    from archipel.federation.security.revocation import REVOKED
except ImportError as error:
    raise ImportError("archipel ca needs cryptography: pip install '.[federation]' in the source folder") from error


class Holder(StrEnum):
    """The kinds of holders of a certificate."""

    controller = "controller"
    learner = "learner"
    operator = "operator"


Folder = Annotated[
    Path, typer.Argument(help="The authority's folder, as in ca/.", metavar="FOLDER", show_default=False)
]
Name = Annotated[
    str,
    typer.Argument(
        help="At most 64 letters, digits, dots, underscores and hyphens.", metavar="NAME", show_default=False
    ),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        help="A name or address by which learners reach the controller; may be repeated. Default: localhost and this "
        "machine's name, or on renewal those of the previous certificate.",
        show_default=False,
    ),
]
Days = Annotated[int, typer.Option(help="How long it is valid, at most 730.")]
Renew = Annotated[bool, typer.Option("--renew", help="Replace the existing certificate; a new key is made too.")]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        help="File with the passphrase of the authority's key; default: ask for it.",
        metavar="FILE",
        show_default=False,
    ),
]

app = typer.Typer(
    help="Issue certificates for the controller, learners and operators of a real federation.",
    no_args_is_help=True,
)


@app.command()
def init(
    folder: Folder,
    days: Annotated[int, typer.Option(help="How long it is valid, at most 3650.")] = 3650,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make a new certificate for the authority's key, which stays.")
    ] = False,
    passphrase_file: PassphraseFile = None,
    no_passphrase: Annotated[
        bool, typer.Option("--no-passphrase", help="Leave the key unencrypted, to try things on one machine.")
    ] = False,
) -> None:
    """Create an authority: a key that signs certificates, and its own certificate."""
    require(
        not (no_passphrase and passphrase_file is not None),
        "--no-passphrase and --passphrase-file: give one of them.",
    )
    ask = asked(passphrase_file, twice=not renew)
    made = authority.create_authority(folder, days=days, renew=renew, passphrase=None if no_passphrase else ask)
    show_made(made)
    if renew:
        write("Renew the other certificates before the authority's old one expires: they bring the new one along.")
        return
    write("Anybody who has this key can admit learners: back it up, and keep it off the machines of the federation.")
    write("Next, at the site of the controller and of each learner:")
    for line in ("archipel ca request controller --host NAME", "archipel ca request learner hospital-1"):
        write(line, MARGIN, "cyan")
    write("then here, with the request.pem of each:")
    write(f"archipel ca sign {folder} request.pem", MARGIN, "cyan")


@app.command()
def request(
    kind: Annotated[Holder, typer.Argument(help="The holder of the certificate.", show_default=False)],
    name: Annotated[str, typer.Argument(help="A learner's or an operator's name.", metavar="NAME")] = "controller",
    host: Hosts = None,
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to make; default: the name.", show_default=False)
    ] = None,
) -> None:
    """Make a key on the machine that uses it, and a request for its certificate."""
    require(
        (kind is Holder.controller) == (name == "controller"),
        f"archipel ca request {kind.value} {name}: learners and operators need a name, the controller has none.",
    )
    place = folder or Path(name)
    seal = authority.make_request(place, kind.value, name, host or ())
    write(f"{place}: key.pem, request.pem")
    write(f"Fingerprint of the key: {seal}")
    write(
        f"Send {place}/request.pem to the authority; it is not secret. Tell them the fingerprint over another "
        "channel, such as "
        f"the phone. key.pem stays here. Put the certificate.pem and authority.pem that come back into {place}."
    )


@app.command()
def sign(
    folder: Folder,
    path: Annotated[
        Path, typer.Argument(help="The request file that the site has sent.", metavar="REQUEST", show_default=False)
    ],
    days: Days = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace the certificate of this name; the request has to have a new key.")
    ] = False,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            help="The fingerprint that the site told you over another channel; default: show it, and ask.",
            show_default=False,
        ),
    ] = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Sign a request: the site is known by the name in it from then on."""
    asked_for = authority.asked_for(path)
    confirm(asked_for, fingerprint)
    made = authority.sign_request(folder, path, days=days, renew=renew, passphrase=asked(passphrase_file))
    show_made(made)
    write("Send certificate.pem and authority.pem back; they are not secret. The site puts them beside its key.pem.")


@app.command()
def controller(
    folder: Folder, host: Hosts = None, days: Days = 365, renew: Renew = False, passphrase_file: PassphraseFile = None
) -> None:
    """Make the controller's key and certificate here, to try things on one machine."""
    made = authority.issue(
        folder, "controller", hosts=host or (), days=days, renew=renew, passphrase=asked(passphrase_file)
    )
    show_made(made)
    write(f"Its host names: {', '.join(made.hosts)}.")
    show_travel()


@app.command()
def learner(
    folder: Folder, name: Name, days: Days = 365, renew: Renew = False, passphrase_file: PassphraseFile = None
) -> None:
    """Make a learner's key and certificate here, to try things on one machine."""
    show_made(authority.issue(folder, "learner", name, days=days, renew=renew, passphrase=asked(passphrase_file)))
    show_travel()


@app.command()
def operator(
    folder: Folder, name: Name, days: Days = 365, renew: Renew = False, passphrase_file: PassphraseFile = None
) -> None:
    """Make an operator's key and certificate here, to try things on one machine."""
    show_made(authority.issue(folder, "operator", name, days=days, renew=renew, passphrase=asked(passphrase_file)))
    show_travel()


@app.command()
def revoke(
    folder: Folder,
    who: Annotated[str, typer.Argument(help="A name or a serial number.", metavar="NAME", show_default=False)],
) -> None:
    """Revoke the certificates of a name, or one by its serial number."""
    for one in authority.revoke(folder, who):
        write(f"revoked: {one.kind} {one.name}, serial number {one.serial}")
    write(
        f"Copy {folder / REVOKED} into the controller's state folder, or give it by --revoked. A running "
        f"controller reads it within seconds and disconnects its holders."
    )


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
                    "serial": one.serial,
                    "folder": str(one.folder),
                    "hosts": list(one.hosts),
                    "expires": one.expires.isoformat(),
                    "days_left": one.days_left(),
                    "revoked": one.revoked,
                }
                for one in found
            ]
        )
        return
    table = Table("who", "kind", "expires", box=None, pad_edge=False)
    table.add_column("days left", justify="right")
    table.add_column("serial number", no_wrap=True)
    for one in found:
        left = one.days_left()
        ends = "revoked" if one.revoked else "expired" if left < 0 else str(left)
        style = "red" if not ends.isdigit() else "yellow" if left < SOON else ""
        table.add_row(one.name, one.kind, date(one.expires), ends, one.serial, style=style)
    out.print(table)


# ----------------------------------------------------------------------------------------------------- on the terminal


def asked(file: Path | None, twice: bool = False) -> Passphrase:
    """Return a function that reads the passphrase of a key from the first line of a file, or asks for it."""

    def ask(path: Path) -> bytes:
        if file is not None:
            return file.read_text(encoding="utf-8").split("\n")[0].encode()
        require(
            sys.stdin.isatty(),
            f"{path}: an authority's key has a passphrase, and there is no terminal to ask for it. Give "
            "--passphrase-file" + (", or --no-passphrase to try things on one machine." if twice else "."),
        )
        word = getpass.getpass(f"Passphrase of {path}: ")
        require(not twice or word == getpass.getpass("Again: "), "The two passphrases differ; nothing was made.")
        return word.encode()

    return ask


def confirm(found: authority.Requested, expected: str | None) -> None:
    """Have the fingerprint compared: a request could have been replaced on its way here."""
    who = f"{found.kind} {found.name}" if found.kind != "controller" else "controller"
    if expected is not None:
        require(
            expected.replace(" ", "").lower() == found.fingerprint.replace(" ", ""),
            f"--fingerprint {expected}: the request for {who} has the fingerprint {found.fingerprint}. Do not sign it.",
        )
        return
    write(f"{who}{', host names ' + ', '.join(found.hosts) if found.hosts else ''}")
    write(f"Fingerprint of the key: {found.fingerprint}")
    require(
        sys.stdin.isatty(),
        "There is no terminal to confirm the fingerprint. Give --fingerprint, the one that the site told you.",
    )
    require(typer.confirm("Did the site tell you the same one?"), "Not signed.")


def show_made(made: authority.Issued) -> None:
    files = sorted(path.name for path in made.folder.iterdir())
    write(f"{made.folder}: {', '.join(files)}; valid until {date(made.expires)}; serial number {made.serial}")


def show_travel() -> None:
    write("Copy this folder to its machine over a secure channel, then delete it here.")


def date(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"

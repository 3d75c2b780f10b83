"""A small private authority: it says who is who in one federation, by certificates of its own.

    ca/authority/    certificate.pem and key.pem: who has this key can admit anybody
    ca/controller/   certificate.pem, key.pem and authority.pem: what --tls of a controller reads
    ca/hospital-1/   the same for a learner
    ca/alice/        the same for an operator

Rule 1: who somebody is stands in the certificate, as a URI such as archipel:learner/hospital-1.
Rule 2: only the controller's certificate serves and the others only call, so that a learner's key cannot pose as
the controller.
Rule 3: a folder is there whole or not at all, and no key is ever replaced: renewal makes a new certificate for the
old key, so that only certificate.pem has to travel, which is no secret.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from archipel.core.checks import require
from archipel.storage.atomic_files import fsync_directory

CERTIFICATE, KEY, AUTHORITY = "certificate.pem", "key.pem", "authority.pem"
SCHEME = "archipel:"

YEAR = 365
LONGEST = 100 * YEAR
SOON = 30
"""Days before the end at which one is told to renew."""
SLACK = timedelta(hours=1)
"""Certificates are valid from this long before they were made: the clocks of two machines differ."""

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
RESERVED = ("authority", "controller", "home")
HOST = re.compile(r"(?!.{254})[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*")

Kind = Literal["authority", "controller", "learner", "operator"]


@dataclass(frozen=True)
class Issued:
    """A certificate of this authority, and where it lies."""

    kind: Kind
    name: str
    folder: Path
    hosts: tuple[str, ...]
    """Names and addresses under which the controller may be dialled."""
    expires: datetime

    def days_left(self) -> int:
        """Whole days; below 0 if it has expired."""
        return (self.expires - datetime.now(UTC)) // timedelta(days=1)


# -------------------------------------------------------------------------------------------------------- what one asks


def create_authority(folder: Path, *, days: int = 10 * YEAR, renew: bool = False, at: datetime | None = None) -> Issued:
    """Make a new authority in a folder, or a new certificate for the key of the one that is there."""
    place = folder / "authority"
    if renew:
        _, key = read_authority(folder)
        replace_file(place / CERTIFICATE, pem(authority_certificate(key, days, at)))
    else:
        refuse_what_is_there(place)
        key = new_key()
        make_folder(place, {CERTIFICATE: pem(authority_certificate(key, days, at)), KEY: pem(key)})
    return described(place)


def issue_controller(
    folder: Path,
    hosts: Sequence[str] = (),
    *,
    days: int = YEAR,
    renew: bool = False,
    at: datetime | None = None,
) -> Issued:
    """A certificate for the controller, valid for the names and addresses under which learners dial it.

    Without hosts it keeps those it has when it is renewed, and is otherwise for this machine.
    """
    if not hosts:
        hosts = described(present(folder / "controller")).hosts if renew else this_machine()
    return issue(folder, "controller", "controller", hosts, days=days, renew=renew, at=at)


def issue_learner(
    folder: Path, name: str, *, days: int = YEAR, renew: bool = False, at: datetime | None = None
) -> Issued:
    """A certificate by which a learner is known as `name`."""
    check_name("learner", name)
    return issue(folder, "learner", name, days=days, renew=renew, at=at)


def issue_operator(
    folder: Path, name: str, *, days: int = YEAR, renew: bool = False, at: datetime | None = None
) -> Issued:
    """A certificate by which a person who looks after the federation is known as `name`."""
    check_name("operator", name)
    return issue(folder, "operator", name, days=days, renew=renew, at=at)


def issued(folder: Path) -> list[Issued]:
    """All certificates below a folder: the authority's, the controller's, then by name."""
    authority_file(folder, CERTIFICATE)
    found = [described(place) for place in folder.iterdir() if place.name[0] != "." and (place / CERTIFICATE).exists()]
    return sorted(found, key=lambda one: (one.kind != "authority", one.kind != "controller", one.name))


# ----------------------------------------------------------------------------------------------------------- who is who


def check_name(kind: str, name: str) -> None:
    """Names become folders and parts of URIs."""
    require(
        NAME.fullmatch(name) is not None,
        f"{kind} {name!r}: a name should be 1 to 64 letters (A to Z), digits, dots, underscores and hyphens, and not "
        f"begin with a dot.",
    )
    require(
        name.lower() not in RESERVED,
        f"{kind} {name!r}: {', '.join(RESERVED)} mean something else here. Give it another name.",
    )


def title(kind: str, name: str) -> str:
    """How a certificate's URI goes on after the scheme; there is but one controller, which needs no name."""
    return "controller" if kind == "controller" else f"{kind}/{name}"


def titles(uris: Sequence[str]) -> list[str]:
    """What those of our own scheme say."""
    return [uri.removeprefix(SCHEME) for uri in uris if uri.startswith(SCHEME)]


def title_of(certificate: x509.Certificate) -> str | None:
    """Whom a certificate is for, if it is one of ours and says so once."""
    found = titles(alternative_names(certificate).get_values_for_type(x509.UniformResourceIdentifier))
    return found[0] if len(found) == 1 else None


def command_for(who: str) -> str:
    """The command that makes or renews the certificate of a title such as learner/hospital-1."""
    kind, _, name = who.partition("/")
    return f"archipel ca {kind} CA {name}".rstrip()


# --------------------------------------------------------------------------------------------------------- certificates


def issue(
    folder: Path,
    kind: Literal["controller", "learner", "operator"],
    name: str,
    hosts: Sequence[str] = (),
    *,
    days: int,
    renew: bool,
    at: datetime | None,
) -> Issued:
    authority, signer = read_authority(folder)
    start, end = validity(days, at)
    left = (authority.not_valid_after_utc - start - SLACK) // timedelta(days=1)
    require(
        end <= authority.not_valid_after_utc,
        f"{kind} {name}: {days} days are more than the {max(left, 0)} that its authority has left. Renew that first: "
        f"archipel ca init {folder} --renew" + (f". Or give --days {left}." if left > 0 else "."),
    )
    place = folder / name
    if renew:
        before = read_certificate(present(place) / CERTIFICATE)
        require(
            title_of(before) == title(kind, name),
            f"{place}: is the certificate of {title_of(before)}, not of {title(kind, name)}. Give the other another "
            f"name.",
        )
        public = before.public_key()
    else:
        refuse_what_is_there(place)
        key = new_key()
        public = key.public_key()
    names = [x509.UniformResourceIdentifier(SCHEME + title(kind, name)), *map(host_name, dict.fromkeys(hosts))]
    made = sign(authority, signer, public, kind, names, start, end)
    if renew:
        # the authority may have a new certificate too; whoever crashes in between can renew again
        replace_file(place / AUTHORITY, pem(authority))
        replace_file(place / CERTIFICATE, pem(made))
    else:
        make_folder(place, {CERTIFICATE: pem(made), KEY: pem(key), AUTHORITY: pem(authority)})
    return described(place)


def sign(
    authority: x509.Certificate,
    signer: ec.EllipticCurvePrivateKey,
    public: CertificatePublicKeyTypes,
    kind: Kind,
    names: Sequence[x509.GeneralName],
    start: datetime,
    end: datetime,
) -> x509.Certificate:
    """A certificate that can do one thing: serve, if it is the controller's, or call."""
    usage = ExtendedKeyUsageOID.SERVER_AUTH if kind == "controller" else ExtendedKeyUsageOID.CLIENT_AUTH
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = blank(authority.subject, subject(kind), public, start, end)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(key_usage(digital_signature=True), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
    )
    return builder.sign(signer, SHA256())


def authority_certificate(key: ec.EllipticCurvePrivateKey, days: int, at: datetime | None) -> x509.Certificate:
    """Signed by itself; it certifies, but makes no further authorities."""
    start, end = validity(days, at)
    builder = blank(subject("authority"), subject("authority"), key.public_key(), start, end)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(key_usage(key_cert_sign=True, crl_sign=True), critical=True)
    return builder.sign(key, SHA256())


def blank(
    issuer: x509.Name, subject: x509.Name, public: CertificatePublicKeyTypes, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def subject(kind: Kind) -> x509.Name:
    """For people to read: there is a blank in it, so that no client takes it for the name of a host."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"archipel {kind}")])


def key_usage(digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def validity(days: int, at: datetime | None) -> tuple[datetime, datetime]:
    require(1 <= days <= LONGEST, f"archipel ca: --days should be 1 to {LONGEST}, got {days}.")
    made = (at or datetime.now(UTC)).replace(microsecond=0)  # certificates know no less
    return made - SLACK, made + timedelta(days=days)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def host_name(host: str) -> x509.GeneralName:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        require(
            HOST.fullmatch(host) is not None,
            f"--host {host}: should be a name or an address that learners dial, without a port, such as "
            f"fl.example.org or 10.0.0.5.",
        )
        return x509.DNSName(host)
    require(
        not address.is_unspecified,
        f"--host {host}: means every address of a machine, but learners dial one. Give that, or its name.",
    )
    return x509.IPAddress(address)


def this_machine() -> tuple[str, ...]:
    return ("localhost", "127.0.0.1", "::1", socket.gethostname())


# -------------------------------------------------------------------------------------------------------------- reading


def read_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate = read_certificate(authority_file(folder, CERTIFICATE))
    key = read_key(authority_file(folder, KEY))
    check_pair(certificate, key, folder / "authority")
    return certificate, key


def authority_file(folder: Path, name: str) -> Path:
    path = folder / "authority" / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: has no authority ({path} is not there). Make one: archipel ca init {folder}"
        )
    return path


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise ValueError(
            f"{path}: is no certificate, or not a whole one. Copy it again from where it was made."
        ) from None


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a passphrase
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(
            f"{path}: is no key of `archipel ca` (elliptic curve, no passphrase), or not a whole one. Copy it again "
            f"from where it was made."
        )
    return key


def check_pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, place: Path) -> None:
    require(
        certificate.public_key() == key.public_key(),
        f"{place}: {KEY} does not fit {CERTIFICATE}: they are of two different makings. Copy both again from where "
        f"they were made.",
    )


def described(place: Path) -> Issued:
    certificate = read_certificate(place / CERTIFICATE)
    expires = certificate.not_valid_after_utc
    if place.name == "authority":
        return Issued("authority", "authority", place, (), expires)
    who = title_of(certificate)
    kind, _, name = (who or "").partition("/")
    require(
        kind in ("controller", "learner", "operator"),
        f"{place / CERTIFICATE}: does not say whom it is for; it is not from `archipel ca`. Take it out of here.",
    )
    names = alternative_names(certificate)
    hosts = (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))
    return Issued(kind, name or kind, place, hosts, expires)  # type: ignore[arg-type]  # just required


def alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):  # ValueError: an extension makes no sense
        return x509.SubjectAlternativeName([])


# -------------------------------------------------------------------------------------------------------------- writing


def present(place: Path) -> Path:
    """The folder of a certificate that is to be renewed."""
    if not (place / CERTIFICATE).is_file():
        raise FileNotFoundError(f"{place}: there is no certificate to renew. Leave out --renew to make the first one.")
    return place


def refuse_what_is_there(place: Path) -> None:
    if place.exists():
        raise FileExistsError(
            f"{place}: is there already, and nothing in it was touched. Give --renew for a new certificate to the same "
            f"key, or move the folder away for a new key."
        )


def make_folder(place: Path, files: Mapping[str, bytes]) -> None:
    """All files or none: they are written beside and appear by one renaming, which never replaces a folder."""
    if place.parent.exists() and not place.parent.is_dir():
        raise NotADirectoryError(f"{place.parent}: is a file, not a folder. Give another name.")
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))  # its mode is 0700
    try:
        for name, content in files.items():
            write_durably(unfinished / name, content)
        fsync_directory(unfinished)
        try:
            os.rename(unfinished, place)
        except OSError:
            refuse_what_is_there(place)  # somebody else has made it meanwhile
            raise
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    fsync_directory(place.parent)


def replace_file(path: Path, content: bytes) -> None:
    """The new file whole or the old one."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)  # of a crash
    write_durably(unfinished, content)
    os.replace(unfinished, path)
    fsync_directory(path.parent)


def write_durably(path: Path, content: bytes) -> None:
    """A new file that is on disk before anything is said about it; nobody else can ever open a key."""
    mode = 0o600 if path.name == KEY else 0o644
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def pem(made: x509.Certificate | ec.EllipticCurvePrivateKey) -> bytes:
    if isinstance(made, x509.Certificate):
        return made.public_bytes(Encoding.PEM)
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

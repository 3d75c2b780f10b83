"""A small private authority: it certifies who is who in one federation.

    ca/authority/    certificate.pem and key.pem: whoever has this key can admit anybody
    ca/issued/       every certificate that it has signed, by serial number
    ca/revoked.txt   serial numbers of certificates that count no longer
    ca/hospital-1/   certificate.pem and authority.pem, which the site puts beside its key.pem

A site makes its own key (`request`), and the authority signs (`sign_request`): the key never leaves its machine. To try
things on one machine, the authority makes keys too (`issue`), and then the folder holds all that --tls reads.
Whoever renews gets a new key; the authority itself keeps its own, for all certificates hang on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from archipel.core.checks import require
from archipel.federation.security.certificates import (
    LONGEST,
    SLACK,
    YEAR,
    PublicKey,
    authority_certificate,
    fingerprint,
    general_names,
    holder_of,
    hosts_of,
    new_key,
    request,
    serial_of,
    sign,
    this_machine,
    title_of,
    validity,
)
from archipel.federation.security.key_files import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    REQUEST,
    Passphrase,
    check_pair,
    key_pem,
    make_folder,
    no_passphrase,
    pem,
    read_certificate,
    read_key,
    read_request,
    refuse_what_is_there,
    replace_file,
    write_durably,
)
from archipel.federation.security.names import Kind, check_name, title
from archipel.federation.security.revocation import REVOKED, read_serials, written_serials

ISSUED = "issued"
SHORTEST_PASSPHRASE = 12


@dataclass(frozen=True)
class Issued:
    """A certificate of this authority."""

    kind: Literal["authority", "controller", "learner", "operator"]
    name: str
    folder: Path
    """Where it lies; an earlier one lies among those issued."""
    serial: str
    hosts: tuple[str, ...]
    """Names and addresses under which the controller may be dialled."""
    expires: datetime
    revoked: bool = False

    def days_left(self) -> int:
        """Whole days; below 0 if it has expired."""
        return (self.expires - datetime.now(UTC)) // timedelta(days=1)


# -------------------------------------------------------------------------------------------------------- the authority


def create_authority(
    folder: Path,
    *,
    days: int = 10 * YEAR,
    renew: bool = False,
    passphrase: Passphrase | None = None,
    at: datetime | None = None,
) -> Issued:
    """Make a new authority in a folder, or a new certificate for the key of the one that is there.

    Without a passphrase the key lies on the disk as it is.
    """
    place = folder / "authority"
    if renew:
        _, key = read_authority(folder, passphrase or no_passphrase)
        replace_file(place / CERTIFICATE, pem(authority_certificate(key, days, at)))
    else:
        refuse_what_is_there(place)
        made = authority_certificate(key := new_key(), days, at)
        secret = None if passphrase is None else passphrase(place / KEY)
        require(
            secret is None or len(secret) >= SHORTEST_PASSPHRASE,
            f"{place / KEY}: the passphrase should have at least {SHORTEST_PASSPHRASE} characters.",
        )
        make_folder(place, {CERTIFICATE: pem(made), KEY: key_pem(key, secret)})
    return described(place)


def issued(folder: Path) -> list[Issued]:
    """List all certificates of an authority: its own, the controller's, then by name, the latest first."""
    own = described(authority_file(folder, CERTIFICATE).parent)
    revoked = revoked_by(folder)
    places = [place for place in folder.iterdir() if place.name[0] != "." and (place / CERTIFICATE).exists()]
    found = {one.serial: one for place in places if place.name != "authority" for one in [described(place)]}
    for certificate in _signed(folder):
        found.setdefault(serial_of(certificate), _issued(certificate, folder / ISSUED))
    listed = [Issued(**{**vars(one), "revoked": serial in revoked}) for serial, one in found.items()]
    listed.sort(key=lambda one: one.expires, reverse=True)
    return [own, *sorted(listed, key=lambda one: (one.kind != "controller", one.name))]


def revoke(folder: Path, who: str) -> list[Issued]:
    """Revoke the certificates of a name that have not expired, or the one with a serial number; return them."""
    known = [one for one in issued(folder) if one.kind != "authority"]
    found = [one for one in known if (one.name == who and one.days_left() >= 0) or one.serial == who.lower()]
    require(
        bool(found),
        f"{folder}: has issued no valid certificate to {who!r}, and none with that serial number. "
        f"archipel ca list {folder} shows what it has issued.",
    )
    revoked = revoked_by(folder) | {one.serial for one in found}
    replace_file(folder / REVOKED, written_serials({one.serial: one.name for one in known}, revoked))
    return found


def revoked_by(folder: Path) -> frozenset[str]:
    return read_serials(folder / REVOKED) if (folder / REVOKED).exists() else frozenset()


# ------------------------------------------------------------------------------------------------ requests and signing


def make_request(folder: Path, kind: Kind, name: str, hosts: Sequence[str] = ()) -> str:
    """Make a key and a request for a certificate in a new folder, at the site; return the key's fingerprint."""
    if kind != "controller":
        check_name(kind, name)
        require(not hosts, f"--host is for the controller's certificate, and this is for {title(kind, name)}.")
    elif not hosts:
        hosts = this_machine()
    if folder.exists():
        raise FileExistsError(f"{folder}: exists already; nothing in it was changed. Give --out another folder.")
    key = new_key()
    make_folder(folder, {KEY: key_pem(key), REQUEST: pem(request(key, kind, name, hosts))})
    return fingerprint(key.public_key())


@dataclass(frozen=True)
class Requested:
    """What a request asks for, to be looked at before it is signed."""

    kind: Kind
    name: str
    hosts: tuple[str, ...]
    key: PublicKey

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key)


def asked_for(path: Path) -> Requested:
    """Read a request and refuse one that no certificate can be made of."""
    made = read_request(path)
    who, key = holder_of(made), made.public_key()
    if who is None:
        raise ValueError(f"{path}: does not say whom it is for. Make it at the site: archipel ca request")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError(f"{path}: its key should be on the curve P-256. Make it at the site: archipel ca request")
    kind, name = who
    hosts = hosts_of(made)
    require(kind == "controller" or not hosts, f"{path}: asks for host names {', '.join(hosts)}, as {kind} {name}.")
    require(
        kind != "controller" or bool(hosts), f"{path}: the controller needs a host name: archipel ca request --host"
    )
    return Requested(kind, name, hosts, key)


def sign_request(
    folder: Path,
    path: Path,
    *,
    days: int = YEAR,
    renew: bool = False,
    passphrase: Passphrase = no_passphrase,
    at: datetime | None = None,
) -> Issued:
    """Sign a request; the certificate and the authority's are put into a folder of its name."""
    asked = asked_for(path)
    place = folder / asked.name
    if renew:
        before = read_certificate(_present(place, asked.kind) / CERTIFICATE)
        require(
            before.public_key() != asked.key,
            f"{path}: is for the key of the certificate that is to be renewed. Renewing takes a new key: make a new "
            f"request at the site.",
        )
    else:
        refuse_what_is_there(place)
    authority, made = _signed_by(folder, asked.key, asked.kind, asked.name, asked.hosts, days, passphrase, at)
    make_folder(place, {CERTIFICATE: pem(made), AUTHORITY: pem(authority)}, replace=renew)
    return described(place)


def issue(
    folder: Path,
    kind: Kind,
    name: str = "controller",
    hosts: Sequence[str] = (),
    *,
    days: int = YEAR,
    renew: bool = False,
    passphrase: Passphrase = no_passphrase,
    at: datetime | None = None,
) -> Issued:
    """Make a key and its certificate together, in a folder of that name at the authority.

    A controller without hosts keeps those it has when it is renewed, and is otherwise for this machine.
    """
    if kind != "controller":
        check_name(kind, name)
    place = folder / name
    if renew:
        hosts = hosts or described(_present(place, kind)).hosts
    else:
        refuse_what_is_there(place)
    if kind == "controller":
        hosts = hosts or this_machine()
    key = new_key()
    authority, made = _signed_by(folder, key.public_key(), kind, name, hosts, days, passphrase, at)
    make_folder(place, {CERTIFICATE: pem(made), KEY: key_pem(key), AUTHORITY: pem(authority)}, replace=renew)
    return described(place)


def _signed_by(
    folder: Path,
    key: PublicKey,
    kind: Kind,
    name: str,
    hosts: Sequence[str],
    days: int,
    passphrase: Passphrase,
    at: datetime | None,
) -> tuple[x509.Certificate, x509.Certificate]:
    """Return the authority's certificate and a new one, which is on the list of those issued."""
    names = general_names(kind, name, hosts)
    start, end = validity(days, LONGEST, at)
    authority, signer = read_authority(folder, passphrase)
    left = (authority.not_valid_after_utc - start - SLACK) // timedelta(days=1)
    require(
        end <= authority.not_valid_after_utc,
        f"{kind} {name}: {days} days are more than the {max(left, 0)} that its authority has left. Renew that first: "
        f"archipel ca init {folder} --renew" + (f". Or give --days {left}." if left > 0 else "."),
    )
    made = sign(authority, signer, key, kind, names, start, end)
    (folder / ISSUED).mkdir(mode=0o700, exist_ok=True)
    write_durably(folder / ISSUED / f"{serial_of(made)}.pem", pem(made))
    return authority, made


# -------------------------------------------------------------------------------------------------------------- reading


def read_authority(folder: Path, passphrase: Passphrase) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate = read_certificate(authority_file(folder, CERTIFICATE))
    key = read_key(authority_file(folder, KEY), passphrase)
    check_pair(certificate, key, folder / "authority")
    return certificate, key


def authority_file(folder: Path, name: str) -> Path:
    path = folder / "authority" / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: has no authority ({path} is not there). Make one: archipel ca init {folder}"
        )
    return path


def described(place: Path) -> Issued:
    """Describe the certificate in a folder."""
    certificate = read_certificate(place / CERTIFICATE)
    if place.name == "authority":
        expires = certificate.not_valid_after_utc
        return Issued("authority", "authority", place, serial_of(certificate), (), expires)
    return _issued(certificate, place)


def _issued(certificate: x509.Certificate, place: Path) -> Issued:
    who = holder_of(certificate)
    if who is None:
        raise ValueError(f"{place}: holds a certificate that does not say whom it is for. Take it out of here.")
    kind, name = who
    return Issued(kind, name, place, serial_of(certificate), hosts_of(certificate), certificate.not_valid_after_utc)


def _signed(folder: Path) -> Iterator[x509.Certificate]:
    """Return every certificate that the authority has signed."""
    for path in sorted((folder / ISSUED).glob("*.pem")):
        yield read_certificate(path)


def _present(place: Path, kind: Kind) -> Path:
    """Return the folder of a certificate that is to be renewed."""
    if not (place / CERTIFICATE).is_file():
        raise FileNotFoundError(f"{place}: there is no certificate to renew. Leave out --renew to make the first one.")
    before = read_certificate(place / CERTIFICATE)
    require(
        title_of(before) == title(kind, place.name),
        f"{place}: is the certificate of {title_of(before)}, not of {title(kind, place.name)}. Choose another name.",
    )
    return place

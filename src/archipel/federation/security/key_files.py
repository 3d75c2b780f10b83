"""Keys, certificates and requests as files.

A folder appears whole or not at all. Only the owner can read a key. The authority's key may have a passphrase.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from archipel.core.checks import require
from archipel.storage.atomic_files import fsync_directory

CERTIFICATE, KEY, AUTHORITY, REQUEST = "certificate.pem", "key.pem", "authority.pem", "request.pem"

Passphrase: TypeAlias = Callable[[Path], bytes]
"""Returns the passphrase of a key file; called only if the key has one."""


def no_passphrase(path: Path) -> bytes:
    raise ValueError(f"{path}: the key has a passphrase, and none was given.")


# ------------------------------------------------------------------------------------------------------------- reading


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (ValueError, x509.InvalidVersion):
        raise ValueError(
            f"{path}: is no certificate, or not a whole one. Copy it again from where it was made."
        ) from None


def read_request(path: Path) -> x509.CertificateSigningRequest:
    """Return a request whose signature shows that whoever made it has the key."""
    try:
        request = x509.load_pem_x509_csr(path.read_bytes())
        valid = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise ValueError(
            f"{path}: is no request for a certificate, or not a whole one. Make it at the site: archipel ca request"
        ) from None
    require(valid, f"{path}: its signature does not fit its key, so it was changed. Have it sent again.")
    return request


def read_key(path: Path, passphrase: Passphrase = no_passphrase) -> ec.EllipticCurvePrivateKey:
    content = path.read_bytes()
    key: object
    try:
        key = load_pem_private_key(content, password=None)
    except TypeError:  # it has a passphrase
        key = _unlocked(path, content, passphrase(path))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(
            f"{path}: is no key of `archipel ca` (elliptic curve), or not a whole one. Copy it again from where it was "
            f"made."
        )
    return key


def _unlocked(path: Path, content: bytes, passphrase: bytes) -> object:
    try:
        return load_pem_private_key(content, password=passphrase)
    except ValueError:
        raise ValueError(f"{path}: the passphrase is wrong.") from None


def check_pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, place: Path) -> None:
    require(
        certificate.public_key() == key.public_key(),
        f"{place}: {KEY} and {CERTIFICATE} do not match. Copy both again from where they were made.",
    )


# ------------------------------------------------------------------------------------------------------------- writing


def pem(made: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return made.public_bytes(Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey, passphrase: bytes | None = None) -> bytes:
    lock: KeySerializationEncryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock)


def refuse_what_is_there(place: Path) -> None:
    if place.exists():
        raise FileExistsError(f"{place}: exists already; nothing in it was changed. Choose another name, or --renew.")


def make_folder(place: Path, files: Mapping[str, bytes], *, replace: bool = False) -> None:
    """Write a folder with these files, under its name only when it is complete; replace: in place of the one there."""
    if place.parent.exists() and not place.parent.is_dir():
        raise NotADirectoryError(f"{place.parent}: is a file, not a folder. Give another name.")
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))  # its mode is 0700
    try:
        for name, content in files.items():
            write_durably(unfinished / name, content)
        fsync_directory(unfinished)
        if replace:
            _remove(place)
        try:
            os.rename(unfinished, place)
        except OSError:
            refuse_what_is_there(place)  # somebody else has made it meanwhile
            raise
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    fsync_directory(place.parent)


def _remove(place: Path) -> None:
    """Remove a folder by one renaming, so that no half of it is ever there."""
    gone = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    os.rename(place, gone)  # it may replace an empty folder
    shutil.rmtree(gone)


def replace_file(path: Path, content: bytes) -> None:
    """Write the new file whole, or keep the old one."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)  # of a crash
    write_durably(unfinished, content)
    os.replace(unfinished, path)
    fsync_directory(path.parent)


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file and fsync it; nobody else can ever open a key."""
    mode = 0o600 if KEY in path.name else 0o644
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())

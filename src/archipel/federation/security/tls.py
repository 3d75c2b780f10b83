"""Mutual TLS: which certificate one shows, and what one dials and listens with.

What a folder of certificates lacks is said before anything is dialled or listened on.
"""

from __future__ import annotations

import ipaddress
import re
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from archipel.core.checks import ArchipelWarning, require
from archipel.federation.security.certificates import SOON, title_of
from archipel.federation.security.key_files import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    REQUEST,
    check_pair,
    read_certificate,
    read_key,
)
from archipel.federation.security.names import Identity, identity_of, request_command

ServerCredentials: TypeAlias = grpc.ServerCredentials


class Certificates:
    """The three files of a --tls folder, found whole, fitting together and valid now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (CERTIFICATE, KEY, AUTHORITY):
            if not (folder / name).is_file():
                raise FileNotFoundError(_missing(folder, name))
        certificate, authority = read_certificate(folder / CERTIFICATE), read_certificate(folder / AUTHORITY)
        check_pair(certificate, read_key(folder / KEY), folder)
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            raise ValueError(
                f"{folder}: {CERTIFICATE} is not from the authority in {AUTHORITY}. Copy both again from where they "
                f"were made."
            ) from None
        self.title = title_of(certificate)
        """Whom they are for: controller, learner/hospital-1 or operator/alice."""
        again = f"Make a new key ({request_command(self.title or 'learner/NAME')}) and have the authority sign it"
        check_dates(folder / AUTHORITY, authority, f"Have the authority renewed (archipel ca init CA --renew). {again}")
        check_dates(folder / CERTIFICATE, certificate, again)
        self.expires = min(certificate.not_valid_after_utc, authority.not_valid_after_utc)
        if (folder / KEY).stat().st_mode & 0o077:
            warn(f"{folder / KEY}: can be read by others on this machine. Close it: chmod 600 {folder / KEY}")
        self.certificate, self.key, self.authority = (
            (folder / name).read_bytes() for name in (CERTIFICATE, KEY, AUTHORITY)
        )


def _missing(folder: Path, name: str) -> str:
    if folder.is_dir() and (folder / REQUEST).is_file() and (folder / KEY).is_file():
        return (
            f"--tls {folder}: has no {name}. Have the authority sign {REQUEST} (archipel ca sign CA {REQUEST}) and put "
            f"the {CERTIFICATE} and {AUTHORITY} that it gives you here."
        )
    what = f"has no {name}" if folder.is_dir() else "is no folder"
    return (
        f"--tls {folder}: {what}. It should hold {KEY}, as `archipel ca request` makes it, and {CERTIFICATE} and "
        f"{AUTHORITY}, as `archipel ca sign` does."
    )


def check_dates(path: Path, certificate: x509.Certificate, way_out: str) -> None:
    now, start, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    require(
        start <= now,
        f"{path}: is valid from {start:%Y-%m-%d %H:%M} UTC, and here it is {now:%Y-%m-%d %H:%M}. Set the clock.",
    )
    require(now <= end, f"{path}: expired on {end:%Y-%m-%d %H:%M} UTC, and here it is {now:%Y-%m-%d %H:%M}. {way_out}.")
    left = (end - now) // timedelta(days=1)
    if left < SOON:
        warn(f"{path}: expires on {end:%Y-%m-%d}, in {left} day{'s' * (left != 1)}. {way_out}.")


def warn(text: str) -> None:
    warnings.warn(text, ArchipelWarning, stacklevel=2)


def own_identity(folder: Path) -> Identity:
    """Whom the certificate in a folder says one is: a learner or an operator."""
    return caller_in(Certificates(folder))


def caller_in(certificates: Certificates) -> Identity:
    identity = None if certificates.title is None else identity_of(certificates.title)
    if identity is None:
        raise ValueError(
            f"--tls {certificates.folder}: is the certificate of {certificates.title or 'nobody'}; here it takes "
            "one of a learner "
            f"or an operator. Make it: archipel ca request learner NAME"
        )
    return identity


def server_credentials(folder: Path) -> grpc.ServerCredentials:
    """Return the credentials of a controller: callers must show a certificate of the same authority."""
    certificates = Certificates(folder)
    require(
        certificates.title == "controller",
        f"--tls {folder}: is the certificate of {certificates.title or 'nobody'}; a controller needs its own. Make it: "
        f"archipel ca request controller",
    )
    return grpc.ssl_server_credentials(
        [(certificates.key, certificates.certificate)], certificates.authority, require_client_auth=True
    )


def channel_credentials(folder: Path) -> grpc.ChannelCredentials:
    """Return the credentials of a learner or an operator, who trust only a controller of the same authority."""
    certificates = Certificates(folder)
    caller_in(certificates)
    return grpc.ssl_channel_credentials(certificates.authority, certificates.key, certificates.certificate)


def insecure_allowed(address: str) -> None:
    """Refuse an address that reaches beyond this machine: without TLS anybody could read and pose as anybody."""
    # an IPv6 address without brackets is left out: gRPC would take its port for a part of it
    found = re.fullmatch(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^\[\]:]+))(?::\d+)?", address)
    host = (found["six"] or found["host"]).lower() if found else ""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    require(
        loopback,
        f"{address}: without TLS only this machine itself may be spoken to (localhost, 127.0.0.1 or [::1]). Make "
        f"certificates with `archipel ca` and give --tls.",
    )

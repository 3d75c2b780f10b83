"""Certificates and requests for them, in memory.

Rule 1: who somebody is stands in the certificate, as one URI such as archipel:learner/hospital-1.
Rule 2: only the controller's certificate serves and the others only call, so that a learner's key cannot pose as the
controller.
Rule 3: a request says what is asked for; the certificate is made anew from it, and nothing else is copied.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from archipel.core.checks import require
from archipel.federation.security.names import SCHEME, Kind, holder, title, titles

YEAR = 365
LONGEST = 2 * YEAR
"""Days that a certificate is valid at most."""
LONGEST_AUTHORITY = 10 * YEAR
"""Days that an authority is valid at most."""
SOON = 30
"""Days before the end at which one is told to renew."""
SLACK = timedelta(hours=1)
"""Certificates are valid from this long before they were made: the clocks of two machines differ."""
HOST = re.compile(r"(?!.{254})[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*")

PublicKey: TypeAlias = ec.EllipticCurvePublicKey


# ----------------------------------------------------------------------------------------------------------- what is in


def title_of(made: x509.Certificate | x509.CertificateSigningRequest) -> str | None:
    """Return whom it is for; None unless it has exactly one URI of Archipel's."""
    found = titles(alternative_names(made).get_values_for_type(x509.UniformResourceIdentifier))
    return found[0] if len(found) == 1 else None


def holder_of(made: x509.Certificate | x509.CertificateSigningRequest) -> tuple[Kind, str] | None:
    """Return kind and name of whom it is for."""
    found = title_of(made)
    return None if found is None else holder(found)


def hosts_of(made: x509.Certificate | x509.CertificateSigningRequest) -> tuple[str, ...]:
    """Return the names and addresses that it may be dialled by."""
    names = alternative_names(made)
    return (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))


def alternative_names(made: x509.Certificate | x509.CertificateSigningRequest) -> x509.SubjectAlternativeName:
    try:
        return made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        # ValueError: an extension makes no sense
        return x509.SubjectAlternativeName([])


def serial_of(certificate: x509.Certificate) -> str:
    """Return the serial number as it is listed and revoked: in hexadecimal."""
    return f"{certificate.serial_number:x}"


def fingerprint(key: object) -> str:
    """Return the SHA-256 of a public key, in groups that two people can compare."""
    assert isinstance(key, ec.EllipticCurvePublicKey)
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    return " ".join(digest[place : place + 4] for place in range(0, 32, 4))


# --------------------------------------------------------------------------------------------------------------- making


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def request(
    key: ec.EllipticCurvePrivateKey, kind: Kind, name: str, hosts: Sequence[str]
) -> x509.CertificateSigningRequest:
    """Ask for a certificate for this key."""
    names = x509.SubjectAlternativeName(general_names(kind, name, hosts))
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject(kind)).add_extension(names, critical=False)
    return builder.sign(key, SHA256())


def sign(
    authority: x509.Certificate,
    signer: ec.EllipticCurvePrivateKey,
    public: PublicKey,
    kind: Kind,
    names: Sequence[x509.GeneralName],
    start: datetime,
    end: datetime,
) -> x509.Certificate:
    """Make a certificate that can do one thing: serve, if it is the controller's, or call."""
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
    """Make the authority's certificate, signed by itself; it certifies, but makes no further authorities."""
    start, end = validity(days, LONGEST_AUTHORITY, at)
    builder = blank(subject("authority"), subject("authority"), key.public_key(), start, end)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(key_usage(key_cert_sign=True, crl_sign=True), critical=True)
    return builder.sign(key, SHA256())


def blank(
    issuer: x509.Name, subject: x509.Name, public: PublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(public)
        .serial_number(1 << 63 | int.from_bytes(os.urandom(8)))  # 16 hexadecimal digits, which people can compare
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def subject(kind: str) -> x509.Name:
    """Return the subject, for people to read: no client takes it for a host name, since there is a blank in it."""
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


def validity(days: int, longest: int, at: datetime | None) -> tuple[datetime, datetime]:
    require(1 <= days <= longest, f"archipel ca: --days should be 1 to {longest}, got {days}.")
    made = (at or datetime.now(UTC)).replace(microsecond=0)  # certificates know no less
    return made - SLACK, made + timedelta(days=days)


def general_names(kind: Kind, name: str, hosts: Sequence[str]) -> list[x509.GeneralName]:
    return [x509.UniformResourceIdentifier(SCHEME + title(kind, name)), *map(host_name, dict.fromkeys(hosts))]


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

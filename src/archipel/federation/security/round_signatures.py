"""Signatures of learners on their keys of a secure sum, checked against the federation's authority.

Law: a controller cannot make one. A certificate counts if the authority has signed it for a learner on the list, and
it is neither expired nor revoked.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from archipel.federation.security.certificates import holder_of, serial_of
from archipel.federation.security.key_files import AUTHORITY, CERTIFICATE, KEY, read_certificate, read_key
from archipel.federation.security.revocation import RevocationList
from archipel.privacy.secure_sum.sum_messages import RoundKeys

SCHEME = ec.ECDSA(SHA256())


class RoundSignatures:
    """Sign with a learner's key, and check others' signatures."""

    def __init__(self, folder: Path, listed: Collection[str] = (), revoked: RevocationList | None = None) -> None:
        """folder: with certificate, key and authority; listed: names of learners that count, all if there are none."""
        self._authority = read_certificate(folder / AUTHORITY)
        self._certificate = read_certificate(folder / CERTIFICATE).public_bytes(Encoding.DER)
        self._key = read_key(folder / KEY)
        self._listed = frozenset(listed)
        self._revoked = revoked or RevocationList()
        self._known = lru_cache(maxsize=4096)(self._checked)

    def sign(self, statement: bytes) -> tuple[bytes, bytes]:
        """Return the signature and the certificate of its key."""
        return self._key.sign(statement, SCHEME), self._certificate

    def verify(self, keys: RoundKeys, statement: bytes) -> str | None:
        """Return why a signature does not count, or None."""
        try:
            certificate = self._known(keys.certificate)
        except (ValueError, TypeError, InvalidSignature, x509.InvalidVersion, x509.ExtensionNotFound):
            return "the certificate is none of this federation's authority"
        self._revoked.refresh()
        if holder_of(certificate) != ("learner", keys.learner):
            return f"the certificate is not that of learner/{keys.learner}"
        if self._listed and keys.learner not in self._listed:
            return "the study does not list that learner"
        now = datetime.now(UTC)
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            return "the certificate is not valid now"
        if serial_of(certificate) in self._revoked:
            return "the certificate has been revoked"
        public = certificate.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        try:
            public.verify(keys.signature, statement, SCHEME)
        except InvalidSignature:
            return "another key has made it"
        return None

    def _checked(self, der: bytes) -> x509.Certificate:
        """Return a certificate that the authority has signed for a caller; raise otherwise."""
        certificate = x509.load_der_x509_certificate(der)
        certificate.verify_directly_issued_by(self._authority)
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if ExtendedKeyUsageOID.CLIENT_AUTH not in usage or holder_of(certificate) is None:
            raise ValueError("It is not for a caller.")
        if not isinstance(certificate.public_key(), ec.EllipticCurvePublicKey):
            raise ValueError("Its key is of another kind.")
        return certificate

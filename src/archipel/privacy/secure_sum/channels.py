"""Shared secrets of two learners: a channel that the controller can neither read nor forge, and a mask."""

from __future__ import annotations

import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

NONCE = bytes(12)
"""The nonce of a box; constant, because each key seals one box, for one round, cohort and direction."""
TAG_BYTES = 32


def derived(secret: bytes, *purpose: bytes) -> bytes:
    """Derive 32 bytes from a secret for a purpose; they reveal nothing about other purposes."""
    told = b"".join(len(part).to_bytes(4, "little") + part for part in purpose)
    return hmac.digest(secret, told, "sha256")


def agreed(private: X25519PrivateKey, public: bytes, purpose: bytes) -> bytes:
    """Return 32 bytes that two learners share for a purpose; raise `ValueError` for an invalid public key."""
    common = private.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(SHA256(), 32, salt=None, info=purpose).derive(common)


class Channel:
    """An authenticated, encrypted channel between two learners in one round, through the controller."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def seal(self, sender: str, receiver: str, text: bytes) -> bytes:
        """Return a box that only the receiver can open."""
        return AESGCM(self._key(sender, receiver)).encrypt(NONCE, text, None)

    def open(self, sender: str, receiver: str, box: bytes) -> bytes | None:
        """Return the contents of a box; None if it was not sealed by the sender for the receiver."""
        try:
            return AESGCM(self._key(sender, receiver)).decrypt(NONCE, box, None)
        except (InvalidTag, ValueError):  # ValueError: too short for any box
            return None

    def tag(self, statement: bytes, sender: str, receiver: str) -> bytes:
        """Return a tag that authenticates the sender's statement to the receiver."""
        return derived(self._secret, b"tag", statement, sender.encode(), receiver.encode())

    def shows(self, tag: bytes, statement: bytes, sender: str, receiver: str) -> bool:
        """Return whether a tag authenticates the sender's statement."""
        return hmac.compare_digest(tag, self.tag(statement, sender, receiver))

    def _key(self, sender: str, receiver: str) -> bytes:
        return derived(self._secret, b"box", sender.encode(), receiver.encode())

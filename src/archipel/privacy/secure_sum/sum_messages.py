"""What learners and the controller of a secure sum send each other, phase by phase.

advertise   learner -> controller   its two public keys of this round, signed
share       learner -> neighbours   shares of its two secrets, sealed for each, through the controller
mask        learner -> controller   its numbers under masks
reveal      learner -> controller   one share of each neighbour: of the self mask if it has sent, of the key if not
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from archipel.privacy.secure_sum.masks import Whole


class SecureSumRefused(Exception):
    """A learner does not go on with a round, or the controller cannot; it says why."""


@dataclass(frozen=True, slots=True)
class RoundKeys:
    """The public keys of a learner in one round."""

    learner: str
    sharing: bytes
    """X25519 key that shares are sealed with."""
    masking: bytes
    """X25519 key that pairwise masks come from."""
    signature: bytes = b""

    def statement(self, round_: str) -> bytes:
        """Return what the learner signs."""
        digest = hashlib.sha256()
        for part in (b"archipel secure sum", round_.encode(), self.learner.encode(), self.sharing, self.masking):
            digest.update(hashlib.sha256(part).digest())
        return digest.digest()


@dataclass(frozen=True, slots=True)
class SealedShares:
    """A learner's shares, one box for each neighbour, which only that one can open."""

    learner: str
    boxes: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class MaskedNumbers:
    """A learner's numbers modulo 2^bits, under masks."""

    learner: str
    numbers: Whole


@dataclass(frozen=True, slots=True)
class RevealRequest:
    """Who has sent masked numbers, and who has shared secrets and not sent any."""

    survivors: frozenset[str]
    dropped: frozenset[str]


@dataclass(frozen=True, slots=True)
class RevealedShares:
    """A learner's shares of its neighbours' secrets."""

    learner: str
    seeds: Mapping[str, bytes]
    """Of the self masks of survivors."""
    keys: Mapping[str, bytes]
    """Of the masking keys of those who dropped out."""

"""Messages between the learners and the controller of a secure sum, by phase.

advertise   learner -> controller   its two public keys of this round and a hash of its self mask's seed, signed
share       controller -> learner   who is in the cohort; neighbours' keys
            learner -> neighbours   shares of its two secrets, sealed for each, through the controller
mask        learner -> controller   its numbers under masks
            learner -> neighbours   a tag that says so
confirm     learner -> neighbours   a tag for each neighbour whose tag it has: it will never help to open that one's key
reveal      learner -> controller   one share of each neighbour: of the self mask if it has confirmed it, of the key if
                                    not
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

SumPhase: TypeAlias = Literal["advertise", "share", "mask", "confirm", "reveal", "over"]
PHASES: tuple[SumPhase, ...] = ("advertise", "share", "mask", "confirm", "reveal", "over")


class SecureSumRefused(Exception):
    """A learner refuses to continue a round, or the controller cannot; the message says why."""


class WrongSecret(SecureSumRefused):
    """The shares of a learner's secret do not give it: the learner has not shared its secret, or many holders lie."""

    def __init__(self, learner: str) -> None:
        super().__init__(f"the shares of {learner}'s secret cannot be combined: too many of them are wrong.")
        self.learner = learner


@dataclass(frozen=True, slots=True)
class RoundKeys:
    """The public keys of a learner in one round."""

    learner: str
    sharing: bytes
    """X25519 key for the boxes and tags of this round."""
    masking: bytes
    """X25519 key for pairwise masks."""
    seed_hash: bytes
    """SHA-256 of the seed of its self mask, which detects wrong shares."""
    signature: bytes = b""
    certificate: bytes = b""
    """Certificate of the signing key; empty if all keys are known."""

    @property
    def digest(self) -> bytes:
        """Return the hash of the keys without the signature."""
        found = hashlib.sha256()
        for part in (self.learner.encode(), self.sharing, self.masking, self.seed_hash):
            found.update(hashlib.sha256(part).digest())
        return found.digest()

    def statement(self, round_: str) -> bytes:
        """Return what the learner signs."""
        return hashlib.sha256(
            b"archipel secure sum 2" + hashlib.sha256(round_.encode()).digest() + self.digest
        ).digest()


@dataclass(frozen=True, slots=True)
class Cohort:
    """Who takes part in a round, as one learner is told."""

    digests: Mapping[str, bytes]
    """Of everybody's keys."""
    keys: Mapping[str, RoundKeys]
    """Of its neighbours, and of so many others that it can see that the cohort is large enough."""


@dataclass(frozen=True, slots=True)
class RevealedShares:
    """A learner's shares of its neighbours' secrets."""

    seeds: Mapping[str, bytes]
    """Of the self masks of those that have sent."""
    keys: Mapping[str, bytes]
    """Of the masking keys of those who dropped out."""

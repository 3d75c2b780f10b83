"""The learner's side of a secure sum: a state machine without IO, which goes through each phase once.

It refuses a cohort below the least size, a key without a valid signature, a cohort without itself, boxes from too few
neighbours, a request to reveal below the threshold, a second request, and a request for both secrets of one learner.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from archipel.privacy.secure_sum.graph import neighbours
from archipel.privacy.secure_sum.masks import Bits, Whole, expand
from archipel.privacy.secure_sum.shamir import SECRET_BYTES, SHARE_BYTES, split
from archipel.privacy.secure_sum.sum_messages import (
    MaskedNumbers,
    RevealedShares,
    RevealRequest,
    RoundKeys,
    SealedShares,
    SecureSumRefused,
)

Sign: TypeAlias = Callable[[bytes], bytes]
Verify: TypeAlias = Callable[[str, bytes, bytes], bool]
"""(learner, statement, signature) -> whether that learner's certificate made it."""
SumPhase: TypeAlias = Literal["advertise", "share", "mask", "reveal", "over"]

NONCE = bytes(12)
"""Of a box: each key seals one box, since it is of one round and one direction."""


def share_threshold(neighbours_: int) -> int:
    """Return how many shares give a secret: more than two thirds of those that the neighbours and itself hold.

    A holder gives one of a learner's two secrets. To get both, a controller needs twice the threshold, which is more
    than all honest holders and a third of colluding ones can give.
    """
    return 2 * (neighbours_ + 1) // 3 + 1


def agreed_key(private: X25519PrivateKey, public: bytes, purpose: str) -> bytes:
    """Return 32 bytes that two learners share for a purpose."""
    common = private.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(SHA256(), 32, salt=None, info=purpose.encode()).derive(common)


class MaskingLearner:
    """One learner in one round."""

    def __init__(
        self, name: str, round_: str, *, least: int, threshold: float, bits: Bits, sign: Sign, verify: Verify
    ) -> None:
        """Begin a round; least: learners of a cohort; threshold: share of it that must have sent before it reveals."""
        self.name = name
        self._round = round_
        self._least, self._threshold, self._bits = least, threshold, bits
        self._sign, self._verify = sign, verify
        self._sharing, self._masking = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = os.urandom(SECRET_BYTES)
        self._cohort: dict[str, RoundKeys] = {}
        self._neighbours: tuple[str, ...] = ()
        self._shares: dict[str, bytes] = {}
        """Of itself and each neighbour that has sent a box: the share of its seed, and of its key."""
        self._next: SumPhase = "advertise"

    def advertise(self) -> RoundKeys:
        """Return the keys of this round."""
        self._enter("advertise", "share")
        sharing, masking = (key.public_key().public_bytes_raw() for key in (self._sharing, self._masking))
        keys = RoundKeys(self.name, sharing, masking)
        self._own = replace(keys, signature=self._sign(keys.statement(self._round)))
        return self._own

    def share(self, cohort: Sequence[RoundKeys]) -> SealedShares:
        """Seal shares of the own secrets for each neighbour."""
        self._enter("share", "mask")
        self._check(cohort)
        self._cohort = {keys.learner: keys for keys in cohort}
        self._neighbours = neighbours({keys.learner: keys.sharing + keys.masking for keys in cohort})[self.name]
        places, needed = self._places(), share_threshold(len(self._neighbours))
        holders = [places[name] for name in (self.name, *self._neighbours)]
        seeds = split(self._seed, holders, needed)
        keys = split(self._masking.private_bytes_raw(), holders, needed)
        self._shares = {self.name: seeds[places[self.name]] + keys[places[self.name]]}
        boxes = {name: self._seal(name, seeds[places[name]] + keys[places[name]]) for name in self._neighbours}
        return SealedShares(self.name, boxes)

    def mask(self, boxes: Mapping[str, bytes], numbers: Whole) -> MaskedNumbers:
        """Add all masks to the numbers; boxes: by neighbour, of all that go on with the round."""
        self._enter("mask", "reveal")
        unknown = sorted(boxes.keys() - set(self._neighbours))
        if unknown:
            raise SecureSumRefused(f"{self.name}: a box came from {unknown[0]}, which is no neighbour in this round.")
        needed = share_threshold(len(self._neighbours))
        if len(boxes) + 1 < needed:
            raise SecureSumRefused(
                f"{self.name}: {len(boxes)} of {len(self._neighbours)} neighbours go on, and {needed - 1} are needed."
            )
        self._shares |= {name: self._open(name, box) for name, box in boxes.items()}
        masked = numbers + expand(self._seed, len(numbers), self._bits)
        for name in boxes:
            mask = expand(self._pair_seed(name), len(numbers), self._bits)
            masked = masked + mask if self.name < name else masked - mask
        return MaskedNumbers(self.name, masked)

    def reveal(self, request: RevealRequest) -> RevealedShares:
        """Give one share of each neighbour, and never another."""
        self._enter("reveal", "over")
        both = sorted(request.survivors & request.dropped)
        if both:
            raise SecureSumRefused(f"{self.name}: asked for both secrets of {both[0]}, which would open its update.")
        least = math.ceil(self._threshold * len(self._cohort))
        if len(request.survivors & self._cohort.keys()) < least:
            raise SecureSumRefused(
                f"{self.name}: the sum would be of {len(request.survivors)} learners, and a cohort of "
                f"{len(self._cohort)} needs {least}."
            )
        if self.name not in request.survivors:
            raise SecureSumRefused(f"{self.name}: it has sent its numbers, and is said to have dropped out.")
        return RevealedShares(
            self.name,
            {name: share[:SHARE_BYTES] for name, share in self._shares.items() if name in request.survivors},
            {name: share[SHARE_BYTES:] for name, share in self._shares.items() if name in request.dropped},
        )

    def _enter(self, phase: SumPhase, following: SumPhase) -> None:
        """Go through a phase, once and in order; what fails in it ends the round for this learner."""
        if self._next != phase:
            raise SecureSumRefused(
                f"{self.name}: asked to {phase} in round {self._round}, and it is at {self._next!r}."
            )
        self._next = following

    def _check(self, cohort: Sequence[RoundKeys]) -> None:
        names = [keys.learner for keys in cohort]
        if len(set(names)) < len(names) or len({keys.masking for keys in cohort}) < len(names):
            raise SecureSumRefused(f"{self.name}: a learner or a key is in the cohort twice.")
        if len(names) < self._least:
            raise SecureSumRefused(f"{self.name}: a cohort of {len(names)} is smaller than {self._least}.")
        if self._own not in cohort:
            raise SecureSumRefused(f"{self.name}: its own keys are not in the cohort as it has sent them.")
        for keys in cohort:
            if not self._verify(keys.learner, keys.statement(self._round), keys.signature):
                raise SecureSumRefused(f"{self.name}: the keys of {keys.learner} have no valid signature.")

    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(sorted(self._cohort), start=1)}

    def _box_key(self, sender: str, receiver: str, other: str) -> bytes:
        purpose = f"share {self._round} from {sender!r} to {receiver!r}"
        return agreed_key(self._sharing, self._cohort[other].sharing, purpose)

    def _seal(self, receiver: str, shares: bytes) -> bytes:
        return AESGCM(self._box_key(self.name, receiver, receiver)).encrypt(NONCE, shares, None)

    def _open(self, sender: str, box: bytes) -> bytes:
        try:
            shares = AESGCM(self._box_key(sender, self.name, sender)).decrypt(NONCE, box, None)
        except InvalidTag:
            raise SecureSumRefused(f"{self.name}: the box from {sender} was changed on its way.") from None
        if len(shares) != 2 * SHARE_BYTES:
            raise SecureSumRefused(f"{self.name}: the box from {sender} holds {len(shares)} bytes.")
        return shares

    def _pair_seed(self, other: str) -> bytes:
        return agreed_key(self._masking, self._cohort[other].masking, f"mask {self._round}")

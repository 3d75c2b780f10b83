"""The learner's side of a secure sum: a state machine without IO that passes each phase once.

All its draws are derived from one secret: given the same requests again, as after a crash, it gives the same answers.
It refuses a cohort below the least size, neighbours without a valid signature, a cohort without itself, too few
neighbours in any phase, and requests that are repeated or out of order. It reveals shares only when enough neighbours
have confirmed that they will never help to open its own key: a controller cannot circumvent that by giving learners
inconsistent views of the round (docs/explanation/secure-sums.md has the proof).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from archipel.privacy.secure_sum.channels import Channel, agreed, derived
from archipel.privacy.secure_sum.graph import Ring, share_threshold
from archipel.privacy.secure_sum.masks import Whole, add_mask, expand
from archipel.privacy.secure_sum.shamir import SHARE_BYTES, split
from archipel.privacy.secure_sum.sum_messages import (
    PHASES,
    Cohort,
    RevealedShares,
    RoundKeys,
    SecureSumRefused,
    SumPhase,
)

Sign: TypeAlias = Callable[[bytes], tuple[bytes, bytes]]
"""statement -> signature and certificate."""
Verify: TypeAlias = Callable[[RoundKeys, bytes], str | None]
"""(keys, statement) -> why the signature is invalid, or None."""

SENT, CONFIRMED = b"sent", b"confirmed"
"""The statements of tags."""


def purpose(what: str, round_: str, cohort: bytes, one: str, other: str) -> bytes:
    """Return the purpose of a secret of two learners."""
    first, second = sorted((one, other))
    parts = (what.encode(), round_.encode(), cohort, first.encode(), second.encode())
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def mask_seed(private: X25519PrivateKey, public: bytes, round_: str, cohort: bytes, one: str, other: str) -> bytes:
    """Return the seed of the mask of two learners, from the masking key of either."""
    return agreed(private, public, purpose("mask", round_, cohort, one, other))


class MaskingLearner:
    """A learner in one round."""

    def __init__(
        self, name: str, round_: str, secret: bytes, *, least: int, threshold: float, sign: Sign, verify: Verify
    ) -> None:
        """Begin a round.

        secret: 32 random bytes for this round only. least: fewest learners of a cohort. threshold: share of the learner
        and its neighbours that must take part in every phase; above 2/3.
        """
        self.name = name
        self.round = round_
        self._least, self._threshold = least, threshold
        self._sign, self._verify = sign, verify
        self._sharing, self._masking = (
            X25519PrivateKey.from_private_bytes(derived(secret, what)) for what in (b"sharing", b"masking")
        )
        self._seed, self._polynomials = derived(secret, b"seed"), derived(secret, b"polynomials")
        self._ring = Ring({}, threshold)
        self._keys: dict[str, RoundKeys] = {}
        """Of the neighbours."""
        self._channels: dict[str, Channel] = {}
        self._shares: dict[str, bytes] = {}
        """Shares of the seed and the key of itself and of each neighbour that has sent a box."""
        self._included: frozenset[str] = frozenset()
        self.next: SumPhase = "advertise"

    def advertise(self) -> RoundKeys:
        """Return the keys of this round."""
        self._enter("advertise")
        sharing, masking = (key.public_key().public_bytes_raw() for key in (self._sharing, self._masking))
        keys = RoundKeys(self.name, sharing, masking, hashlib.sha256(self._seed).digest())
        signature, certificate = self._sign(keys.statement(self.round))
        self._own = replace(keys, signature=signature, certificate=certificate)
        return self._own

    def share(self, cohort: Cohort) -> dict[str, bytes]:
        """Return shares of this learner's secrets, sealed for each neighbour."""
        self._enter("share")
        self._ring = Ring.of(cohort.digests, self._threshold)
        self._check(cohort)
        neighbours = self._ring.neighbours(self.name)
        self._keys = {name: cohort.keys[name] for name in neighbours}
        for name, keys in self._keys.items():
            try:
                about = purpose("channel", self.round, self._ring.digest, self.name, name)
                self._channels[name] = Channel(agreed(self._sharing, keys.sharing, about))
            except ValueError:
                raise SecureSumRefused(f"{self.name}: the keys of {name} are not X25519 keys.") from None
        numbers, needed = self._ring.numbers, share_threshold(len(neighbours), self._threshold)
        holders = [numbers[name] for name in (self.name, *neighbours)]
        seeds = split(self._seed, holders, needed, self._draw(b"seed"))
        keys_ = split(self._masking.private_bytes_raw(), holders, needed, self._draw(b"key"))
        both = {name: seeds[numbers[name]] + keys_[numbers[name]] for name in (self.name, *neighbours)}
        self._shares = {self.name: both[self.name]}
        return {name: self._channels[name].seal(self.name, name, both[name]) for name in neighbours}

    def mask(self, boxes: Mapping[str, bytes]) -> dict[str, bytes]:
        """Accept the boxes of the remaining neighbours; return a tag for each, to send with the masked numbers."""
        self._enter("mask")
        self._check_known("a box came", boxes)
        self._check_enough(len(boxes), "go on")
        for name, box in boxes.items():
            shares = self._channels[name].open(name, self.name, box)
            if shares is None or len(shares) != 2 * SHARE_BYTES:
                raise SecureSumRefused(f"{self.name}: the box from {name} was altered in transit.")
            self._shares[name] = shares
        return {name: self._channels[name].tag(SENT, self.name, name) for name in boxes}

    def masked(self, numbers: Whole) -> Whole:
        """Return the masked numbers. Always pass the same ones: two results reveal their difference."""
        assert self.next == "confirm"
        found = numbers.copy()
        add_mask(found, self._seed)
        for name in sorted(self._shares.keys() - {self.name}):
            public, cohort = self._keys[name].masking, self._ring.digest
            seed = mask_seed(self._masking, public, self.round, cohort, self.name, name)
            add_mask(found, seed, 1 if self.name < name else -1)
        return found

    def confirm(self, tags: Mapping[str, bytes]) -> dict[str, bytes]:
        """Accept the tags of neighbours that have sent; return a tag for each, and never help to open its key."""
        self._enter("confirm")
        valid = self._valid(tags, SENT)
        self._included = frozenset((self.name, *valid))
        self._check_enough(len(valid), "have sent numbers")
        return {name: self._channels[name].tag(CONFIRMED, self.name, name) for name in valid}

    def reveal(self, tags: Mapping[str, bytes]) -> RevealedShares:
        """Accept the tags of neighbours that have confirmed this learner; reveal one share of each, and only that."""
        self._enter("reveal")
        self._check_enough(len(self._valid(tags, CONFIRMED)), "have confirmed that it has sent numbers")
        return RevealedShares(
            {name: share[:SHARE_BYTES] for name, share in self._shares.items() if name in self._included},
            {name: share[SHARE_BYTES:] for name, share in self._shares.items() if name not in self._included},
        )

    def _enter(self, phase: SumPhase) -> None:
        """Enter a phase, once and in order; an error within it ends the round for this learner."""
        if self.next != phase:
            raise SecureSumRefused(f"{self.name}: asked to {phase} in round {self.round}, and it is at {self.next!r}.")
        self.next = PHASES[PHASES.index(phase) + 1]

    def _check(self, cohort: Cohort) -> None:
        digests, keys = cohort.digests, cohort.keys
        if len(digests) < self._least:
            raise SecureSumRefused(f"{self.name}: a cohort of {len(digests)} is smaller than {self._least}.")
        if digests.get(self.name) != self._own.digest:
            raise SecureSumRefused(f"{self.name}: the cohort lacks its own keys, or has others than it sent.")
        missing = [name for name in self._ring.neighbours(self.name) if name not in keys]
        if missing or len(keys.keys() - {self.name}) < self._least - 1:
            raise SecureSumRefused(
                f"{self.name}: {len(keys)} keys came, and not that of its neighbour {missing[0]}."
                if missing
                else f"{self.name}: the keys of {len(keys)} learners came, and {self._least - 1} others are needed."
            )
        for name, one in keys.items():
            if name == self.name:
                continue
            if one.learner != name or digests.get(name) != one.digest:
                raise SecureSumRefused(f"{self.name}: the keys of {name} are not those of the cohort.")
            reason = self._verify(one, one.statement(self.round))
            if reason is not None:
                raise SecureSumRefused(f"{self.name}: the keys of {name} have no valid signature: {reason}.")

    def _check_known(self, what: str, names: Iterable[str]) -> None:
        unknown = sorted(set(names) - self._keys.keys())
        if unknown:
            raise SecureSumRefused(f"{self.name}: {what} from {unknown[0]}, which is not a neighbour in this round.")

    def _check_enough(self, others: int, what: str) -> None:
        needed = share_threshold(len(self._keys), self._threshold) - 1
        if others < needed:
            raise SecureSumRefused(
                f"{self.name}: {others} of {len(self._keys)} neighbours {what}, and {needed} are needed."
            )

    def _valid(self, tags: Mapping[str, bytes], statement: bytes) -> list[str]:
        """Return the neighbours with valid tags, among those that share a mask with this learner."""
        known = self._shares.keys() - {self.name}
        return [
            name
            for name, tag in sorted(tags.items())
            if name in known and self._channels[name].shows(tag, statement, name, self.name)
        ]

    def _draw(self, what: bytes) -> Callable[[int], bytes]:
        seed = derived(self._polynomials, what, self._ring.digest)
        return lambda size: expand(seed, -(-size // 8), 64).tobytes()[:size]

"""The controller's side of a secure sum: it routes boxes it cannot open and adds up numbers it cannot read.

What it holds at any time opens no single update: masked numbers, sealed boxes, and for each learner shares of one of
its two secrets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from archipel.privacy.secure_sum.graph import neighbours
from archipel.privacy.secure_sum.masking_learner import agreed_key, share_threshold
from archipel.privacy.secure_sum.masks import Bits, Whole, expand, whole_type
from archipel.privacy.secure_sum.shamir import combine
from archipel.privacy.secure_sum.sum_messages import (
    MaskedNumbers,
    RevealedShares,
    RevealRequest,
    RoundKeys,
    SealedShares,
    SecureSumRefused,
)


class SumCollector:
    """One round at the controller."""

    def __init__(self, round_: str, *, size: int, threshold: float, bits: Bits) -> None:
        self._round, self._size, self._threshold, self._bits = round_, size, threshold, bits
        self._keys: dict[str, RoundKeys] = {}
        self._neighbours: dict[str, tuple[str, ...]] = {}
        self._shared: dict[str, SealedShares] = {}
        self._sum: Whole = np.zeros(size, dtype=whole_type(bits))
        self._sent: set[str] = set()

    def cohort(self, keys: Iterable[RoundKeys]) -> list[RoundKeys]:
        """Take the keys that have come; return them for everybody, by name."""
        self._keys = {one.learner: one for one in sorted(keys, key=lambda one: one.learner)}
        self._neighbours = neighbours({name: one.sharing + one.masking for name, one in self._keys.items()})
        return list(self._keys.values())

    def take_shares(self, shares: SealedShares) -> None:
        """Take the boxes of a learner."""
        if set(shares.boxes) != set(self._neighbours[shares.learner]):
            raise SecureSumRefused(f"{shares.learner} has not sealed a box for each of its neighbours.")
        self._shared[shares.learner] = shares

    def boxes_for(self, learner: str) -> dict[str, bytes]:
        """Return the boxes for a learner, by neighbour; call it when all shares have come that will."""
        return {name: self._shared[name].boxes[learner] for name in self._neighbours[learner] if name in self._shared}

    def take_numbers(self, masked: MaskedNumbers) -> None:
        """Add a learner's masked numbers."""
        if masked.learner not in self._shared or masked.learner in self._sent:
            raise SecureSumRefused(
                f"{masked.learner} has shared no secrets in this round, or has sent its numbers before."
            )
        if masked.numbers.shape != (self._size,) or masked.numbers.dtype != whole_type(self._bits):
            raise SecureSumRefused(f"{masked.learner} sent {masked.numbers.shape} numbers, the sum has {self._size}.")
        self._sent.add(masked.learner)
        self._sum = self._sum + masked.numbers

    def request(self) -> RevealRequest:
        """Return what survivors are asked to reveal; call it when all numbers have come that will."""
        least = math.ceil(self._threshold * len(self._keys))
        if len(self._sent) < least:
            raise SecureSumRefused(
                f"{len(self._sent)} of {len(self._keys)} learners have sent numbers, {least} are needed."
            )
        return RevealRequest(frozenset(self._sent), frozenset(self._shared.keys() - self._sent))

    def total(self, revealed: Iterable[RevealedShares]) -> Whole:
        """Take the masks off the sum."""
        request, answers = self.request(), list(revealed)
        places = {name: place for place, name in enumerate(self._keys, start=1)}
        total = self._sum.copy()
        for name in sorted(request.survivors):
            shares = {places[one.learner]: one.seeds[name] for one in answers if name in one.seeds}
            total -= expand(self._secret(name, shares), self._size, self._bits)
        for name in sorted(request.dropped):
            shares = {places[one.learner]: one.keys[name] for one in answers if name in one.keys}
            key = X25519PrivateKey.from_private_bytes(self._secret(name, shares))
            for other in self._neighbours[name]:
                if other in request.survivors:
                    seed = agreed_key(key, self._keys[other].masking, f"mask {self._round}")
                    mask = expand(seed, self._size, self._bits)
                    total = total - mask if other < name else total + mask
        return total

    def _secret(self, name: str, shares: dict[int, bytes]) -> bytes:
        needed = share_threshold(len(self._neighbours[name]))
        if len(shares) < needed:
            raise SecureSumRefused(f"{len(shares)} shares of {name}'s secret have come, and {needed} are needed.")
        return combine(dict(sorted(shares.items())[:needed]))

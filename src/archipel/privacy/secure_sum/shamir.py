"""Shamir's secret sharing of 256-bit numbers: any `threshold` shares give the secret, fewer tell nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297
"""The smallest prime above 2^256."""
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, holders: Sequence[int], threshold: int) -> dict[int, bytes]:
    """Return a share for each holder, who are numbers from 1 on."""
    numbers = [int.from_bytes(os.urandom(40), "little") % PRIME for _ in range(threshold - 1)]
    polynomial = [*numbers, int.from_bytes(secret, "little")]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in polynomial:
            value = (value * holder + coefficient) % PRIME
        shares[holder] = value.to_bytes(SHARE_BYTES, "little")
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of these shares; of too few or wrong ones, another number or an error."""
    secret = 0
    for mine, share in shares.items():
        above, below = 1, 1
        for other in shares:
            if other != mine:
                above = above * other % PRIME
                below = below * (other - mine) % PRIME
        secret = (secret + int.from_bytes(share, "little") * above * pow(below, -1, PRIME)) % PRIME
    if secret >= 2**256:
        raise ValueError("These shares are not of one secret.")
    return secret.to_bytes(SECRET_BYTES, "little")

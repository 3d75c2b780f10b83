"""Stateless randomness: a draw is a function of its key, so a replay draws the same and nothing has to be saved."""

from __future__ import annotations

import hashlib

import numpy as np

PERMUTED = 1_000
"""A draw from up to this many numbers permutes all; from more, its cost is what it draws (decision 0045)."""


def derive(*key: int | str) -> int:
    """Derive 63 random bits from a key such as (seed, "shuffle", learner, task)."""
    text = "\x1f".join([f"{type(part).__name__}:{part}" for part in key])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def draw_some(generator: np.random.Generator, count: int, among: int) -> list[int]:
    """Draw up to `count` different numbers below `among`, in the order drawn."""
    if among <= PERMUTED:
        drawn = generator.permutation(among)[:count]
    else:
        drawn = generator.choice(among, min(count, among), replace=False)
    return [int(number) for number in drawn]


def generator(*key: int | str) -> np.random.Generator:
    """Return a new generator for this key; drawing from one never affects another."""
    return np.random.Generator(np.random.Philox(key=derive(*key)))

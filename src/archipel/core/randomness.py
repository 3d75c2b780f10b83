"""Randomness without memory: a draw is a function of its key, so a replay draws the same and nothing is saved."""

from __future__ import annotations

import hashlib

import numpy as np

PERMUTED = 1_000
"""Up to this many numbers a draw permutes all; of more numbers it costs only what it draws (decision 0045)."""


def derive(*key: int | str) -> int:
    """Turn a key such as (seed, "shuffle", learner, task) into 63 random bits."""
    text = "\x1f".join([f"{type(part).__name__}:{part}" for part in key])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def draw_some(generator: np.random.Generator, count: int, among: int) -> list[int]:
    """Draw numbers below `among` without replacement, all of them if there are too few, in the order drawn."""
    if among <= PERMUTED:
        drawn = generator.permutation(among)[:count]
    else:
        drawn = generator.choice(among, min(count, among), replace=False)
    return [int(number) for number in drawn]


def generator(*key: int | str) -> np.random.Generator:
    """Return a new generator for this key; drawing from one never affects another."""
    return np.random.Generator(np.random.Philox(key=derive(*key)))

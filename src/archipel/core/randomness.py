"""Randomness without memory: a draw is a function of its key, so a replay draws the same and nothing is saved."""

from __future__ import annotations

import hashlib

import numpy as np


def derive(*key: int | str) -> int:
    """Turn a key such as (seed, "shuffle", learner, task) into 63 random bits."""
    text = "\x1f".join([f"{type(part).__name__}:{part}" for part in key])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(*key: int | str) -> np.random.Generator:
    """Return a generator of its own for this key: drawing from one never moves another."""
    return np.random.Generator(np.random.Philox(key=derive(*key)))

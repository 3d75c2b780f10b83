"""Randomness without memory: a draw is a function of its key, so a replay draws the same and nothing is saved."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence


def derive(*key: int | str) -> int:
    """Turn a key such as (seed, "shuffle", learner, task) into 63 random bits."""
    text = "\x1f".join([f"{type(part).__name__}:{part}" for part in key])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(*key: int | str) -> np.random.Generator:
    """A generator of its own for this key: drawing from one never moves another."""
    return np.random.Generator(np.random.Philox(_Key(derive(*key))))  # type: ignore[arg-type]


class _Key(ISeedSequence):
    """Gives Philox its key. Philox(key=...) does the same and asks the system for entropy first, for nothing."""

    def __init__(self, key: int) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> npt.NDArray[np.uint64]:
        return np.array((self.key, 0), dtype=np.uint64)

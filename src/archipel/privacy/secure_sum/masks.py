"""Masks: numbers modulo 2^bits that two learners can compute and nobody else, and how changes become such numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Bits: TypeAlias = Literal[32, 64]
Whole: TypeAlias = npt.NDArray[Any]
"""Of uint32 or uint64: sums wrap around by themselves."""


def whole_type(bits: Bits) -> np.dtype[Any]:
    """Return the type whose sums are modulo 2^bits."""
    return np.dtype(f"<u{bits // 8}")


def expand(seed: bytes, size: int, bits: Bits) -> Whole:
    """Return uniform numbers modulo 2^bits from a seed of 32 bytes, by AES in counter mode."""
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(size * bits // 8)), dtype=whole_type(bits))


@dataclass(frozen=True, slots=True)
class Quantiser:
    """Numbers of at most `clip` as whole numbers, so that a sum over the cohort cannot wrap around."""

    clip: float
    bits: Bits
    total_weight: int
    """Largest sum of the weights of a cohort."""

    @property
    def step(self) -> float:
        """The distance of two numbers that can be told apart."""
        levels: int = 2 ** (self.bits - 2) // self.total_weight
        return self.clip / min(levels, 2**50)  # beyond that float64 is no finer

    def error(self, senders: int) -> float:
        """Return how far each number of a sum may be from the sum without rounding."""
        return senders * self.step / 2

    def encode(self, change: npt.NDArray[np.float64], weight: int) -> Whole:
        """Return weight x change in steps, clipped in the Euclidean norm, and behind it the weight itself."""
        norm = math.sqrt(float(change @ change))
        factor = min(1.0, self.clip / norm) if norm > 0 else 1.0
        steps = np.rint(change * (weight * factor / self.step)).astype(np.int64)
        return np.append(steps, weight).astype(whole_type(self.bits))

    def decode(self, whole: Whole) -> tuple[npt.NDArray[np.float64], int]:
        """Return the sum of weighted changes, and the sum of weights."""
        signed = whole.astype(whole_type(self.bits)).view(f"<i{self.bits // 8}")
        return signed[:-1].astype(np.float64) * self.step, int(signed[-1])

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
KEY = 16
"""Bytes of a seed that are AES' key."""
BLOCK = 1 << 18
"""Bytes of a mask that are computed at a time: they stay in the processor's cache until they are added."""
ZEROS = bytes(BLOCK)


def whole_type(bits: Bits) -> np.dtype[Any]:
    """Return the type whose sums are modulo 2^bits."""
    return np.dtype(f"<u{bits // 8}")


def expand(seed: bytes, size: int, bits: Bits) -> Whole:
    """Return uniform numbers modulo 2^bits from a seed, by AES in counter mode."""
    numbers = np.zeros(size, dtype=whole_type(bits))
    add_mask(numbers, seed)
    return numbers


def add_mask(numbers: Whole, seed: bytes, sign: Literal[1, -1] = 1) -> None:
    """Add the mask of a seed to numbers in place, or take it off."""
    stream = Cipher(algorithms.AES(seed[:KEY]), modes.CTR(bytes(16))).encryptor()
    step = min(len(numbers), BLOCK // numbers.itemsize)
    into = bytearray(step * numbers.itemsize + 15)  # room for the cipher's last block
    mask = np.frombuffer(into, dtype=numbers.dtype, count=step)
    change = np.add if sign == 1 else np.subtract
    for start in range(0, len(numbers), step or 1):
        piece = numbers[start : start + step]
        stream.update_into(memoryview(ZEROS)[: piece.nbytes], into)
        change(piece, mask[: len(piece)], out=piece)


class BeyondRange(ValueError):
    """A sum that no learners that keep to the clip can have sent."""


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

    def decode(self, whole: Whole, senders: int) -> tuple[npt.NDArray[np.float64], int]:
        """Return the sum of weighted changes, and the sum of weights; refuse what so many learners cannot have sent."""
        signed = whole.astype(whole_type(self.bits)).view(f"<i{self.bits // 8}")
        changes, weight = signed[:-1].astype(np.float64) * self.step, int(signed[-1])
        if not senders <= weight <= self.total_weight:
            raise BeyondRange(
                f"the weights of {senders} learners add up to {weight}, which should be {senders} to "
                f"{self.total_weight}: one of them has sent something else than its numbers"
            )
        norm, most = math.sqrt(float(changes @ changes)), self.clip * weight
        if norm > most * (1 + 1e-9) + self.error(senders) * math.sqrt(len(changes)):
            raise BeyondRange(
                f"the sum of {senders} updates has the norm {norm:.4g}, and with a clip of {self.clip:g} it is at most "
                f"{most:.4g}: one of them is beyond the clip"
            )
        return changes, weight

"""Masks: numbers modulo 2^bits that only two learners can compute."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Bits: TypeAlias = Literal[32, 64]
Whole: TypeAlias = npt.NDArray[Any]
"""An array of uint32 or uint64, whose sums wrap around."""
KEY = 16
"""Bytes of a seed that are the AES key."""
BLOCK = 1 << 18
"""Bytes of a mask that are computed at a time, few enough to stay in the processor's cache."""
ZEROS = bytes(BLOCK)


def whole_type(bits: Bits) -> np.dtype[Any]:
    """Return the dtype whose sums are modulo 2^bits."""
    return np.dtype(f"<u{bits // 8}")


def expand(seed: bytes, size: int, bits: Bits) -> Whole:
    """Return uniform numbers modulo 2^bits from a seed, by AES in counter mode."""
    numbers = np.zeros(size, dtype=whole_type(bits))
    add_mask(numbers, seed)
    return numbers


def add_mask(numbers: Whole, seed: bytes, sign: Literal[1, -1] = 1) -> None:
    """Add the mask of a seed to numbers in place, or subtract it."""
    stream = Cipher(algorithms.AES(seed[:KEY]), modes.CTR(bytes(16))).encryptor()
    step = min(len(numbers), BLOCK // numbers.itemsize)
    into = bytearray(step * numbers.itemsize + 15)  # room for the cipher's last block
    mask = np.frombuffer(into, dtype=numbers.dtype, count=step)
    change = np.add if sign == 1 else np.subtract
    for start in range(0, len(numbers), step or 1):
        piece = numbers[start : start + step]
        stream.update_into(memoryview(ZEROS)[: piece.nbytes], into)
        change(piece, mask[: len(piece)], out=piece)

"""Noise that only who has the key can compute: normal numbers from SHAKE-256 of a key and a place.

The study's seed will not do: every learner knows it, and could subtract the noise.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
import numpy.typing as npt

KEY_BYTES = 32
BITS = 53
"""Of a float64 between 0 and 1."""


def new_key() -> str:
    """Return a key from the operating system's generator, in hexadecimal digits."""
    return os.urandom(KEY_BYTES).hex()


def normal(key: str, place: str, count: int) -> npt.NDArray[np.float64]:
    """Return independent normal numbers with deviation 1; the same key and place give the same ones."""
    from scipy.special import ndtri  # imported late: it takes long

    stream = hashlib.shake_256(bytes.fromhex(key) + place.encode()).digest(8 * count)
    whole = np.frombuffer(stream, dtype="<u8") >> np.uint64(64 - BITS)
    uniform = (whole.astype(np.float64) + 0.5) * 2.0**-BITS  # never 0 or 1, whose normal numbers are infinite
    numbers: npt.NDArray[np.float64] = ndtri(np.minimum(uniform, 1 - 2.0**-BITS))
    return numbers

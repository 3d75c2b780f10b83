"""Noise and draws from a secret key: SHAKE-256 of the key and a place.

The study's seed would not be secret: every learner knows it and could subtract the noise. Noise also depends on the
numbers it is added to: after restoring a copy of the state, or repeating a question in another form, different numbers
get independent noise, since the difference of numbers with the same noise would be exact.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
import numpy.typing as npt

KEY_BYTES = 32
DIGEST_BYTES = 16
SIGN, MAGNITUDE = np.uint64(63), np.uint64((1 << 63) - 1)
"""Of 64 random bits, the position of the sign and the mask of the rest."""
ROUNDING = 2.0**-52
"""Machine epsilon of float64, twice the largest relative rounding error."""


def new_key() -> str:
    """Return a key from the operating system's generator, in hexadecimal digits."""
    return os.urandom(KEY_BYTES).hex()


def derived_key(key: str, purpose: str) -> str:
    """Return a key for one purpose, which reveals nothing of others or of the original key."""
    return hashlib.shake_256(bytes.fromhex(key) + b"key " + purpose.encode()).digest(KEY_BYTES).hex()


def normal(key: str, place: str, count: int) -> npt.NDArray[np.float64]:
    """Return independent standard normal numbers; the same key and place give the same ones.

    One bit is the sign and 63 are the tail probability, so that the tails are drawn as finely as the middle. They end
    at 9.2 deviations, which a normal number exceeds once in 2^64.
    """
    from scipy.special import ndtri  # imported late: it takes long

    whole = _random_words(key, place, count)
    tail = ((whole & MAGNITUDE).astype(np.float64) + 0.5) * 2.0**-64  # above 0, at most 1/2
    numbers: npt.NDArray[np.float64] = ndtri(tail)
    return np.where(whole >> SIGN, numbers, -numbers)


def uniform(key: str, place: str, count: int) -> npt.NDArray[np.float64]:
    """Return independent numbers, at least 0 and below 1; the same key and place give the same ones."""
    numbers: npt.NDArray[np.float64] = (_random_words(key, place, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def noised(key: str, place: str, numbers: npt.NDArray[np.float64], deviation: float) -> npt.NDArray[np.float64]:
    """Add normal noise of this deviation; different numbers at the same place get independent noise."""
    digest = hashlib.blake2b(np.ascontiguousarray(numbers).data, digest_size=DIGEST_BYTES).hexdigest()
    noisy: npt.NDArray[np.float64] = numbers + deviation * normal(key, f"{place} of {digest}", numbers.size)
    return noisy


def limit(clip: float, count: int, size: int) -> float:
    """Return a norm just below the clip, so that rounding cannot move a sum beyond it.

    The computed norm of `size` numbers is off by a factor of at most 1 + size x 2^-53, and removing one of `count`
    vectors within the clip changes the rounding error of the others' sum by at most count^2 x 2^-52 clips.
    """
    return clip / (1 + (size + count * count) * ROUNDING)


def _random_words(key: str, place: str, count: int) -> npt.NDArray[np.uint64]:
    stream = hashlib.shake_256(bytes.fromhex(key) + place.encode()).digest(8 * count)
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64, copy=False)

"""Noise in whole numbers: the discrete Gaussian of Canonne, Kamath and Steinke 2020, drawn from a secret seed.

P(x) is proportional to exp(-x^2 / 2 s^2). A number from the discrete Laplace distribution of scale t is proposed and
accepted with probability exp(-(|x| - s^2 / t)^2 / 2 s^2) (their algorithm 3), in float64, from 64 random bits.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from archipel.privacy.secure_sum.channels import derived
from archipel.privacy.secure_sum.masks import expand

BLOCK = 1 << 16
"""Numbers that are drawn at a time."""


def discrete_gaussian(seed: bytes, deviation: float, size: int) -> npt.NDArray[np.int64]:
    """Return independent whole numbers; the same seed gives the same ones.

    >>> discrete_gaussian(bytes(32), 2.0, 8)
    array([ 0, -1, -1,  0, -1, -1,  0,  3])
    """
    found, made = np.empty(size, dtype=np.int64), 0
    block = 0
    while made < size:
        taken = _proposed(derived(seed, b"noise", block.to_bytes(8, "little")), deviation)[: size - made]
        found[made : made + len(taken)] = taken
        made, block = made + len(taken), block + 1
    return found


def _proposed(seed: bytes, deviation: float) -> npt.NDArray[np.int64]:
    """Return the accepted numbers of a block of proposed ones."""
    words = expand(seed, 2 * BLOCK, 64)
    first, second = words[:BLOCK], words[BLOCK:]
    scale = math.floor(deviation) + 1
    negative = (first & np.uint64(1)).astype(bool)
    tail = ((first >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-63
    size = np.floor(-scale * np.log(tail))
    chance = np.exp(-((size - deviation**2 / scale) ** 2) / (2 * deviation**2))
    taken = (second.astype(np.float64) * 2.0**-64 < chance) & ~(negative & (size == 0))  # zero has one sign
    whole: npt.NDArray[np.int64] = np.where(negative, -size, size)[taken].astype(np.int64)
    return whole

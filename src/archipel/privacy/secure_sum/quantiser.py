"""Convert changes to whole numbers, with or without noise, and a sum of them back to a change."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from archipel.privacy.secure_sum.discrete_noise import discrete_gaussian
from archipel.privacy.secure_sum.masks import Bits, Whole, whole_type

LEAST_DEVIATION = 4.0
"""Smallest deviation of a learner's noise, in steps: its sums then differ from a discrete Gaussian by below 1e-60."""
MOST_ROUNDING = 0.05
"""Share of the clip reserved for rounding, if there is noise."""
FINEST = 44
"""Bits of the largest sum; float64 has 53, so at most a few hundredths of a step are lost."""
BLOCK = 1 << 13
"""Numbers that are rounded at a time: they stay in the processor's cache."""
TAILS = 10
"""Standard deviations of noise that a sum has room for and by which its norm may grow."""


class BeyondRange(ValueError):
    """A sum that learners within the clip cannot have sent."""


@dataclass(frozen=True, slots=True)
class Quantiser:
    """A conversion to whole numbers under which a sum over the cohort cannot wrap around."""

    clip: float
    bits: Bits
    total_weight: int
    """Largest sum of the weights of a cohort."""
    noise: float = 0.0
    """Standard deviation of each learner's noise in each number, in clips; 0: no noise."""

    @property
    def step(self) -> float:
        """The quantisation step."""
        largest = self.total_weight + math.ceil(TAILS * self.noise * self.total_weight**0.5)
        levels: int = 2 ** min(self.bits - 2, FINEST) // largest
        return self.clip / levels

    def most_norm(self, size: int) -> float:
        """Return the norm that changes are clipped to; with noise, they must be within the clip even after rounding."""
        if not self.noise:
            return self.clip
        rounding, deviation = self.step * math.sqrt(size) / 2, self.noise * self.clip / self.step
        if deviation < LEAST_DEVIATION or rounding > MOST_ROUNDING * self.clip:
            raise ValueError(
                f"SecureSum: with bits={self.bits} a step of a sum is {self.step:.3g}, too coarse for a clip of "
                f"{self.clip:g} and noise of {self.noise:.3g} clips at each learner. Use bits=64."
            )
        return self.clip - rounding

    def error(self, senders: int) -> float:
        """Return how far each number of a sum may be from the sum without rounding."""
        return senders * self.step * (0.5 + 2.0 ** (FINEST - 51))

    def encode(self, change: npt.NDArray[np.float64], weight: int, seed: bytes = b"") -> Whole:
        """Return weight x change in steps, clipped in the Euclidean norm, followed by the weight itself.

        seed: the seed of the learner's part of the noise.
        """
        pieces = [change[start : start + BLOCK] for start in range(0, len(change), BLOCK)]
        norm = math.sqrt(math.fsum(float(piece @ piece) for piece in pieces))  # the same with any number of threads
        factor = min(1.0, self.most_norm(len(change)) / norm) if norm > 0 else 1.0
        whole, scale = np.empty(len(change) + 1, dtype=f"<i{self.bits // 8}"), weight * factor / self.step
        whole[-1] = weight
        for place, piece in enumerate(pieces):
            steps = piece * scale
            whole[place * BLOCK :][: len(steps)] = np.rint(steps, out=steps)
        if self.noise:
            whole[:-1] += discrete_gaussian(seed, self.noise * self.clip / self.step, len(change)).astype(whole.dtype)
        return whole.view(whole_type(self.bits))

    def decode(self, whole: Whole, senders: int) -> tuple[npt.NDArray[np.float64], int]:
        """Return the sum of weighted changes and the sum of weights; refuse sums that the senders cannot have made."""
        signed = whole.astype(whole_type(self.bits)).view(f"<i{self.bits // 8}")
        changes, weight = signed[:-1].astype(np.float64) * self.step, int(signed[-1])
        if not senders <= weight <= self.total_weight:
            raise BeyondRange(
                f"the weights of {senders} learners add up to {weight}, which should be {senders} to "
                f"{self.total_weight}: one of them has sent something else than its numbers"
            )
        norm, most = math.sqrt(float(changes @ changes)), self.clip * weight
        most += (self.error(senders) + self.noise * self.clip * math.sqrt(senders)) * (math.sqrt(len(changes)) + TAILS)
        if norm > most * (1 + 1e-9):
            raise BeyondRange(
                f"the sum of {senders} updates has the norm {norm:.4g}, and with a clip of {self.clip:g} it is at most "
                f"{most:.4g}: one of them is beyond the clip"
            )
        return changes, weight

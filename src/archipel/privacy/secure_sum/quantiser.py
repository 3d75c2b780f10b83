"""How changes become whole numbers, with noise or without, and a sum of them becomes a change again."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from archipel.privacy.secure_sum.discrete_noise import discrete_gaussian
from archipel.privacy.secure_sum.masks import Bits, Whole, whole_type

LEAST_DEVIATION = 4.0
"""Of a learner's noise, in steps: what a sum of such noise lacks to a discrete Gaussian is then below 1e-60."""
MOST_ROUNDING = 0.05
"""Share of the clip that rounding may take, where there is noise."""
FINEST = 44
"""Binary digits of the largest sum: float64 has 53, so that of each step a few hundredths may be lost at most."""
TAILS = 10
"""Standard deviations of noise that fit into a sum, and in which a sum may be longer than without it."""


class BeyondRange(ValueError):
    """A sum that no learners that keep to the clip can have sent."""


@dataclass(frozen=True, slots=True)
class Quantiser:
    """Numbers of at most `clip` as whole numbers, so that a sum over the cohort cannot wrap around."""

    clip: float
    bits: Bits
    total_weight: int
    """Largest sum of the weights of a cohort."""
    noise: float = 0.0
    """Standard deviation of what each learner adds to each of its numbers, in clips; 0: nothing."""

    @property
    def step(self) -> float:
        """The distance of two numbers that can be told apart."""
        largest = self.total_weight + math.ceil(TAILS * self.noise * self.total_weight**0.5)
        levels: int = 2 ** min(self.bits - 2, FINEST) // largest
        return self.clip / levels

    def most_norm(self, size: int) -> float:
        """Return the norm to which changes are scaled; with noise, whole steps must keep to the clip."""
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
        """Return weight x change in steps, clipped in the Euclidean norm, and behind it the weight itself.

        seed: of the learner's part of the noise.
        """
        norm = math.sqrt(float(change @ change))
        factor = min(1.0, self.most_norm(len(change)) / norm) if norm > 0 else 1.0
        steps = change * (weight * factor / self.step)
        np.rint(steps, out=steps)
        whole = np.empty(len(change) + 1, dtype=f"<i{self.bits // 8}")
        whole[:-1], whole[-1] = steps, weight
        if self.noise:
            whole[:-1] += discrete_gaussian(seed, self.noise * self.clip / self.step, len(change)).astype(whole.dtype)
        return whole.view(whole_type(self.bits))

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
        most += (self.error(senders) + self.noise * self.clip * math.sqrt(senders)) * (math.sqrt(len(changes)) + TAILS)
        if norm > most * (1 + 1e-9):
            raise BeyondRange(
                f"the sum of {senders} updates has the norm {norm:.4g}, and with a clip of {self.clip:g} it is at most "
                f"{most:.4g}: one of them is beyond the clip"
            )
        return changes, weight

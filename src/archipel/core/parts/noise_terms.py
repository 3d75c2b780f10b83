"""Budget, noise and delta: what all parts that add noise are given, and checked for."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from archipel.core.checks import ArchipelWarning, at_least, more_than, require
from archipel.core.parts.privacy import Privacy


@dataclass(frozen=True)
class NoisePrivacy(Privacy):
    """Adds noise and accounts for it."""

    epsilon: float | None = None
    """Budget that is never exceeded. Without `noise`, the noise that the run needs is computed from it."""
    noise: float | None = None
    """Standard deviation of the noise in units of the clip; without `epsilon` nothing limits the run."""
    delta: float = 1e-5
    """Probability with which epsilon may not hold; below 1 / learners, or 1 / examples of a learner with LocalNoise."""

    def __post_init__(self) -> None:
        owner = type(self).__name__
        require(
            self.epsilon is not None or self.noise is not None,
            f"{owner}: give epsilon=..., a budget such as 2.0, or noise=..., a multiple of the clip such as 1.0.",
        )
        if self.epsilon is not None:
            more_than(0, owner, epsilon=self.epsilon)
        if self.noise is not None:
            at_least(0.05, owner, "less protects nothing", noise=self.noise)
        require(
            isinstance(self.delta, float) and 0 < self.delta < 1,
            f"{owner}: delta should be between 0 and 1, such as 1e-5, got {self.delta!r}.",
        )

    def warn_of_delta(self, count: int, whose: str, stacklevel: int) -> None:
        """Warn of a delta with which one of so many may be revealed whole."""
        if self.delta > 1 / count:
            warnings.warn(
                f"{type(self).__name__}: delta {self.delta:g} is more than 1 / {count} {whose}, so that it may reveal "
                f"one of them whole; the usual choice is below {count**-1.1:.1g}.",
                ArchipelWarning,
                stacklevel=stacklevel,
            )

"""Budget, noise and delta: what all parts that add noise are given, and what none of them goes with."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from archipel.core.checks import ArchipelWarning, at_least, more_than, require
from archipel.core.parts.part import Composition
from archipel.core.parts.planning import ValidationCycle
from archipel.core.parts.privacy import Privacy
from archipel.core.parts.protocol import Rounds
from archipel.core.parts.selection import Everyone, Poisson, Uniform
from archipel.core.state import View
from archipel.privacy.accounting import Sampling


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


def check_statistics(owner: str, view: View, private: Sequence[str]) -> None:
    """Refuse layers of running statistics, unless they stay at their learners."""
    statistics = [layer.name for layer in view.layout.layers if layer.buffers and layer.name not in private]
    require(
        not statistics,
        f"{owner}: the layer {', '.join(statistics)!r} holds running statistics, which noise would spoil. "
        "Use group normalisation, or keep them private with PrivateLayers(...).",
    )


def course_conflict(owner: str, algorithm: Composition, sampling: Sampling) -> str | None:
    """Return how a course that follows from the data would tell what noise on sums does not hide, or None."""
    if not isinstance(algorithm.selection, Everyone | Uniform | Poisson):
        return (
            f"{owner} hides who took part, and {algorithm.selection!r} chooses by what learners report. "
            "Use selection=Poisson(), Uniform() or Everyone()."
        )
    protocol = algorithm.protocol
    extra = isinstance(protocol, Rounds) and protocol.extra > 0
    if extra and sampling != "fixed":
        return (
            f"{owner} bounds what one learner adds to a sum, and with {protocol!r} its update also takes another "
            "one's place. Leave extra out, or draw a fixed number with selection=Uniform()."
        )
    cycle = next((planner for planner in algorithm.planners if isinstance(planner, ValidationCycle)), None)
    how_long = cycle or algorithm.plan.cycle
    closes = isinstance(protocol, Rounds) and (extra or protocol.deadline is not None)
    if how_long is not None and (closes or protocol.commits_while_training):
        return (
            f"{owner} takes the order of answers to tell nothing of the data, and with {how_long!r} a learner "
            f"trains as long as its data call for, which under {protocol!r} decides whose updates make a version. "
            "Leave it out, or use rounds that wait for all."
        )
    return None

"""Budget, noise and delta: settings that all noise-adding parts share, and their common conflicts."""

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
    """Privacy by noise, with an account of it."""

    epsilon: float | None = None
    """Budget, never exceeded. Without `noise`, the noise that the run needs is computed from it."""
    noise: float | None = None
    """Standard deviation of the noise in units of the clip; without `epsilon` nothing limits the run."""
    delta: float = 1e-5
    """Probability that epsilon does not hold; below 1 / learners or, with LocalNoise, 1 / examples of a learner."""

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
        """Warn of a delta that permits revealing one of `count` units completely."""
        if self.delta > 1 / count:
            warnings.warn(
                f"{type(self).__name__}: delta {self.delta:g} is more than 1 / {count} {whose}, which permits "
                f"revealing one of them completely; the usual choice is below {count**-1.1:.1g}.",
                ArchipelWarning,
                stacklevel=stacklevel,
            )


def check_statistics(owner: str, view: View, private: Sequence[str]) -> None:
    """Refuse layers of running statistics, unless they are private."""
    statistics = [layer.name for layer in view.layout.layers if layer.buffers and layer.name not in private]
    require(
        not statistics,
        f"{owner}: the layer {', '.join(statistics)!r} holds running statistics, which noise would make useless. "
        "Use group normalisation, or keep them private with PrivateLayers(...).",
    )


def course_conflict(owner: str, algorithm: Composition, sampling: Sampling) -> str | None:
    """Return how the course of the run would reveal data that noise on sums does not hide, or None."""
    if not isinstance(algorithm.selection, Everyone | Uniform | Poisson):
        return (
            f"{owner} hides who took part, and {algorithm.selection!r} chooses by what learners report. "
            "Use selection=Poisson(), Uniform() or Everyone()."
        )
    protocol = algorithm.protocol
    extra = isinstance(protocol, Rounds) and protocol.extra > 0
    if extra and sampling != "fixed":
        return (
            f"{owner} bounds what one learner adds to a sum, and with {protocol!r} its update also displaces "
            "another one. Leave extra out, or draw a fixed number with selection=Uniform()."
        )
    cycle = next((planner for planner in algorithm.planners if isinstance(planner, ValidationCycle)), None)
    how_long = cycle or algorithm.plan.cycle
    closes = isinstance(protocol, Rounds) and (extra or protocol.deadline is not None)
    if how_long is not None and (closes or protocol.commits_while_training):
        return (
            f"{owner} assumes that the order of answers does not depend on the data, and with {how_long!r} the data "
            f"decide how long a learner trains, and so under {protocol!r} whose updates make a version. "
            "Leave it out, or use rounds that wait for all."
        )
    return None

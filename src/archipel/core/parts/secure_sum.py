"""Secure sum: the controller learns the weighted sum of a cohort's changes and nothing of a single one.

Implemented: the protocol of Bonawitz et al. 2017 with the sparse graph of Bell et al. 2020, in
`archipel.privacy.secure_sum`; the engine carries it out. A change is clipped in the Euclidean norm over all layers
sent, multiplied by a weight that is a whole number, and rounded to steps so small that the cohort's sum fits into
`bits`. In simulation all learners and the controller go through the protocol for real; who was given a task and brought
no update has dropped out after it shared its secrets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from archipel.core.checks import at_least, more_than, require
from archipel.core.parts.ending import Ending
from archipel.core.parts.merge import Mean
from archipel.core.parts.part import Composition
from archipel.core.parts.privacy import SumInEngine, planned_by_updates
from archipel.core.parts.protocol import Rounds
from archipel.core.parts.weighting import ByExamples, Equally
from archipel.core.state import Update, View

if TYPE_CHECKING:
    from archipel.privacy.secure_sum.masks import Quantiser, Whole  # they need the extra `privacy`


@dataclass(slots=True)
class CohortMemory:
    """What `SecureSum` remembers."""

    learners: list[str] = field(default_factory=list)
    """The cohort of the open round."""


@dataclass(frozen=True)
class SecureSum(SumInEngine):
    """Show the controller nothing but the sum of a round's updates."""

    threshold: float = 0.75
    """Share of the learners of a round that must have sent before anybody helps to open the sum; above 2/3."""
    clip: float = 10.0
    """Largest norm of a change; a longer one is scaled back by its learner."""
    bits: Literal[32, 64] = 32
    """Sums are modulo 2^bits; more bits make smaller steps."""
    most_examples: int = 1000
    """With ByExamples, the largest weight."""
    at_least: int = 3
    """Learners of a round; of two, each would know the other's update."""

    def __post_init__(self) -> None:
        require(
            isinstance(self.threshold, float) and 2 / 3 < self.threshold <= 1,
            f"SecureSum: threshold should be above 2/3 and at most 1, got {self.threshold!r}.",
        )
        more_than(0, "SecureSum", clip=self.clip)
        require(self.bits in (32, 64), f"SecureSum: bits should be 32 or 64, got {self.bits!r}.")
        at_least(1, "SecureSum", most_examples=self.most_examples)
        at_least(3, "SecureSum", "of two learners each would know the other's update", at_least=self.at_least)

    def conflicts(self, algorithm: Composition) -> str | None:
        """Refuse what needs single models."""
        if not isinstance(algorithm.weighting, Equally | ByExamples):
            return (
                f"SecureSum hides single models, and {algorithm.weighting!r} weighs by them or by their time. "
                "Use weighting=Equally() or ByExamples()."
            )
        if not isinstance(algorithm.merge, Mean):
            return f"SecureSum gives a sum, and {algorithm.merge!r} needs single models. Use merge=Mean()."
        if not isinstance(algorithm.protocol, Rounds):
            return f"SecureSum adds up a round, and {algorithm.protocol!r} has none. Use Rounds(...)."
        planner = planned_by_updates(algorithm)
        if planner is not None:
            return (
                f"SecureSum hides single models, and {planner!r} plans by them. Leave it out; DivideAndConquer goes "
                "with a given split."
            )
        return None

    def begin(self, view: View, algorithm: Composition, ending: Ending, learners: int, private: Sequence[str]) -> None:
        """Refuse rounds that are too small."""
        assert isinstance(algorithm.protocol, Rounds)
        asked = algorithm.protocol.asked(learners)
        require(
            asked >= self.at_least,
            f"SecureSum: a round of {algorithm.protocol!r} has {asked} of {learners} learners, and a sum of fewer than "
            f"{self.at_least} tells too much of each. Raise the fraction, or have more learners take part.",
        )

    def drawn(self, view: View, chosen: Sequence[str], sampled: int, among: int) -> None:
        view.memory(CohortMemory).learners = sorted(chosen)

    def refusal(self, view: View, updates: Sequence[Update]) -> str | None:
        """Refuse a round that too few have sent updates for."""
        cohort = len(view.memory(CohortMemory).learners)
        needed = max(self.at_least, math.ceil(self.threshold * cohort))
        if len(updates) >= needed:
            return None
        return f"{len(updates)} of {cohort} learners have sent, and a secure sum needs {needed}"

    def given_up(self, view: View, learner: str) -> None:
        """Leave a learner out that the controller itself has given up, as one too many or too late."""
        learners = view.memory(CohortMemory).learners
        if learner in learners:
            learners.remove(learner)

    def whole(self, weights: Sequence[Sequence[float]]) -> list[int]:
        return [self.whole_weight(weight[0]) for weight in weights]

    def absent(self, view: View, updates: Sequence[Update]) -> tuple[str, ...]:
        there = {update.learner for update in updates}
        return tuple(name for name in view.memory(CohortMemory).learners if name not in there)

    def whole_weight(self, weight: float) -> int:
        """Return a weight as a learner computes it."""
        return max(1, min(int(weight), self.most_examples))

    def quantiser(self, cohort: int, equally: bool) -> Quantiser:
        """Return how a cohort's changes become whole numbers; equally: all weights are 1."""
        from archipel.privacy.secure_sum.masks import Quantiser

        return Quantiser(self.clip, self.bits, cohort * (1 if equally else self.most_examples))


def change_of_layers(model: Tensor, start: Tensor, pieces: Sequence[slice]) -> Tensor:
    """Return how far a model lies from another in some layers, one behind the other."""
    return torch.cat([model[piece].double() - start[piece].double() for piece in pieces])


def mean_model(
    quantiser: Quantiser, total: Whole, senders: int, start: Tensor, pieces: Sequence[slice]
) -> tuple[Tensor, int]:
    """Return the model that lies from another by the mean of the changes in a sum, and the sum of the weights.

    Raise `BeyondRange` if so many learners cannot have sent that sum.
    """
    changes, weight = quantiser.decode(total, senders)
    model, place = start.clone(), 0
    for piece in pieces:
        size = piece.stop - piece.start
        model[piece] = start[piece].double() + torch.from_numpy(changes[place : place + size]) / weight
        place += size
    return model, weight

"""Secure sum: the controller learns the weighted sum of a cohort's changes and nothing of a single one.

Implemented: the protocol of Bonawitz et al. 2017 with the sparse graph of Bell et al. 2020, in
`archipel.privacy.secure_sum`. In simulation all learners and the controller go through it for real; who was given a
task and brought no update has dropped out after it shared its secrets. A change is clipped in the Euclidean norm over
all layers sent, multiplied by a weight that is a whole number, and rounded to steps so small that the cohort's sum fits
into `bits`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from archipel.core.checks import at_least, more_than, require
from archipel.core.parts.merge import Mean, Merge, Proposal
from archipel.core.parts.part import Composition
from archipel.core.parts.privacy import Privacy, planned_by_updates
from archipel.core.parts.protocol import Rounds
from archipel.core.parts.weighting import ByExamples, Equally
from archipel.core.state import Update, View


@dataclass(slots=True)
class CohortMemory:
    """What `SecureSum` remembers."""

    learners: list[str] = field(default_factory=list)
    """The cohort of the open round."""
    sums: int = 0
    """Rounds that were added up."""


@dataclass(frozen=True)
class SecureSum(Privacy):
    """Show the controller nothing but the sum of a round's updates; in simulation only."""

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

    def drawn(self, view: View, chosen: Sequence[str], sampled: int, among: int) -> None:
        view.memory(CohortMemory).learners = sorted(chosen)

    def refusal(self, view: View, updates: Sequence[Update]) -> str | None:
        """Refuse a round that too few have sent updates for."""
        cohort = len(view.memory(CohortMemory).learners)
        needed = max(self.at_least, math.ceil(self.threshold * cohort))
        if len(updates) >= needed:
            return None
        return f"{len(updates)} of {cohort} learners have sent, and a secure sum needs {needed}"

    def merge(
        self,
        view: View,
        merge: Merge,
        updates: Sequence[Update],
        weights: Sequence[Sequence[float]],
        layers: Sequence[int],
    ) -> Proposal:
        from archipel.privacy.secure_sum.masks import Quantiser  # imported late: they need the extra `privacy`
        from archipel.privacy.secure_sum.rehearsal import rehearse

        memory = view.memory(CohortMemory)
        memory.sums += 1
        require(
            all(update.layers == updates[0].layers for update in updates),
            "SecureSum: learners have sent different layers, which cannot be added up.",
        )
        pieces = view.layout.slices(updates[0].layers)
        whole = [max(1, min(int(weight[layers[0]]), self.most_examples)) for weight in weights]
        most = self.most_examples if max(whole) > 1 else 1
        quantiser = Quantiser(self.clip, self.bits, most * len(memory.learners))
        numbers = {
            update.learner: quantiser.encode(_change(view, update, pieces).numpy(), weight)
            for update, weight in zip(updates, whole, strict=True)
        }
        total = rehearse(memory.learners, f"round {memory.sums}", numbers, threshold=self.threshold)
        changes, weight_sum = quantiser.decode(total, len(updates))
        proposal, place = view.kernels.empty(view.layout.size), 0
        for piece in pieces:
            size = piece.stop - piece.start
            mean = torch.from_numpy(changes[place : place + size]) / weight_sum
            proposal[piece] = view.models.read(updates[0].start, piece).double() + mean
            place += size
        return Proposal(proposal, tuple(updates[0].layers))


def _change(view: View, update: Update, pieces: Sequence[slice]) -> torch.Tensor:
    """Return how far an update moves the layers it sent, one behind the other."""
    read = view.models.read
    return torch.cat([read(update.model.name, piece).double() - read(update.start, piece).double() for piece in pieces])

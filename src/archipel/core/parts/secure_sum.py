"""Secure sum: the controller learns the weighted sum of a cohort's changes and nothing of a single one.

Implemented: the protocol of Bonawitz et al. 2017 with the sparse graph of Bell et al. 2020, in
`archipel.privacy.secure_sum`; the engine carries it out. A change is clipped in the Euclidean norm over all layers
sent, multiplied by a weight that is a whole number, and rounded to steps so small that the cohort's sum fits into
`bits`. With `noise` or `epsilon` every learner adds a discrete Gaussian to its numbers (Kairouz et al., The Distributed
Discrete Gaussian Mechanism, 2021), enough for the smallest sum that the controller can open to have the noise that is
accounted for, so the sum itself is differentially private. A simulation runs the real protocol between all learners and
the controller; a learner whose task brought no update drops out after it has shared its secrets.
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
from archipel.core.parts.noise_terms import NoisePrivacy, check_statistics, course_conflict
from archipel.core.parts.part import Composition
from archipel.core.parts.privacy import SumInEngine, planned_by_updates
from archipel.core.parts.privacy_account import PrivacyAccount
from archipel.core.parts.protocol import Rounds
from archipel.core.parts.weighting import ByExamples, Equally
from archipel.core.records import PrivacySpent
from archipel.core.state import Update, View
from archipel.privacy.accounting import Draws, noise_for

if TYPE_CHECKING:
    from archipel.privacy.secure_sum.masks import Whole  # they need the extra `privacy`
    from archipel.privacy.secure_sum.quantiser import Quantiser


@dataclass(slots=True)
class CohortMemory:
    """Memory of `SecureSum` without noise."""

    learners: list[str] = field(default_factory=list)
    """The cohort of the open round."""


@dataclass(slots=True)
class NoisedCohort(PrivacyAccount):
    """Memory of `SecureSum` with noise."""

    learners: list[str] = field(default_factory=list)
    """The cohort of the open round."""


@dataclass(frozen=True)
class SecureSum(NoisePrivacy, SumInEngine):
    """Reveal only the sum of a round's updates to the controller; with `epsilon` or `noise`, a noised sum."""

    threshold: float = 0.75
    """Share of a round's learners that must have sent before the others help to open the sum; above 2/3."""
    clip: float = 10.0
    """Largest norm of a change; a longer one is scaled back by its learner."""
    bits: Literal[32, 64] = 32
    """Sums are modulo 2^bits; more bits allow smaller steps."""
    most_examples: int = 1000
    """The largest weight with ByExamples."""
    at_least: int = 3
    """Fewest learners of a round; of two, each would know the other's update."""
    single_scores: bool = False
    """Learners send scores on their own examples one by one: counts of each class, right and wrong. Without it they
    are added up like updates."""

    def __post_init__(self) -> None:
        if self.noised:
            super().__post_init__()
        require(
            isinstance(self.threshold, float | int) and 2 / 3 < self.threshold <= 1,
            f"SecureSum: threshold should be above 2/3 and at most 1, such as 0.75, got {self.threshold!r}.",
        )
        more_than(0, "SecureSum", clip=self.clip)
        require(
            isinstance(self.bits, int) and self.bits in (32, 64),
            f"SecureSum: bits should be 32 or 64, got {self.bits!r}.",
        )
        at_least(1, "SecureSum", most_examples=self.most_examples)
        at_least(3, "SecureSum", "of two learners each would know the other's update", at_least=self.at_least)
        for name in ("most_examples", "at_least"):
            value = getattr(self, name)
            require(isinstance(value, int), f"SecureSum: {name} should be a whole number, got {value!r}.")
        require(
            isinstance(self.single_scores, bool),
            f"SecureSum: single_scores should be true or false, got {self.single_scores!r}.",
        )

    @property
    def noised(self) -> bool:
        """Whether learners add noise to their numbers."""
        return self.epsilon is not None or self.noise is not None

    @property
    def hides_scores(self) -> bool:
        return not self.single_scores

    @property
    def keyed(self) -> bool:  # type: ignore[override]
        return self.noised

    @property
    def statistics(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("none", "local") if self.noised else ("none", "global", "local")

    def conflicts(self, algorithm: Composition) -> str | None:
        """Return why other parts need single models or, with noise, reveal more of the data, or None."""
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
        if not self.noised:
            return None
        if not isinstance(algorithm.weighting, Equally):
            return (
                f"SecureSum with noise needs weights that do not depend on the data, unlike those of "
                f"{algorithm.weighting!r}. Use weighting=Equally()."
            )
        return course_conflict("SecureSum", algorithm, "summed")

    def begin(self, view: View, algorithm: Composition, ending: Ending, learners: int, private: Sequence[str]) -> None:
        """Refuse rounds that are too small; with noise, open the account."""
        assert isinstance(algorithm.protocol, Rounds)
        asked = algorithm.protocol.asked(learners)
        require(
            asked >= self.at_least,
            f"SecureSum: a round of {algorithm.protocol!r} has {asked} of {learners} learners, and a sum of fewer than "
            f"{self.at_least} tells too much of each. Raise the fraction, or have more learners take part.",
        )
        if not self.noised:
            return
        check_statistics("SecureSum", view, private)
        self.quantiser(asked, True, self.noise_of(ending)).most_norm(view.layout.size)  # raises if there is none
        self.warn_of_delta(learners, "learners", stacklevel=3)
        account = NoisedCohort(
            sampling="summed",
            noise=self.noise_of(ending),
            delta=self.delta,
            clip=self.clip,
            budget=min((one for one in (self.epsilon, ending.epsilon) if one is not None), default=math.inf),
        )
        account.check_first("SecureSum", "sum")
        view.memory(NoisedCohort, lambda: account)

    def noise_of(self, ending: Ending) -> float:
        """Return the least noise of a sum in clips: as given, or as the budget requires for its rounds."""
        if self.noise is not None or not self.noised:
            return self.noise or 0.0
        rounds = ending.commits or ending.rounds
        require(
            rounds is not None,
            f"SecureSum: epsilon={self.epsilon} has to last for a number of rounds; give Ending(rounds=...) or "
            "Ending(commits=...), or give noise=... and end when the budget is spent.",
        )
        assert rounds is not None
        assert self.epsilon is not None
        return noise_for("summed", self.epsilon, (Draws(1, 1, rounds),), self.delta)

    def drawn(self, view: View, chosen: Sequence[str], sampled: int, among: int) -> None:
        self._cohort(view)[:] = sorted(chosen)

    def refusal(self, view: View, updates: Sequence[Update]) -> str | None:
        """Return why a round has too few updates or exceeds the budget, or None."""
        if self.noised:
            account = view.memory(NoisedCohort)
            cost = account.cost(update.learner for update in updates)
            if cost > account.budget:
                account.following = cost
                return f"the privacy budget of {account.budget:g} does not pay for another sum"
        cohort = len(self._cohort(view))
        needed = max(self.at_least, math.ceil(self.threshold * cohort))
        if len(updates) >= needed:
            return None
        return f"{len(updates)} of {cohort} learners have sent, and a secure sum needs {needed}"

    def given_up(self, view: View, learner: str) -> None:
        """Remove a learner whose task the controller has given up, as superfluous or late."""
        learners = self._cohort(view)
        if learner in learners:
            learners.remove(learner)

    def summed(self, view: View, updates: Sequence[Update]) -> None:
        if self.noised:
            view.memory(NoisedCohort).spend(update.learner for update in updates)

    def spent(self, view: View, version: int) -> PrivacySpent | None:
        return view.memory(NoisedCohort).spent(version) if self.noised else None

    def _cohort(self, view: View) -> list[str]:
        """Return the learners of the open round."""
        return view.memory(NoisedCohort).learners if self.noised else view.memory(CohortMemory).learners

    def whole(self, weights: Sequence[Sequence[float]]) -> list[int]:
        return [self.whole_weight(weight[0]) for weight in weights]

    def absent(self, view: View, updates: Sequence[Update]) -> tuple[str, ...]:
        there = {update.learner for update in updates}
        return tuple(name for name in self._cohort(view) if name not in there)

    def whole_weight(self, weight: float) -> int:
        """Return a whole weight as learners compute it."""
        return max(1, min(int(weight), self.most_examples))

    def quantiser(self, cohort: int, equally: bool, noise: float = 0.0) -> Quantiser:
        """Return the conversion of a cohort's changes to whole numbers.

        equally: all weights are 1. noise: the least noise of any sum, in clips, to which each learner adds a part.
        """
        from archipel.privacy.secure_sum.graph import smallest_group
        from archipel.privacy.secure_sum.quantiser import Quantiser

        part = noise / math.sqrt(smallest_group(cohort, self.threshold))
        return Quantiser(self.clip, self.bits, cohort * (1 if equally else self.most_examples), part)


def change_of_layers(model: Tensor, start: Tensor, pieces: Sequence[slice]) -> Tensor:
    """Return the concatenated differences of two models in these pieces."""
    found, place = torch.empty(sum(piece.stop - piece.start for piece in pieces), dtype=torch.float64), 0
    for piece in pieces:
        size = piece.stop - piece.start
        found[place : place + size].copy_(model[piece]).sub_(start[piece])  # converted first: no rounding to float32
        place += size
    return found


def mean_model(
    quantiser: Quantiser, total: Whole, senders: int, start: Tensor, pieces: Sequence[slice]
) -> tuple[Tensor, int]:
    """Return the model that results from a sum of changes to another model, and the sum of the weights.

    Raise `BeyondRange` if the senders cannot have made that sum.
    """
    changes, weight = quantiser.decode(total, senders)
    model, place = start.clone(), 0
    for piece in pieces:
        size = piece.stop - piece.start
        model[piece] = start[piece].double() + torch.from_numpy(changes[place : place + size]) / weight
        place += size
    return model, weight

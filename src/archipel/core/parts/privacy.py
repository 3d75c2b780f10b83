"""Privacy: limits what the model, or the controller, reveals about single updates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from archipel.core.parts.ending import Ending
from archipel.core.parts.frozen import FrozenLayers
from archipel.core.parts.merge import Merge, Proposal
from archipel.core.parts.part import Composition, Part
from archipel.core.parts.personal import PersonalPhase
from archipel.core.parts.phases import HeadFirst
from archipel.core.parts.planning import (
    Decay,
    DivideAndConquer,
    PeriodicLayers,
    PrivateLayers,
    Proximal,
    ValidationCycle,
)
from archipel.core.records import PrivacySpent
from archipel.core.state import Update, View

BLIND = (Proximal, Decay, ValidationCycle, PeriodicLayers, PrivateLayers, FrozenLayers, HeadFirst, PersonalPhase)
"""Planners that do not use updates."""


class Privacy(Part):
    """A way to merge updates that reveals less of each."""

    keyed = False
    """Whether the controller needs a key that no learner knows."""
    statistics: tuple[str, ...] = ("none", "global", "local")
    """Allowed sources of statistics for standardising features; the account does not cover sums of features."""
    merges = True
    """Whether this part merges the updates instead of the merge."""
    hides_updates = True
    """Whether records must not contain anything computed from single updates."""

    @property
    def hides_scores(self) -> bool:
        """Whether learners' scores are added up so that the controller sees no single one."""
        return False

    def begin(self, view: View, algorithm: Composition, ending: Ending, learners: int, private: Sequence[str]) -> None:
        """Prepare a run of this many learners; refuse settings that cannot be met."""

    def drawn(self, view: View, chosen: Sequence[str], sampled: int, among: int) -> None:
        """Record the learners of a round; sampled: how many were requested, among: of how many."""

    def given_up(self, view: View, learner: str) -> None:
        """Record that the controller itself has given up a task of the round."""

    def refusal(self, view: View, updates: Sequence[Update]) -> str | None:
        """Return why these updates must not become a version, or None."""
        return None

    def spent(self, view: View, version: int) -> PrivacySpent | None:
        """Return the record of the privacy spent up to this version, if it keeps an account."""
        return None

    def merge(
        self,
        view: View,
        merge: Merge,
        updates: Sequence[Update],
        weights: Sequence[Sequence[float]],
        layers: Sequence[int],
    ) -> Proposal:
        """Merge updates; `layers` are those that the round changes, even without any update."""
        raise NotImplementedError


class SumInEngine(Privacy):
    """Privacy by a sum that the engine computes: the controller sees no single update."""

    @abstractmethod
    def whole(self, weights: Sequence[Sequence[float]]) -> list[int]:
        """Return the weights as whole numbers, as learners compute them themselves."""

    def summed(self, view: View, updates: Sequence[Update]) -> None:
        """Record that the engine has added up these updates, even if the sum is refused."""

    @abstractmethod
    def absent(self, view: View, updates: Sequence[Update]) -> tuple[str, ...]:
        """Return the learners of the round without an update."""


def planned_by_updates(algorithm: Composition) -> Part | None:
    """Return a planner that uses single updates, or None."""
    for planner in algorithm.planners:
        given = isinstance(planner, DivideAndConquer) and planner.split is not None
        if not (given or isinstance(planner, BLIND)):
            return planner
    return None

"""Privacy: what stands between the updates of a commit and everybody who sees the model, or the controller itself."""

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
"""Planners that look at no update."""


class Privacy(Part):
    """Merges updates so that less is seen of each."""

    keyed = False
    """Whether the controller needs a key that no learner knows."""
    statistics: tuple[str, ...] = ("none", "global", "local")
    """Whose statistics features may be standardised by, where the account covers no sums of features."""
    merges = True
    """Whether updates are merged by this part, in the merge's place."""
    hides_updates = True
    """Whether records must tell nothing that is computed from single updates."""

    def begin(self, view: View, algorithm: Composition, ending: Ending, learners: int, private: Sequence[str]) -> None:
        """Prepare a run of so many learners; refuse what cannot be had."""

    def drawn(self, view: View, chosen: Sequence[str], sampled: int, among: int) -> None:
        """Note who takes part in a round; sampled: how many were asked for, among so many."""

    def given_up(self, view: View, learner: str) -> None:
        """Note that the controller itself has given up a task of the round."""

    def refusal(self, view: View, updates: Sequence[Update]) -> str | None:
        """Return why these updates must not become a version, or None."""
        return None

    def spent(self, view: View, version: int) -> PrivacySpent | None:
        """Return the record of what the versions up to this one reveal, if it keeps an account."""
        return None

    def merge(
        self,
        view: View,
        merge: Merge,
        updates: Sequence[Update],
        weights: Sequence[Sequence[float]],
        layers: Sequence[int],
    ) -> Proposal:
        """Merge updates; `layers` are those that a round changes, whoever takes part in it."""
        raise NotImplementedError


class SumInEngine(Privacy):
    """Has the engine add up updates: the controller sees no single one."""

    @abstractmethod
    def whole(self, weights: Sequence[Sequence[float]]) -> list[int]:
        """Return the weights as whole numbers, as learners compute them themselves."""

    def summed(self, view: View, updates: Sequence[Update]) -> None:
        """Note that the engine has had these updates added up, whatever becomes of the sum."""

    @abstractmethod
    def absent(self, view: View, updates: Sequence[Update]) -> tuple[str, ...]:
        """Return the learners of the round that brought no update."""


def planned_by_updates(algorithm: Composition) -> Part | None:
    """Return a planner that looks at single updates, if there is one."""
    for planner in algorithm.planners:
        given = isinstance(planner, DivideAndConquer) and planner.split is not None
        if not (given or isinstance(planner, BLIND)):
            return planner
    return None

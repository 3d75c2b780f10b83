"""A learner's data and network in a federation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from archipel.data.standardise import Moments
from archipel.executors.choice import Way
from archipel.federation.learner.masked_updates import SumSettings
from archipel.federation.learner.policy import Policy, Probes
from archipel.learner.example_budget import BudgetTerms
from archipel.learner.learner import Learner, TrainingContext


@dataclass
class LocalSite:
    """Its data, its network, and how to standardise them by everybody's statistics."""

    work: TrainingContext
    learner: Learner
    policy: Policy
    seed: int = 0
    """The study's: the randomness of every task follows from it."""
    moments: Moments | None = None
    """Of its training part, where the study standardises features by everybody's statistics."""
    standardise: Callable[[Moments], TrainingContext] | None = None
    execution: Way | None = None
    """How to train; None: as suits the network."""
    sums: SumSettings | None = None
    """How updates are added up, if that is done securely."""

    budget: BudgetTerms | None = None
    """What its examples may be spent for, where the study adds noise to gradients."""

    @property
    def refuses(self) -> frozenset[Probes]:
        """What the site does not answer."""
        return self.policy.refused(len(self.learner.validation), len(self.learner.test))

"""The account of a run with differential privacy: what its commits have cost, and what another one would."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from archipel.core.members import Members
from archipel.core.parts.ending import Account
from archipel.core.records import PrivacySpent
from archipel.privacy.accounting import Draws, Sampling, epsilon


@dataclass(slots=True)
class PrivacyAccount(Account):
    """What `CentralNoise` remembers, and `SecureSum` with noise."""

    sampling: Sampling
    noise: float
    """In units of the clip."""
    delta: float
    clip: float
    """Of the next commit; it moves if it is adaptive."""
    budget: float = math.inf
    """Epsilon that is never exceeded."""
    sampled: int = 1
    """Learners drawn for the open round; for Poisson, the number expected."""
    among: int = 1
    """Learners that they are drawn from."""
    divides: bool = False
    """A sum is divided by the number of learners that its round asks, and not by how many answer."""
    asked: int = 0
    """That number for the open round; for Poisson, the number expected. 0: by how many have answered."""
    rounds: dict[tuple[int, int], int] = field(default_factory=dict)
    """Commits so far by (sampled, among)."""
    times: dict[str, int] = field(default_factory=dict)
    """Commits that each learner has contributed to, where no draw hides that."""
    releases: int = 0
    epsilon: float = 0.0
    """Spent so far; of the learner that contributed most often, where they are counted."""
    following: float = 0.0
    """What will be spent after another commit like the last, at most."""

    @property
    def counts_each(self) -> bool:
        """Whether each learner's contributions are counted, since no draw hides them."""
        return self.sampling in ("counted", "summed")

    def cost(self, learners: Iterable[str]) -> float:
        """Return epsilon after a commit of these learners."""
        if self.counts_each:
            most = max((self.times.get(learner, 0) + n for learner, n in Counter(learners).items()), default=0)
            return max(self.epsilon, self._epsilon({(1, 1): most}))
        drawn = (self.sampled, self.among)
        return self._epsilon({**self.rounds, drawn: self.rounds.get(drawn, 0) + 1})

    def spend(self, learners: Iterable[str]) -> None:
        """Enter a commit of these learners."""
        learners = list(learners)
        self.epsilon = self.cost(learners)
        self.releases += 1
        if self.counts_each:
            for learner in learners:
                self.times[learner] = self.times.get(learner, 0) + 1
        else:
            drawn = (self.sampled, self.among)
            self.rounds[drawn] = self.rounds.get(drawn, 0) + 1
        self.look_ahead()

    def look_ahead(self) -> None:
        """Find what another commit would cost: with the learner that has contributed most often."""
        often = max(self.times, key=lambda learner: self.times[learner], default="")
        self.following = self.cost([often])

    def exhausted(self, members: Members) -> str | None:
        """Return why no further commit may be made, or None."""
        if self.following <= self.budget:
            return None
        return (
            f"epsilon {self.epsilon:.4g} is spent at delta {self.delta:g}, and another commit would exceed the budget "
            f"of {self.budget:g}"
        )

    def spent(self, version: int) -> PrivacySpent:
        """Return the record of a version."""
        return PrivacySpent(version, self.epsilon, self.delta, self.noise, self.clip)

    def _epsilon(self, rounds: dict[tuple[int, int], int]) -> float:
        draws = tuple(Draws(*drawn, count) for drawn, count in sorted(rounds.items()))
        return epsilon(self.sampling, self.noise, draws, self.delta)

"""The account of a run with differential privacy: the cost of its commits so far and of the next one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from archipel.core.checks import require
from archipel.core.members import Members
from archipel.core.parts.ending import Account
from archipel.core.records import PrivacySpent
from archipel.privacy.accounting import Draws, Sampling, epsilon


@dataclass(slots=True)
class PrivacyAccount(Account):
    """Memory of `CentralNoise`, and of `SecureSum` with noise."""

    sampling: Sampling
    noise: float
    """In units of the clip."""
    delta: float
    clip: float
    """Clip of the next commit; an adaptive one changes."""
    budget: float = math.inf
    """Epsilon that is never exceeded."""
    sampled: int = 1
    """Learners drawn for the open round; for Poisson, the expected number."""
    among: int = 1
    """Number of learners that they are drawn from."""
    divides: bool = False
    """Whether a sum is divided by the number of learners asked, and not by how many answer."""
    asked: int = 0
    """That number for the open round; for Poisson, the expected number. 0: divide by the number of answers."""
    rounds: dict[tuple[int, int], int] = field(default_factory=dict)
    """Commits so far by (sampled, among)."""
    times: dict[str, int] = field(default_factory=dict)
    """Commits that each learner has contributed to, if no random draw hides that."""
    releases: int = 0
    epsilon: float = 0.0
    """Epsilon spent so far; if contributions are counted, by the most frequent contributor."""
    following: float = 0.0
    """Upper bound of epsilon after another commit like the last."""

    @property
    def counts_each(self) -> bool:
        """Whether each learner's contributions are counted, because no random draw hides them."""
        return self.sampling in ("counted", "summed")

    def cost(self, learners: Iterable[str]) -> float:
        """Return epsilon after a commit of these learners."""
        if self.counts_each:
            most = max((self.times.get(learner, 0) + n for learner, n in Counter(learners).items()), default=0)
            return max(self.epsilon, self._epsilon({(1, 1): most}))
        drawn = (self.sampled, self.among)
        return self._epsilon({**self.rounds, drawn: self.rounds.get(drawn, 0) + 1})

    def spend(self, learners: Iterable[str]) -> None:
        """Add a commit of these learners to the account."""
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
        """Compute the cost of another commit with the most frequent contributor."""
        often = max(self.times, key=lambda learner: self.times[learner], default="")
        self.following = self.cost([often])

    def check_first(self, owner: str, release: str) -> None:
        """Refuse a budget that is too small for a single release."""
        self.look_ahead()
        require(
            self.following <= self.budget,
            f"{owner}: noise {self.noise:g} costs epsilon {self.following:.3g} for a single {release}, and the budget "
            f"is {self.budget:g}. Raise the noise or the budget.",
        )

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

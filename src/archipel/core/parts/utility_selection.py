"""Selections by what learners report of their loss, and by the groups they belong to.

A learner reports the training loss of the model it received with its update, so what is known of a learner is as old as
its last update. The controller has no clock: how fast learners are is known by their groups alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from archipel.core.checks import at_least, between, require, share
from archipel.core.parts.part import Needs
from archipel.core.parts.selection import Selection
from archipel.core.state import Update, View


@dataclass(slots=True)
class LossMemory:
    losses: dict[str, float] = field(default_factory=dict)
    """The last training loss of each learner that has reported."""


@dataclass(frozen=True)
class ByLoss(Selection):
    """Power-of-choice: of d learners drawn by their examples, take those with the highest last training loss."""

    candidates: int = 10
    """d; at least as many as take part are drawn."""

    needs = Needs(reports=("training loss",))

    def __post_init__(self) -> None:
        at_least(1, "ByLoss", candidates=self.candidates)

    def observe(self, view: View, update: Update) -> None:
        view.memory(LossMemory).losses[update.learner] = _reported(update.metrics.training_loss)

    def select(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        losses = view.memory(LossMemory).losses
        drawn = race(view.generator(draw), _examples(view, candidates))[: max(self.candidates, count)]
        # who has never reported comes first; the draw decides between equals
        ranked = sorted(drawn, key=lambda i: -losses.get(candidates[i], math.inf))
        return [candidates[i] for i in ranked[:count]]


@dataclass(slots=True)
class UtilityMemory:
    utility: dict[str, float] = field(default_factory=dict)
    """n sqrt(mean squared loss) of each learner that has reported."""
    last: dict[str, int] = field(default_factory=dict)
    """The round of its last report, from 1."""


@dataclass(frozen=True)
class ByUtility(Selection):
    """Oort's statistical utility: learners with many examples of high loss, and a share of learners not seen yet.

    U_k = n_k sqrt(mean squared loss), to which sqrt(.1 log(R) / L_k) is added in round R for a learner last seen in
    round L_k. Those within `cutoff` of the last one that would be taken are drawn in proportion to it.
    """

    explore: float = 0.9
    """Share of the places that go to learners not seen yet, in the first round."""
    decay: float = 0.98
    """Factor of that share in every round."""
    least: float = 0.2
    """The smallest that it becomes."""
    cutoff: float = 0.95

    needs = Needs(reports=("training loss",))

    def __post_init__(self) -> None:
        between("ByUtility", "explore", self.explore, 0, 1)
        share("ByUtility", "decay", self.decay)
        between("ByUtility", "least", self.least, 0, 1)
        share("ByUtility", "cutoff", self.cutoff)

    def observe(self, view: View, update: Update) -> None:
        memory = view.memory(UtilityMemory)
        examples = 1 if update.examples is None else update.examples
        memory.utility[update.learner] = examples * math.sqrt(_reported(update.metrics.squared_loss))
        memory.last[update.learner] = view.version + 1

    def select(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        memory, generator = view.memory(UtilityMemory), view.generator(draw)
        seen = [name for name in candidates if name in memory.utility]
        unseen = [name for name in candidates if name not in memory.utility]
        places = min(count, len(candidates))
        new = min(len(unseen), round(places * self.explored(view.version)))
        new = max(new, places - len(seen))
        chosen = [unseen[i] for i in generator.permutation(len(unseen))[:new]]
        values = [self.value(memory, name, view.version + 1) for name in seen]
        known = places - new
        if known:
            bar = self.cutoff * sorted(values, reverse=True)[known - 1]
            pool = [i for i, value in enumerate(values) if value >= bar]
            order = race(generator, [values[i] for i in pool])[:known]
            chosen += [seen[pool[i]] for i in order]
        return chosen

    def explored(self, version: int) -> float:
        """Return the share of the places that go to learners not seen yet."""
        return max(self.least, self.explore * self.decay**version)

    @staticmethod
    def value(memory: UtilityMemory, name: str, round_: int) -> float:
        return memory.utility[name] + math.sqrt(0.1 * math.log(round_) / memory.last[name])


@dataclass(slots=True)
class TierMemory:
    losses: dict[str, float] = field(default_factory=dict)
    """The last training loss of each learner that has reported."""
    used: dict[str, int] = field(default_factory=dict)
    """How often each tier was chosen."""


@dataclass(frozen=True)
class ByTier(Selection):
    """TiFL: choose a tier, then learners of it alone, so that nobody waits for a slower tier. Tiers are groups."""

    chances: Mapping[str, float] | None = None
    """Of each tier; None: in proportion to the mean of its learners' last training losses."""
    credits: int | None = None
    """Rounds that a tier may be chosen, as long as another one has some left; None: any number."""

    @property
    def needs(self) -> Needs:
        return Needs(reports=("training loss",) if self.chances is None else ())

    def __post_init__(self) -> None:
        if self.credits is not None:
            at_least(1, "ByTier", credits=self.credits)
        for tier, chance in (self.chances or {}).items():
            at_least(0, f"ByTier: chances[{tier!r}]", chance=chance)

    def check_groups(self, groups: Sequence[str]) -> None:
        for tier in self.chances or ():
            require(
                tier in groups,
                f"ByTier: chances names {tier!r}, and no learner is in such a group. Groups: {', '.join(groups)}.",
            )

    def observe(self, view: View, update: Update) -> None:
        if self.chances is None:
            view.memory(TierMemory).losses[update.learner] = _reported(update.metrics.training_loss)

    def select(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        memory, generator = view.memory(TierMemory), view.generator(draw)
        tiers: dict[str, list[str]] = {}
        for name in candidates:
            tiers.setdefault(view.state.members[name].group, []).append(name)
        names = sorted(tiers)
        chances = [self.chance(memory, tier, tiers[tier]) for tier in names]
        left = [self.credits is None or memory.used.get(tier, 0) < self.credits for tier in names]
        if any(left):
            chances = [chance if some else 0.0 for chance, some in zip(chances, left, strict=True)]
        tier = names[race(generator, chances)[0]]
        memory.used[tier] = memory.used.get(tier, 0) + 1
        members = tiers[tier]
        return [members[i] for i in generator.permutation(len(members))[:count]]

    def chance(self, memory: TierMemory, tier: str, members: Sequence[str]) -> float:
        """Return a tier's chance; a learner that has not reported stands at the mean of those that have."""
        if self.chances is not None:
            return self.chances.get(tier, 0.0)
        known = [memory.losses[name] for name in sorted(memory.losses)]
        guess = math.fsum(known) / len(known) if known else 1.0
        return math.fsum(memory.losses.get(name, guess) for name in members) / len(members)


def race(generator: np.random.Generator, chances: Sequence[float]) -> list[int]:
    """Draw all without replacement, in order, with chances in proportion; those without a chance come last."""
    given = np.asarray(chances, dtype=np.float64)
    times = generator.exponential(size=len(given))
    arrivals = np.divide(times, given, out=np.full(len(given), np.inf), where=given > 0)
    order: list[int] = np.argsort(arrivals, kind="stable").tolist()
    return order


def _examples(view: View, names: Sequence[str]) -> list[float]:
    """Return the learners' examples; one that does not tell has as many as the others in the mean."""
    told = [view.state.members[name].examples for name in names]
    known = [examples for examples in told if examples is not None]
    guess = sum(known) / len(known) if known else 1.0
    return [guess if examples is None else float(examples) for examples in told]


def _reported(loss: float | None) -> float:
    assert loss is not None  # an update without one was refused
    return loss

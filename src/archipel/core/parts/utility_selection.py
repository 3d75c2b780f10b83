"""Selections by the learners' reported losses and by their groups.

A learner reports the training loss of the received model with its update, so its known loss is as old as its last
update. The controller has no clock: it knows the learners' speeds by their groups alone.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from archipel.core.checks import at_least, between, require, share
from archipel.core.members import SortedNames
from archipel.core.parts.few_tries import PART, draw_by_tries, draws_until_next_look, finder
from archipel.core.parts.part import Needs
from archipel.core.parts.selection import Selection
from archipel.core.parts.utility_ranks import UtilityMemory
from archipel.core.randomness import PERMUTED
from archipel.core.state import Update, View


@dataclass(slots=True)
class LossMemory:
    losses: dict[str, float] = field(default_factory=dict)
    """The last training loss of each learner that has reported."""
    guess: float = 1.0
    """Examples assumed of a learner that withholds them; this and the next two are as of the last pass over all."""
    most: float = 0.0
    """The largest number of examples."""
    draws: int = 0
    """Draws until the next pass over all candidates."""


@dataclass(frozen=True)
class ByLoss(Selection):
    """Power-of-choice: of d learners drawn by their examples, take those with the highest last training loss."""

    candidates: int = 10
    """d; raised to the number of learners that take part."""

    needs = Needs(reports=("training loss",))

    def __post_init__(self) -> None:
        at_least(1, "ByLoss", candidates=self.candidates)

    def observe(self, view: View, update: Update) -> None:
        view.memory(LossMemory).losses[update.learner] = _reported(update.metrics.training_loss)

    def select(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        losses, places = view.memory(LossMemory).losses, max(self.candidates, count)
        drawn = self._few(view, candidates, places, draw) or self._of_all(view, candidates, places, draw)
        # learners without a report come first; the draw decides between equals
        ranked = sorted(drawn, key=lambda name: -losses.get(name, math.inf))
        return ranked[:count]

    @staticmethod
    def _few(view: View, candidates: Sequence[str], places: int, draw: str) -> list[str] | None:
        """Draw by the last pass over all candidates; None if the next one is due."""
        memory, members = view.memory(LossMemory), view.state.members
        if not memory.draws:
            return None
        memory.draws -= 1
        known, find = members.known, finder(candidates)

        def examples(i: int) -> float:
            told = known[find(i)].examples
            return memory.guess if told is None else told

        chosen = draw_by_tries(view.generator(draw), examples, memory.most, len(candidates), places)
        return None if chosen is None else [find(i) for i in chosen]

    @staticmethod
    def _of_all(view: View, candidates: Sequence[str], places: int, draw: str) -> list[str]:
        memory = view.memory(LossMemory)
        members = view.state.members.known
        told = [members[name].examples for name in candidates]
        known = [examples for examples in told if examples is not None]
        # a learner that withholds its number counts as the mean of the others
        memory.guess = sum(known) / len(known) if known else 1.0
        chances = [memory.guess if examples is None else float(examples) for examples in told]
        memory.most, memory.draws = max(chances, default=0.0), draws_until_next_look(len(candidates), places)
        return [candidates[i] for i in race(view.generator(draw), chances)[:places]]


@dataclass(frozen=True)
class ByUtility(Selection):
    """Oort's statistical utility: learners with many examples of high loss, and a share of unexplored learners.

    U_k = n_k sqrt(mean squared loss), to which sqrt(.1 log(R) / L_k) is added in round R for a learner last seen in
    round L_k. Learners whose utility is within `cutoff` of the last place's are drawn in proportion to it.
    """

    explore: float = 0.9
    """Share of the places for unexplored learners in the first round."""
    decay: float = 0.98
    """Factor of that share from round to round."""
    least: float = 0.2
    """Lower bound of that share."""
    cutoff: float = 0.95

    needs = Needs(reports=("training loss",))

    def __post_init__(self) -> None:
        between("ByUtility", "explore", self.explore, 0, 1)
        share("ByUtility", "decay", self.decay)
        between("ByUtility", "least", self.least, 0, 1)
        share("ByUtility", "cutoff", self.cutoff)

    def observe(self, view: View, update: Update) -> None:
        examples = 1 if update.examples is None else update.examples
        utility = examples * math.sqrt(_reported(update.metrics.squared_loss))
        view.memory(UtilityMemory).report(update.learner, utility, view.version + 1)

    def select(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        chosen = self._few(view, candidates, count, draw) if len(candidates) > PERMUTED else None
        return self._of_all(view, candidates, count, draw) if chosen is None else chosen

    def _few(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str] | None:
        """Draw among many by looking at few; None if it does not succeed."""
        memory, generator, places = view.memory(UtilityMemory), view.generator(draw), min(count, len(candidates))
        there = set(candidates) if isinstance(candidates, list) else candidates
        seen = len(memory.utility)
        if seen <= PERMUTED:
            seen = sum(name in there for name in memory.utility)
        new = max(round(places * self.explored(view.version)), places - seen)
        unseen = _some(generator, memory.unseen(view.state.members), there, new)
        if unseen is None:
            return None
        known = self._known(memory, view.version + 1, generator, there, places - len(unseen))
        return None if known is None else unseen + known

    def _known(
        self, memory: UtilityMemory, round_: int, generator: np.random.Generator, there: Container[str], count: int
    ) -> list[str] | None:
        """Draw learners that have reported; None if it does not succeed."""
        if not count:
            return []
        best = memory.ranks.highest(count, lambda name: memory.value(name, round_), round_, there)
        if len(best) < count:
            return None
        bar = self.cutoff * best[0]
        near = memory.ranks.from_bar(bar, round_)
        name_of = near.numbered()

        def chance(number: int) -> float:
            name = name_of(number)
            value = memory.value(name, round_)
            return value if value >= bar and name in there else 0.0

        if len(near) > PERMUTED:
            drawn = draw_by_tries(generator, chance, near.most, len(near), count)
            return None if drawn is None else [name_of(i) for i in drawn]
        names = map(name_of, range(len(near)))
        values = {name: memory.value(name, round_) for name in names if name in there}
        pool = sorted(name for name, value in values.items() if value >= bar)
        order = race(generator, [values[name] for name in pool])[:count]
        return [pool[i] for i in order]

    def _of_all(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        memory, generator, round_ = view.memory(UtilityMemory), view.generator(draw), view.version + 1
        seen = [name for name in candidates if name in memory.utility]
        unseen = [name for name in candidates if name not in memory.utility]
        places = min(count, len(candidates))
        new = min(len(unseen), round(places * self.explored(view.version)))
        new = max(new, places - len(seen))
        chosen = [unseen[i] for i in generator.permutation(len(unseen))[:new]]
        values = [memory.value(name, round_) for name in seen]
        known = places - new
        if known:
            bar = self.cutoff * sorted(values, reverse=True)[known - 1]
            pool = [i for i, value in enumerate(values) if value >= bar]
            order = race(generator, [values[i] for i in pool])[:known]
            chosen += [seen[pool[i]] for i in order]
        return chosen

    def explored(self, version: int) -> float:
        """Return the share of the places for unexplored learners."""
        return max(self.least, self.explore * self.decay**version)


@dataclass(slots=True)
class TierMemory:
    losses: dict[str, float] = field(default_factory=dict)
    """The last training loss of each learner that has reported."""
    used: dict[str, int] = field(default_factory=dict)
    """Number of times each tier was chosen."""
    tiers: dict[str, int] = field(default_factory=dict)
    """Learners of each tier; this and the next two are as of the last pass over all candidates."""
    chances: dict[str, float] = field(default_factory=dict)
    draws: int = 0
    """Draws until the next pass over all candidates."""


@dataclass(frozen=True)
class ByTier(Selection):
    """TiFL: choose a tier, which is a group, then learners of that tier alone, so that none waits for a slower tier."""

    chances: Mapping[str, float] | None = None
    """Each tier's chance; None: in proportion to the mean of its learners' last training losses."""
    credits: int | None = None
    """Rounds that a tier may be chosen while another has some left; None: any number."""

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
        chosen = self._few(view, candidates, count, draw)
        if chosen is not None:
            return chosen
        memory, generator = view.memory(TierMemory), view.generator(draw)
        tiers: dict[str, list[str]] = {}
        for name in candidates:
            tiers.setdefault(view.state.members[name].group, []).append(name)
        memory.tiers = {tier: len(members) for tier, members in tiers.items()}
        memory.chances = {tier: self.chance(memory, tier, members) for tier, members in tiers.items()}
        memory.draws = draws_until_next_look(len(candidates), count)
        tier = self._tier(memory, generator)
        memory.used[tier] = memory.used.get(tier, 0) + 1
        members = tiers[tier]
        return [members[i] for i in generator.permutation(len(members))[:count]]

    def _few(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str] | None:
        """Draw by the last pass over all candidates; None if the next one is due."""
        memory, members, generator = view.memory(TierMemory), view.state.members, view.generator(draw)
        if not memory.draws:
            return None
        memory.draws -= 1
        tier = self._tier(memory, generator)
        if memory.tiers[tier] < PART * count:
            return None  # tries would rarely meet so small a tier
        known, find = members.known, finder(candidates)
        chosen = draw_by_tries(generator, lambda i: float(known[find(i)].group == tier), 1.0, len(candidates), count)
        if chosen is None:
            return None
        memory.used[tier] = memory.used.get(tier, 0) + 1
        return [find(i) for i in chosen]

    def _tier(self, memory: TierMemory, generator: np.random.Generator) -> str:
        """Draw a tier by its chance, among those with credits if any has some."""
        names = sorted(memory.tiers)
        chances = [memory.chances[tier] for tier in names]
        left = [self.credits is None or memory.used.get(tier, 0) < self.credits for tier in names]
        if any(left):
            chances = [chance if some else 0.0 for chance, some in zip(chances, left, strict=True)]
        return names[race(generator, chances)[0]]

    def chance(self, memory: TierMemory, tier: str, members: Sequence[str]) -> float:
        """Return a tier's chance; a learner without a report counts as the mean of those with one."""
        if self.chances is not None:
            return self.chances.get(tier, 0.0)
        known = [memory.losses[name] for name in sorted(memory.losses)]
        guess = math.fsum(known) / len(known) if known else 1.0
        return math.fsum(memory.losses.get(name, guess) for name in members) / len(members)


def _some(generator: np.random.Generator, names: SortedNames, there: Container[str], count: int) -> list[str] | None:
    """Draw some of the names that are there, or all if they are fewer; None if too few are met."""
    if len(names) <= PERMUTED:
        listed = [name for name in names if name in there]
        return [listed[i] for i in generator.permutation(len(listed))[:count]]
    if not count:
        return []
    find = names.numbered()
    drawn = draw_by_tries(generator, lambda i: float(find(i) in there), 1.0, len(names), count)
    return None if drawn is None else [find(i) for i in drawn]


def race(generator: np.random.Generator, chances: Sequence[float]) -> list[int]:
    """Draw all without replacement, in order, with chances in proportion; those without a chance come last."""
    given = np.asarray(chances, dtype=np.float64)
    times = generator.exponential(size=len(given))
    arrivals = np.divide(times, given, out=np.full(len(given), np.inf), where=given > 0)
    order: list[int] = np.argsort(arrivals, kind="stable").tolist()
    return order


def _reported(loss: float | None) -> float:
    assert loss is not None  # an update without one was refused
    return loss

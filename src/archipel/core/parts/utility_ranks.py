"""Learners in the order of their utility, kept up to date, so that a draw looks at few of them (decision 0145)."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice

from archipel.core.members import Members, SortedNames
from archipel.core.sorted_items import SortedItems

SLACK = 1e-9
"""By which sums of floats may miss a bar of 1."""


def bonus(round_: int, last: int) -> float:
    """Return what is added to a learner's utility in a round, by the round in which it was last seen."""
    return math.sqrt(0.1 * math.log(round_) / last)


@dataclass
class UtilityMemory:
    utility: dict[str, float] = field(default_factory=dict)
    """n sqrt(mean squared loss) of each learner that has reported."""
    last: dict[str, int] = field(default_factory=dict)
    """The round of its last report, from 1."""

    def __post_init__(self) -> None:
        """Leave the lists below until they are asked for; they are not saved, since they follow from the rest."""
        self._ranks: Ranks | None = None
        self._unseen: SortedNames | None = None
        self._known = 0

    def report(self, name: str, utility: float, round_: int) -> None:
        """Note a learner's utility."""
        if self._unseen is not None and name not in self.utility and self._unseen.holds(name):
            self._unseen.remove(name)
        if self._ranks is not None:
            if name in self.utility:
                self._ranks.remove(name, self.utility[name], self.last[name])
            self._ranks.add(name, utility, round_)
        self.utility[name], self.last[name] = utility, round_

    def value(self, name: str, round_: int) -> float:
        """Return a learner's utility in a round."""
        return self.utility[name] + bonus(round_, self.last[name])

    @property
    def ranks(self) -> Ranks:
        """Those who have reported, by their utility."""
        if self._ranks is None:
            self._ranks = Ranks((name, utility, self.last[name]) for name, utility in self.utility.items())
        return self._ranks

    def unseen(self, members: Members) -> SortedNames:
        """Return all who ever joined and have not reported."""
        if self._unseen is None:
            self._unseen, self._known = SortedNames(members.known.keys() - self.utility.keys()), len(members)
        for name in islice(reversed(members.known), len(members) - self._known):
            if name not in self.utility:
                self._unseen.add(name)
        self._known = len(members)
        return self._unseen


class Ranks:
    """Learners by utility, apart by how long ago they were last seen: in a group all have nearly the same bonus."""

    def __init__(self, reports: Iterable[tuple[str, float, int]]) -> None:
        """Sort the learners; reports: each one's name, utility and round."""
        apart: dict[int, list[tuple[float, str]]] = {}
        for name, utility, last in reports:
            apart.setdefault(_first(last), []).append((-utility, name))
        self._groups = {first: SortedItems(items) for first, items in apart.items()}
        """By the first round of those in which the learners of a group were last seen."""

    def add(self, name: str, utility: float, last: int) -> None:
        """Put a learner in its place."""
        first = _first(last)
        if first not in self._groups:
            self._groups[first] = SortedItems()
        self._groups[first].add((-utility, name))

    def remove(self, name: str, utility: float, last: int) -> None:
        """Take out a learner, who is there with this utility and round."""
        first = _first(last)
        group = self._groups[first]
        group.remove((-utility, name))
        if not len(group):
            del self._groups[first]

    def highest(self, count: int, value: Callable[[str], float], round_: int, there: Container[str]) -> list[float]:
        """Return the highest values of those who are there, the lowest of them first; fewer if they are fewer."""
        best: list[float] = []
        for most, name in heapq.merge(*(self._falling(first, round_) for first in self._groups)):
            if len(best) == count and -most <= best[0]:
                break
            if name in there:
                heapq.heappush(best, value(name))
                if len(best) > count:
                    heapq.heappop(best)
        return best

    def _falling(self, first: int, round_: int) -> Iterator[tuple[float, str]]:
        """Yield the learners of a group by the most that their value may be, negative."""
        most = bonus(round_, first)
        return ((-(most - negative), name) for negative, name in self._groups[first])

    def from_bar(self, bar: float, round_: int) -> Near:
        """Return those whose value may reach the bar."""
        groups, counts, most = [], [], 0.0
        for first, group in sorted(self._groups.items()):
            added = bonus(round_, first)
            count = group.number((-(bar - added) + SLACK * (1 + abs(bar)), ""))
            if count:
                groups.append(group)
                counts.append(count)
                most = max(most, added - group[0][0])
        return Near(groups, list(accumulate(counts)), most)


@dataclass(frozen=True)
class Near:
    """Learners whose value may reach a bar, by number."""

    groups: list[SortedItems[tuple[float, str]]]
    ends: list[int]
    """The numbers behind those of each group."""
    most: float
    """No value is above it."""

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def numbered(self) -> Callable[[int], str]:
        """Return what finds names by their number."""
        find = [group.numbered() for group in self.groups]
        begins = [0, *self.ends]

        def name(number: int) -> str:
            place = bisect_right(self.ends, number)
            return find[place](number - begins[place])[1]

        return name


def _first(last: int) -> int:
    """Return the first round of a group: 1, 2, 4, 8 ..."""
    return 1 << (last.bit_length() - 1)

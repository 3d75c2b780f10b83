"""The graph of masks: complete or, in large cohorts, a ring of random neighbours (Bell et al. 2020).

The order of the ring is a hash of all public keys of the round, so each learner computes its neighbours itself. A
controller can only try cohorts and keys of colluding learners until a ring suits it; docs/explanation/secure-sums.md
says how many attempts that takes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import lru_cache

EVERYBODY = 64
"""Largest cohort in which all learners are neighbours."""


COLLUDING = 5
"""In a medium cohort, one learner in so many may collude, whatever ring a controller has found."""


def degree(learners: int, threshold: float) -> int:
    """Return the number of each learner's neighbours.

    With two fifths of a medium cohort beside each learner, a fifth that colludes never opens one.

    >>> [degree(learners, 0.75) for learners in (64, 100, 150, 1000)]
    [63, 40, 60, 100]
    """
    if learners <= EVERYBODY:
        return learners - 1
    random, near = 2 * math.ceil(5 * math.log2(learners)), 2 * math.ceil(learners / COLLUDING)
    return min(near, random) if colluding(near, threshold) >= learners // COLLUDING else random


def share_threshold(neighbours: int, threshold: float) -> int:
    """Return how many shares open a learner's secret; its neighbours and the learner itself hold one each."""
    return math.ceil(threshold * (neighbours + 1) - 1e-9)  # .7 * 10 is 7.000000000000001


def colluding(neighbours: int, threshold: float) -> int:
    """Return how many of a learner's neighbours may collude with the controller without opening its update."""
    return 2 * share_threshold(neighbours, threshold) - (neighbours + 1) - 1


def smallest_group(learners: int, threshold: float) -> int:
    """Return the fewest learners in any sum that can be opened, if none of them collude.

    In a ring, each member of an opened group has so many neighbours in the group that it extends around the ring;
    docs/decisions/0152 and 0153 have the proof.
    """
    window = degree(learners, threshold) + 1
    needed = share_threshold(window - 1, threshold)
    return needed * (1 + (learners - window) // (2 * window - needed))


class Ring:
    """The order of a cohort and its identity, a hash of all names and keys."""

    def __init__(self, digests: Mapping[str, bytes], threshold: float) -> None:
        """digests: hashes of each learner's keys. threshold: share of a learner and its neighbours that must go on."""
        together = hashlib.sha256()
        for name in sorted(digests):
            together.update(hashlib.sha256(name.encode()).digest() + digests[name])
        self.digest = together.digest()
        self._order = sorted(digests, key=lambda name: hashlib.sha256(self.digest + name.encode()).digest())
        self._degree = degree(len(digests), threshold)
        self._places = {name: place for place, name in enumerate(self._order)}
        self.numbers = {name: number for number, name in enumerate(sorted(digests), start=1)}
        """Places at which each learner's shares are evaluated."""

    @staticmethod
    def of(digests: Mapping[str, bytes], threshold: float) -> Ring:
        """Return the ring of a cohort; cached, since all learners of a simulation need the same one."""
        return _ring(tuple(sorted(digests.items())), threshold)

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Return the neighbours of a learner by name."""
        count = len(self._order)
        if count <= EVERYBODY:
            return tuple(sorted(other for other in self._order if other != name))
        half, place = self._degree // 2, self._places[name]
        return tuple(sorted(self._order[(place + step) % count] for step in range(-half, half + 1) if step))


@lru_cache(maxsize=2)
def _ring(digests: tuple[tuple[str, bytes], ...], threshold: float) -> Ring:
    return Ring(dict(digests), threshold)

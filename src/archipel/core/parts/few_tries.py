"""Weighted draws by rejection, which look at few of many candidates (decision 0141)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from archipel.core.randomness import PERMUTED
from archipel.core.sorted_items import SortedItems

BATCH = 1024
"""Candidates that are tried together."""
PART = 8
"""All candidates are examined again once an eighth as many have been drawn."""


def draws_until_next_look(among: int, count: int) -> int:
    """Return how many draws of `count` may follow before all candidates are examined again; 0 for few candidates."""
    return among // (PART * max(count, 1)) if among > PERMUTED else 0


def finder(candidates: Sequence[str]) -> Callable[[int], str]:
    """Return what finds candidates by their number, for many at once."""
    return candidates.numbered() if isinstance(candidates, SortedItems) else candidates.__getitem__


def draw_by_tries(
    generator: np.random.Generator, chance: Callable[[int], float], highest: float, among: int, count: int
) -> list[int] | None:
    """Draw numbers below `among` without replacement, in order, with probabilities in proportion to their chances.

    Candidates are tried at random, and each is accepted with its share of the highest chance. Return None if a chance
    exceeds the highest, or after as many tries as there are candidates; then examine all.
    """
    chosen: dict[int, None] = {}
    for _ in range(0, among, BATCH):
        numbers, bars = generator.integers(among, size=BATCH), generator.random(BATCH) * highest
        for number, bar in zip(numbers.tolist(), bars.tolist(), strict=True):
            if number in chosen:
                continue
            own = chance(number)
            if own > highest:
                return None
            if bar < own:
                chosen[number] = None
                if len(chosen) == count:
                    return list(chosen)
    return None

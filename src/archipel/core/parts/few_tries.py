"""Draws in proportion to chances that look at few of many candidates (decision 0141)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from archipel.core.randomness import PERMUTED

BATCH = 1024
"""Candidates that are tried together."""
PART = 8
"""All candidates are looked at again once an eighth as many have been drawn."""


def draws_until_next_look(among: int, count: int) -> int:
    """Return how many draws of `count` may follow before all candidates are looked at again; 0 for a few candidates."""
    return among // (PART * max(count, 1)) if among > PERMUTED else 0


def draw_by_tries(
    generator: np.random.Generator, chance: Callable[[int], float], highest: float, among: int, count: int
) -> list[int] | None:
    """Draw numbers below `among` without replacement, in order, with chances in proportion.

    Numbers are tried at random, and each is taken with its share of the highest chance, so only those are looked at.
    None: a chance is above the highest, or as many were tried as there are; then look at all.
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

"""Shares: limit how much of a whole one learner counts for, whatever it claims."""

from __future__ import annotations

import math
from collections.abc import Sequence

SLACK = 1 + 1e-9
"""Tolerance for rounding."""


def cap(amounts: Sequence[float], most: float, beside: float = 0.0, others: int = 0) -> Sequence[float]:
    """Cut the largest amounts until none exceeds the share `most` of the sum; return the same object if none does.

    beside: an amount in the sum that is not cut, and `others`, the number of learners it belongs to. Among n learners
    the limit is at least 1/n. Amounts above it become equal, and the others stay as they are:

    >>> cap([100.0, 100.0, 1e12], 0.5)
    [100.0, 100.0, 200.0]
    >>> cap([1.0, 3.0], 0.5)
    [1.0, 1.0]
    """
    down = sorted((amount for amount in amounts if amount > 0), reverse=True)
    if not down:
        return amounts
    most = max(most, 1 / (len(down) + others))
    if most >= 1 or down[0] <= SLACK * most * math.fsum([*down, beside]):
        return amounts
    limit = down[-1]
    for cut in range(1, len(down) + 1):
        room = 1 - cut * most
        if room <= 0:
            break
        rest = math.fsum([*down[cut:], beside])
        if rest <= 0:
            break
        limit = most * rest / room
        if cut == len(down) or down[cut] <= SLACK * limit:
            break
    return [min(amount, limit) for amount in amounts]

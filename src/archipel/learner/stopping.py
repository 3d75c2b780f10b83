"""The end of a validation cycle (Metis section V, C1 and C2 with tombstones)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from archipel.core.types import Cycle


def failed(before: float, after: float, threshold: float) -> bool:
    """Return whether one epoch fails C1 or C2: the loss did not fall by more than `threshold` per cent.

    Vpct = 100 (after - before) / before; C1 is Vpct >= 0, C2 is Vpct < 0 and |Vpct| <= VC_loss. A loss that is not
    a number counts as no progress and fails too.
    """
    fall = 100 * (before - after)
    return not (fall > 0 and fall > threshold * before)


def ended(cycle: Cycle, losses: Sequence[float]) -> bool:
    """Return whether the cycle is over after these losses: of the received model, then after each epoch."""
    failures = sum(failed(before, after, cycle.loss) for before, after in pairwise(losses))
    return failures > cycle.tombstones or len(losses) - 1 >= cycle.at_most

"""Reuse the memory of large vectors."""

from __future__ import annotations

from weakref import finalize

import torch
from torch import Tensor

LARGE = 1 << 18
"""Numbers from which a vector's memory is kept for the next one; malloc itself keeps smaller blocks."""

_SPARE: dict[int, Tensor] = {}
"""By size: the memory of one vector that was freed. A run that makes a model drops one, so one is enough."""


def empty(size: int, spare: dict[int, Tensor] = _SPARE) -> Tensor:
    """Return a float32 vector with arbitrary contents, in the memory of a freed one where there is one.

    The kernel zeroes a new page when it is first written to: for the mean of ten models of 40 MB that takes as long
    as the mean itself. spare: a pool of the caller's own.
    """
    if size < LARGE:
        return torch.empty(size)
    memory = spare.pop(size, None)
    if memory is None:
        memory = torch.empty(size)
    numbers = memory.numpy()
    # the last tensor that views the memory holds the array, whatever became of its name in a store
    finalize(numbers, spare.__setitem__, size, memory).atexit = False
    return torch.from_numpy(numbers)

"""The kernels in torch: the reference that other implementations must equal to the bit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from archipel.kernels.interface import Rows
from archipel.kernels.memory import empty
from archipel.kernels.threads import threads

CHUNK = 1 << 19
"""Numbers of a sum that are worked on at a time: they stay in the cache, and of rows on disk little is in memory."""


class TorchKernels:
    def empty(self, size: int) -> Tensor:
        return empty(size)

    def finite(self, vector: Tensor) -> bool:
        # the sum is finite only if all terms are: one fast pass; a sum that overflows needs the slow one
        with threads(1):  # on a busy machine a second thread is waited for longer than the whole sum takes
            total = float(vector.sum())
        return math.isfinite(total) or bool(torch.isfinite(vector).all())

    def weighted_sum(self, out: Tensor, rows: Rows, weights: Sequence[float], piece: slice) -> None:
        check_counts(rows, weights)
        for chunk in chunks(piece):
            running = out[chunk].zero_()
            for row, weight in enumerate(weights):
                running.add_(rows.read(row, chunk), alpha=weight)

    def replace_terms(
        self,
        total: Tensor,
        rows: Rows,
        weights: Sequence[float],
        piece: slice,
        *,
        restart: bool = False,
        mean: Tensor | None = None,
        divisor: float = 1.0,
    ) -> list[float]:
        check_counts(rows, weights)
        largest = [0.0] * len(rows)
        for chunk in chunks(piece):
            running = total[chunk]
            wide = torch.empty_like(running)
            if restart:
                running.zero_()
            for row, weight in enumerate(weights):
                found = _add_wide(running, rows.read(row, chunk), weight, wide)
                largest[row] = float(np.maximum(largest[row], found))  # NaN stays NaN
            if mean is not None:
                mean[chunk].copy_(torch.div(running, divisor, out=wide))
        return largest


def _add_wide(running: Tensor, numbers: Tensor, weight: float, wide: Tensor) -> float:
    """Add weight x numbers to a sum in float64; return the largest absolute number."""
    running.add_(wide.copy_(numbers), alpha=weight)
    low, high = torch.aminmax(numbers)
    return max(-float(low), float(high))


def chunks(piece: slice, size: int = CHUNK) -> Iterator[slice]:
    """Cut a piece of a vector into chunks of at most so many numbers."""
    for start in range(piece.start, piece.stop, size):
        yield slice(start, min(start + size, piece.stop))


def check_counts(rows: Rows, weights: Sequence[float]) -> None:
    if len(rows) != len(weights):
        raise ValueError(f"There are {len(rows)} rows and {len(weights)} weights; each row needs one.")

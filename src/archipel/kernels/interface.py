"""The arithmetic on vectors that merges need. Every implementation gives the same bits.

Law: rows are added in their order, each by one multiplication and one addition, fused where the processor can. So a
sum depends neither on threads nor on how a vector is cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Rows(Protocol):
    """Vectors of equal length in a fixed order, in memory or read from disk piece by piece."""

    def __len__(self) -> int: ...

    def read(self, row: int, piece: slice) -> Tensor:
        """Return a piece of one row."""

    def select(self, rows: Sequence[int]) -> Rows:
        """Return some of the rows, in the order given."""


class Kernels(Protocol):
    def empty(self, size: int) -> Tensor:
        """Return a float32 vector with arbitrary contents."""

    def finite(self, vector: Tensor) -> bool:
        """Return whether no number is NaN or infinite."""

    def weighted_sum(self, out: Tensor, rows: Rows, weights: Sequence[float], piece: slice) -> None:
        """Set out[piece] to the sum of weights x rows, added row by row from zero."""

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
        """Add weights x rows to total[piece], a sum in float64; a row that goes has a negative weight.

        restart: begin at zero instead. mean: a vector whose piece is set to total / divisor. Return the largest
        absolute number of each row's piece.
        """

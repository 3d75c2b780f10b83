"""Counts of many classes by many, of which nearly all are zero: only the others are kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Counts: TypeAlias = npt.NDArray[np.int64]

MANY_CLASSES = 128
"""Classes from which confusion matrices are kept so: a whole one of 1,000 takes 8 MB, whatever it counts."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseCounts:
    """An array of integers of this shape. It has the methods of NumPy's that scores need; `np.asarray` makes it whole.

    Sums are those of the whole array, to the bit.
    """

    shape: tuple[int, ...]
    places: npt.NDArray[np.integer[Any]]
    """Where the numbers stand in the array row by row, ascending."""
    counts: Counts
    """The numbers that are not zero."""

    @staticmethod
    def of(array: Confusion) -> SparseCounts:
        """Return the same counts without the zeros."""
        if isinstance(array, SparseCounts):
            return array
        places = np.flatnonzero(array)
        return SparseCounts.at(array.shape, places, array.ravel()[places])

    @staticmethod
    def at(shape: tuple[int, ...], places: npt.NDArray[Any], counts: npt.NDArray[Any]) -> SparseCounts:
        """Return the array with these numbers at these places, ascending."""
        there = counts != 0
        narrow = np.int32 if math.prod(shape) < 1 << 31 else np.int64
        return SparseCounts(shape, places[there].astype(narrow), counts[there].astype(np.int64))

    @staticmethod
    def counted(shape: tuple[int, ...], places: npt.NDArray[np.int64]) -> SparseCounts:
        """Count how often each place comes."""
        return SparseCounts.at(shape, *np.unique(places, return_counts=True))

    @staticmethod
    def stack(arrays: Sequence[Confusion | None], shape: tuple[int, ...]) -> SparseCounts:
        """Return arrays of this shape as the rows of one; zeros for None."""
        size = math.prod(shape)
        there = [(row, SparseCounts.of(array)) for row, array in enumerate(arrays) if array is not None]
        places = [row * size + array.places.astype(np.int64) for row, array in there]
        nothing = np.empty(0, np.int64)
        counts = [array.counts for _, array in there]
        whole = len(arrays), *shape
        return SparseCounts.at(whole, np.concatenate([nothing, *places]), np.concatenate([nothing, *counts]))

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[SparseCounts]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, which: int | slice) -> SparseCounts:
        """Return a row, or consecutive rows."""
        start, stop, _ = which.indices(len(self)) if isinstance(which, slice) else (which, which + 1, 1)
        size, rows = math.prod(self.shape[1:]), max(0, stop - start)
        first, last = np.searchsorted(self.places, [start * size, (start + rows) * size])
        shape = (rows, *self.shape[1:]) if isinstance(which, slice) else self.shape[1:]
        places = self.places[first:last].astype(np.int64) - start * size
        return SparseCounts.at(shape, places, self.counts[first:last])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        whole = np.zeros(self.shape, np.int64)
        whole.flat[self.places] = self.counts
        return whole if dtype is None else whole.astype(dtype)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.places.nbytes + self.counts.nbytes

    def sum(self, axis: int | tuple[int, ...] | None = None) -> Any:
        """Return the sum of all; over the rows (axis 0), as a whole array; or of each row (all other axes)."""
        size = math.prod(self.shape[1:])
        if axis is None:
            return self.counts.sum()
        if axis == 0:
            total, to = np.zeros(self.shape[1:], np.int64), self.places % size
        else:
            assert axis == tuple(range(1, len(self.shape))), "no other sum is needed"
            total, to = np.zeros(len(self), np.int64), self.places // size
        np.add.at(total.reshape(-1), to, self.counts)
        return total

    def min(self, axis: tuple[int, ...] | None = None) -> Any:
        """Return the smallest number of all, or of each row; 0 unless one is negative."""
        if axis is None:
            return min(0, self.counts.min(initial=0))
        least = np.zeros(len(self), np.int64)
        np.minimum.at(least, self.places // math.prod(self.shape[1:]), self.counts)
        return least

    def times(self, factors: Counts) -> SparseCounts:
        """Return every row times its factor."""
        rows = self.places // math.prod(self.shape[1:])
        return SparseCounts.at(self.shape, self.places, self.counts * factors[rows])

    def without(self, rows: list[int]) -> SparseCounts:
        """Return it with zeros in these rows."""
        factors = np.ones(len(self), np.int64)
        factors[rows] = 0
        return self.times(factors)


Confusion: TypeAlias = Counts | SparseCounts
"""[..., actual, predicted] counts; of many classes only those that are not zero."""

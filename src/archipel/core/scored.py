"""Answers to a `Score`: the counts and sums of one site, and a table of many sites."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from archipel.core.sparse_counts import MANY_CLASSES, Confusion, Counts, SparseCounts

N = TypeVar("N", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Answer to `Score`: counts and sums only, so that answers of several sites add up."""

    count: int
    """Examples that the model was evaluated on."""
    loss: float
    """Sum of the loss over them."""
    confusion: Confusion | None = None
    """[actual, predicted] counts, of many classes as `SparseCounts`; None for tasks without classes."""
    histogram: Counts | None = None
    """[class, other or own, bin] counts of the class's softmax score."""
    tokens: Counts | None = None
    """[wrong, right] counts of predicted tokens, over which the loss is summed; None: one target per example."""

    def as_table(self) -> ScoreTable:
        """Return the table of this answer alone."""
        return ScoreTable(
            np.array((self.count,), np.int64),
            np.array((self.loss,), np.float64),
            _stacked("confusion matrices", [(self.confusion,)]),
            None if self.histogram is None else self.histogram[None],
            tokens=None if self.tokens is None else self.tokens[None],
        )


@dataclass(frozen=True, slots=True, eq=False)
class PooledScore:
    """What the answers of several sites to one `Score` add up to, where no single one is seen."""

    rows: tuple[int, ...]
    """The sites in the sum, as places in the order they were asked."""
    total: Scored


@dataclass(frozen=True, slots=True, eq=False)
class ScoreTable:
    """Answers of several sites to one `Score`, a row per site in the order they were asked.

    The row of a site that did not answer holds zeros, so that columns can be summed.
    """

    counts: Counts
    losses: npt.NDArray[np.float64]
    confusion: Confusion | None
    """[site, actual, predicted]."""
    histogram: Counts | None
    """[site, class, other or own, bin]."""
    missing: tuple[int, ...] = ()
    """Rows of the sites that did not answer, ascending."""
    tokens: Counts | None = None
    """[site, wrong or right]."""

    @staticmethod
    def of(answers: Sequence[Scored | None]) -> ScoreTable:
        """Stack answers of equal shapes; None marks a site that did not answer."""
        return ScoreTable(
            np.array([0 if answer is None else answer.count for answer in answers], np.int64),
            np.array([0.0 if answer is None else answer.loss for answer in answers], np.float64),
            _stacked("confusion matrices", [None if a is None else (a.confusion,) for a in answers]),
            _whole("histograms", [None if a is None else (a.histogram,) for a in answers]),
            tuple(row for row, answer in enumerate(answers) if answer is None),
            _whole("token counts", [None if a is None else (a.tokens,) for a in answers]),
        )

    def __len__(self) -> int:
        return len(self.counts)

    def __iter__(self) -> Iterator[Scored | None]:
        return map(self.row, range(len(self)))

    @property
    def targets(self) -> Counts:
        """The count that each site's loss is summed over: tokens where they are counted, else examples."""
        return self.counts if self.tokens is None else self.tokens.sum(axis=1)

    @property
    def answered(self) -> int:
        """The number of sites that answered."""
        return len(self.counts) - len(self.missing)

    def row(self, row: int) -> Scored | None:
        """Return what one site answered; None if it did not."""
        place = bisect_left(self.missing, row)  # bisected: with thousands missing, a linear search takes a second
        if self.missing[place : place + 1] == (row,):
            return None
        confusion = None if self.confusion is None else self.confusion[row]
        histogram = None if self.histogram is None else self.histogram[row]
        tokens = None if self.tokens is None else self.tokens[row]
        return Scored(int(self.counts[row]), float(self.losses[row]), confusion, histogram, tokens)

    def rows(self, start: int, stop: int) -> ScoreTable:
        """Return the table of consecutive sites."""
        part = slice(start, stop)
        return ScoreTable(
            self.counts[part],
            self.losses[part],
            None if self.confusion is None else self.confusion[part],
            None if self.histogram is None else self.histogram[part],
            tuple(row - start for row in self.missing if start <= row < stop),
            None if self.tokens is None else self.tokens[part],
        )

    def without(self, rows: Iterable[int]) -> ScoreTable:
        """Return the table as if these sites had not answered."""
        missing = sorted({*self.missing, *rows})
        if len(missing) == len(self.missing):
            return self
        if len(missing) == len(self):
            return ScoreTable.of((None,) * len(self))
        return ScoreTable(
            _cleared(self.counts, missing),
            _cleared(self.losses, missing),
            _cleared_confusion(self.confusion, missing),
            None if self.histogram is None else _cleared(self.histogram, missing),
            tuple(missing),
            None if self.tokens is None else _cleared(self.tokens, missing),
        )


def _stacked(what: str, cells: Sequence[tuple[Confusion | None] | None]) -> Confusion | None:
    """Return the confusion matrices of a column as one array, without the zeros of many classes."""
    shape = _shape(what, cells)
    there = [None if cell is None else cell[0] for cell in cells]
    if shape is None:
        return None
    if shape[-1:] >= (MANY_CLASSES,) or any(isinstance(cell, SparseCounts) for cell in there):
        return SparseCounts.stack(there, shape)
    return _array(there, shape)


def _whole(what: str, cells: Sequence[tuple[Counts | None] | None]) -> Counts | None:
    """Return the cells of a column as one array."""
    shape = _shape(what, cells)
    return None if shape is None else _array([None if cell is None else cell[0] for cell in cells], shape)


def _shape(what: str, cells: Sequence[tuple[Confusion | None] | None]) -> tuple[int, ...] | None:
    """Return the one shape that the cells of a column have; None if no site fills it."""
    shapes = dict.fromkeys(cell[0] if cell[0] is None else cell[0].shape for cell in cells if cell is not None)
    if len(shapes) > 1:
        raise ValueError(
            f"ScoreTable: {what} of different shapes, {' and '.join(map(str, shapes))}; an engine has to "
            "refuse answers that do not count the task's classes before it makes a table."
        )
    return next(iter(shapes), None)


def _array(cells: Sequence[Confusion | None], shape: tuple[int, ...]) -> Counts:
    """Return cells as one array, zeros where a site did not answer."""
    nothing = np.zeros(shape, np.int64)
    return np.array([nothing if cell is None else cell for cell in cells], np.int64)


def _cleared_confusion(column: Confusion | None, rows: list[int]) -> Confusion | None:
    if isinstance(column, SparseCounts):
        return column.without(rows)
    return None if column is None else _cleared(column, rows)


def _cleared(column: npt.NDArray[N], rows: list[int]) -> npt.NDArray[N]:
    """Return a copy of a column with zeros in these rows."""
    cleared = column.copy()
    cleared[rows] = 0
    return cleared

"""Index arrays of many learners in one array: a learner is a row, and no object is kept for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from archipel.data.array_types import IntArray


class LearnerParts(Protocol):
    """An index array for each learner, kept or drawn when it is asked for."""

    @property
    def sizes(self) -> IntArray:
        """Number of indices of every learner."""

    @property
    def used(self) -> Tensor:
        """Every index that some learner has, at least once."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Tensor: ...

    def __iter__(self) -> Iterator[Tensor]: ...

    def distinct(self) -> bool:
        """Return whether no learner has an index twice."""

    def times(self, examples: int) -> Tensor:
        """Count the learners that have each of so many examples."""

    def replaced(self, rows: Mapping[int, Tensor]) -> LearnerParts:
        """Return the parts with others in place of these rows."""


@dataclass(frozen=True, eq=False)
class IndexTable:
    """Every learner's indices, one learner after the other."""

    indices: Tensor
    """int64, those of all learners."""
    starts: IntArray
    """Where each learner's begin; the last number is where all end."""

    @staticmethod
    def of(parts: Iterable[Tensor]) -> IndexTable:
        """Return a table of these index arrays, which are int64 and have one dimension."""
        listed = [torch.empty(0, dtype=torch.int64), *parts]
        return IndexTable(torch.cat(listed), np.cumsum([len(part) for part in listed]))

    @staticmethod
    def empty(learners: int) -> IndexTable:
        """Return a table of learners that have nothing."""
        return IndexTable(torch.empty(0, dtype=torch.int64), np.zeros(learners + 1, np.int64))

    @staticmethod
    def grouped(indices: IntArray, owner: IntArray, learners: int) -> IndexTable:
        """Group indices by owner, in their order; leave out those whose owner is no number of a learner."""
        kept = (owner >= 0) & (owner < learners)
        mine, who = indices[kept], owner[kept]
        starts = np.concatenate([[0], np.cumsum(np.bincount(who, minlength=learners))])
        return IndexTable(torch.from_numpy(mine[np.argsort(who, kind="stable")]), starts)

    @property
    def sizes(self) -> IntArray:
        """Number of indices of every learner."""
        return np.diff(self.starts)

    @property
    def used(self) -> Tensor:
        """All indices."""
        return self.indices

    @property
    def owners(self) -> IntArray:
        """The learner of every index."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> Tensor:
        return self.indices[self.starts[row] : self.starts[row + 1]]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[row] for row in range(len(self)))

    def distinct(self) -> bool:
        """Return whether no learner has an index twice."""
        if not len(self.indices):
            return True
        keys = np.sort(self.owners * (int(self.indices.max()) + 1) + self.indices.numpy())
        return bool((np.diff(keys) > 0).all())

    def times(self, examples: int) -> Tensor:
        """Count the learners that have each of so many examples."""
        return torch.bincount(self.indices, minlength=examples)

    def where(self, mask: Tensor) -> IndexTable:
        """Return a table of the indices that are marked, learner by learner."""
        kept = np.concatenate([[0], np.cumsum(mask.numpy())])
        return IndexTable(self.indices[mask], kept[self.starts])

    def joined(self, other: IndexTable) -> IndexTable:
        """Return a table with the indices of both for every learner, ascending; no learner has one in both."""
        owner = np.concatenate([self.owners, other.owners])
        indices = torch.cat([self.indices, other.indices]).numpy()
        return IndexTable(torch.from_numpy(indices[np.lexsort((indices, owner))]), self.starts + other.starts)

    def replaced(self, rows: Mapping[int, Tensor]) -> IndexTable:
        """Return a table with other indices in place of these rows."""
        sizes, mine = self.sizes.copy(), np.ones(len(self), bool)
        for row, part in rows.items():
            sizes[row], mine[row] = len(part), False
        starts = np.concatenate([[0], np.cumsum(sizes)])
        indices = torch.empty(int(starts[-1]), dtype=torch.int64)
        indices[torch.from_numpy(np.repeat(mine, sizes))] = self.indices[torch.from_numpy(np.repeat(mine, self.sizes))]
        for row, part in rows.items():
            indices[starts[row] : starts[row + 1]] = part
        return IndexTable(indices, starts)


def class_counts(labels: Tensor, table: IndexTable, classes: int) -> Tensor:
    """Count the examples of every class at every learner: [learners, classes]."""
    cells = torch.from_numpy(table.owners) * classes + labels[table.indices]
    return torch.bincount(cells, minlength=len(table) * classes).view(len(table), classes)

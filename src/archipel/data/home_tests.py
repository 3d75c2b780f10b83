"""Own test parts out of the test set at HOME, drawn when they are asked for.

Each may be as long as the test set, so those of many learners would be larger than the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from archipel.data.array_types import IntArray
from archipel.data.index_table import IndexTable, class_counts
from archipel.data.splits import own_test


@dataclass(frozen=True, eq=False)
class HomeTests:
    """For each learner the largest part of the test set with the class proportions of its training examples."""

    labels: IntArray
    """The class of every example of the data."""
    train: IndexTable
    """Training parts that the proportions are of."""
    home: Tensor
    """Indices of the test set."""
    seed: int
    given: Mapping[int, Tensor] = field(default_factory=dict)
    """Parts of learners, by row, that are not drawn."""

    @cached_property
    def sizes(self) -> IntArray:
        """Number of indices of every learner; nothing is drawn for it."""
        classes = int(self.labels.max()) + 1
        mine = class_counts(torch.from_numpy(self.labels), self.train, classes).numpy()
        available = np.bincount(self.labels[self.home.numpy()], minlength=classes)
        mine = mine * (available > 0)
        whole = available * mine.sum(1)[:, None] // np.maximum(mine, 1)
        most = np.where(mine > 0, whole, len(self.home)).min(1)
        sizes: IntArray = np.where(mine.any(1), np.maximum(most, 1), 0)
        for row, part in self.given.items():
            sizes[row] = len(part)
        return sizes

    @property
    def used(self) -> Tensor:
        """All indices that may be drawn, and those that are given."""
        return torch.cat([self.home, *self.given.values()])

    def __len__(self) -> int:
        return len(self.train)

    def __getitem__(self, row: int) -> Tensor:
        if row in self.given:
            return self.given[row]
        home = self.home.numpy()
        mine = own_test(self.labels[self.train[row].numpy()], self.labels[home], (self.seed, "data", "own test", row))
        return torch.from_numpy(home[mine])

    def __iter__(self) -> Iterator[Tensor]:
        return (self[row] for row in range(len(self)))

    def distinct(self) -> bool:
        """Return whether no learner has an index twice."""
        return IndexTable.of([self.home, *self.given.values()]).distinct()

    def times(self, examples: int) -> Tensor:
        """Count the learners that have each of so many examples."""
        times = torch.zeros(examples, dtype=torch.int64)
        for part in self:
            times[part] += 1
        return times

    def replaced(self, rows: Mapping[int, Tensor]) -> HomeTests:
        """Return the parts with others in place of these rows."""
        return replace(self, given={**self.given, **rows})

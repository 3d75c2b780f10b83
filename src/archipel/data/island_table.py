"""All learners of a split as rows of arrays; an `Island` is made when one is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.checks import require
from archipel.core.types import Role
from archipel.data.array_types import BoolArray
from archipel.data.index_table import IndexTable, LearnerParts
from archipel.data.island import Island, check_index_array

ROLES: tuple[Role, ...] = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class IslandTable(Sequence[Island]):
    """The learners of a split, in order."""

    names: tuple[str, ...]
    train: IndexTable
    tests: LearnerParts
    """Own test parts."""
    roles: NDArray[np.uint8]
    """Places in `ROLES`."""

    @staticmethod
    def of(islands: Iterable[Island]) -> IslandTable:
        """Return a table of these islands; refuse roles and parts that are none."""
        islands = tuple(islands)
        for one in islands:
            require(
                one.role in ROLES,
                f"Islands: learner {one.name!r} has the unknown role {one.role!r}. Known roles: {', '.join(ROLES)}.",
            )
            check_index_array(f"Islands: train of learner {one.name!r}", one.train)
            check_index_array(f"Islands: test of learner {one.name!r}", one.test)
        return IslandTable(
            tuple(one.name for one in islands),
            IndexTable.of(one.train for one in islands),
            IndexTable.of(one.test for one in islands),
            np.array([ROLES.index(one.role) for one in islands], np.uint8),
        )

    @staticmethod
    def training(names: Iterable[str], train: IndexTable, tests: LearnerParts) -> IslandTable:
        """Return a table of learners that all train."""
        return IslandTable(tuple(names), train, tests, np.zeros(len(train), np.uint8))

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, row: int) -> Island: ...

    @overload
    def __getitem__(self, row: slice) -> tuple[Island, ...]: ...

    def __getitem__(self, row: int | slice) -> Island | tuple[Island, ...]:
        if isinstance(row, slice):
            return tuple(self[one] for one in range(*row.indices(len(self))))
        row = range(len(self))[row]
        return Island(self.names[row], self.train[row], self.tests[row], self.role(row))

    def __iter__(self) -> Iterator[Island]:
        return (self[row] for row in range(len(self)))

    def role(self, row: int) -> Role:
        """Return a learner's role."""
        return ROLES[int(self.roles[row])]

    def has(self, role: Role) -> BoolArray:
        """Mark the learners of a role."""
        mask: BoolArray = self.roles == ROLES.index(role)
        return mask

    def replaced(self, rows: Mapping[int, Island]) -> IslandTable:
        """Return the table with other islands, of the same names, in place of these rows."""
        roles = self.roles.copy()
        for row, one in rows.items():
            roles[row] = ROLES.index(one.role)
        return replace(
            self,
            train=self.train.replaced({row: one.train for row, one in rows.items()}),
            tests=self.tests.replaced({row: one.test for row, one in rows.items()}),
            roles=roles,
        )


def union(parts: LearnerParts, mask: BoolArray, examples: int) -> Tensor:
    """Return all indices that learners of the mask have, without repeats, ascending."""
    found = torch.zeros(examples, dtype=torch.bool)
    for row in np.flatnonzero(mask).tolist():
        found[parts[row]] = True
    return found.nonzero().flatten()

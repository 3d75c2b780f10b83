"""All sites of a simulation as rows of arrays; an object is made for those that take part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from archipel.assembly.contexts import learner_of
from archipel.core.types import Role
from archipel.data import Island, Islands
from archipel.data.array_types import IntArray
from archipel.data.splits import validation_sizes
from archipel.simulation.fleet import Fleet, Group
from archipel.simulation.site import Site

MADE = 1 << 16
"""Sites that are kept once they were made; beyond that all are made again when they are needed."""


class SimulatedSites(Mapping[str, Site]):
    """The sites by name. What a learner reserves for validation is drawn when its site is made."""

    def __init__(self, data: Islands, fleet: Fleet, assigned: IntArray, validation: float, seed: int) -> None:
        """Draw nothing yet.

        assigned: the place of every learner's group; validation: share of its examples that a learner reserves.
        """
        self.data = data
        self.fleet = fleet
        self.assigned = assigned
        self.validation = validation
        self.seed = seed
        self.private: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
        """Private layers, by learner and layer."""
        self.kept: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
        """Kept vectors, by learner and name."""
        rows = data.rows
        self.row = {name: row for row, name in enumerate(rows.names)}
        self._held_out = ~rows.has("train")
        reserved = validation_sizes(None if data.classes is None else data.class_table(), rows.train.sizes, validation)
        reserved[self._held_out] = 0
        self.validation_sizes = reserved
        """Examples that every learner reserves."""
        self.train_sizes = rows.train.sizes - reserved
        """Examples that every learner trains on."""
        self.train_sizes[self._held_out] = 0
        self._made: dict[str, Site] = {}

    def __getitem__(self, name: str) -> Site:
        site = self._made.get(name)
        if site is None:
            if len(self._made) >= MADE:
                self._made.clear()
            site = self._made[name] = self._make(name)
        return site

    def _make(self, name: str) -> Site:
        row, rows = self.row[name], self.data.rows
        nothing = torch.empty(0, dtype=torch.int64)  # `test` returns test parts, each when it is needed
        island = Island(name, rows.train[row], nothing, rows.role(row))
        learner = learner_of(island, self.data, self.validation, self.seed)
        learner.private, learner.kept = self.private[name], self.kept[name]
        return Site(learner, self.group(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.data.rows.names)

    def __len__(self) -> int:
        return len(self.row)

    def group(self, name: str) -> Group:
        """Return the group of a site."""
        return self.fleet.groups[int(self.assigned[self.row[name]])]

    def role(self, name: str) -> Role:
        """Return the role of a site's learner."""
        return self.data.rows.role(self.row[name])

    def test(self, name: str) -> Tensor:
        """Return the examples that a model is tested on at a site: of a held-out learner all that it has."""
        row, rows = self.row[name], self.data.rows
        return rows.train[row] if self._held_out[row] else rows.tests[row]

    @property
    def test_sizes(self) -> IntArray:
        """Examples that a model is tested on at every site."""
        sizes = self.data.rows.tests.sizes.copy()
        sizes[self._held_out] = self.data.rows.train.sizes[self._held_out]
        return sizes

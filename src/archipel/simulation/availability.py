"""When learners join, go offline and come back."""

from __future__ import annotations

from collections import Counter
from typing import Any

from archipel.core.randomness import generator
from archipel.core.types import Joined, Left
from archipel.simulation.clock import Clock, Goes, Returns
from archipel.simulation.simulated_sites import SimulatedSites


class Availability:
    """Draws when each learner goes offline and for how long, and keeps track of it."""

    def __init__(self, clock: Clock, sites: SimulatedSites, seed: int) -> None:
        self.clock = clock
        self.sites = sites
        self.seed = seed
        self.absences: Counter[str] = Counter()
        """How often each learner went offline: the counter of its randomness."""
        self._test_sizes = sites.test_sizes

    def begin(self) -> None:
        """Schedule that all learners join now."""
        for name in sorted(self.sites):
            self.clock.after(0.0, self.joined(name, fresh=True))
            self._schedule_absence(name)

    def joined(self, name: str, fresh: bool) -> Joined:
        """Return the event of a learner that joins; fresh: it has no private layers."""
        sites, row, group = self.sites, self.sites.row[name], self.sites.group(name)
        return Joined(
            name,
            group.claims * int(sites.train_sizes[row]),
            group.claims * int(sites.validation_sizes[row]),
            int(self._test_sizes[row]),
            group.name,
            sites.role(name),
            fresh,
        )

    def go(self, name: str) -> Left:
        """Take a learner offline and schedule its return."""
        self.absences[name] += 1
        draw = generator(self.seed, "returns", name, self.absences[name])
        self.clock.after(float(draw.exponential(self.sites.group(name).down)), Returns(name))
        return Left(name)

    def come_back(self, name: str) -> Joined:
        """Bring a learner back online and schedule its next absence."""
        self._schedule_absence(name)
        return self.joined(name, fresh=False)

    def _schedule_absence(self, name: str) -> None:
        group = self.sites.group(name)
        if group.up is not None:
            draw = generator(self.seed, "leaves", name, self.absences[name])
            self.clock.after(float(draw.exponential(group.up)), Goes(name))

    def save(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return dict(self.absences)

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        self.absences = Counter(saved)

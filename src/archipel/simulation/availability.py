"""When learners join, go offline and come back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from archipel.core.randomness import generator
from archipel.core.types import Joined, Left
from archipel.simulation.clock import Clock, Goes, Returns
from archipel.simulation.site import Site


class Availability:
    """Draws when each learner goes offline and for how long, and keeps track of it."""

    def __init__(self, clock: Clock, sites: Mapping[str, Site], seed: int) -> None:
        self.clock = clock
        self.sites = sites
        self.seed = seed

    def begin(self) -> None:
        """Schedule that all learners join now."""
        for name in sorted(self.sites):
            self.clock.after(0.0, self.joined(name, fresh=True))
            self._schedule_absence(name)

    def joined(self, name: str, fresh: bool) -> Joined:
        """Return the event of a learner that joins; fresh: it has no private layers."""
        site = self.sites[name]
        learner = site.learner
        return Joined(
            name,
            site.group.claims * len(learner.train),
            site.group.claims * len(learner.validation),
            len(learner.test),
            site.group.name,
            site.role,
            fresh,
        )

    def go(self, name: str) -> Left:
        """Take a learner offline and schedule its return."""
        site = self.sites[name]
        site.absences += 1
        draw = generator(self.seed, "returns", name, site.absences)
        self.clock.after(float(draw.exponential(site.group.down)), Returns(name))
        return Left(name)

    def come_back(self, name: str) -> Joined:
        """Bring a learner back online and schedule its next absence."""
        self._schedule_absence(name)
        return self.joined(name, fresh=False)

    def _schedule_absence(self, name: str) -> None:
        site = self.sites[name]
        if site.group.up is not None:
            draw = generator(self.seed, "leaves", name, site.absences)
            self.clock.after(float(draw.exponential(site.group.up)), Goes(name))

    def save(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {name: site.absences for name, site in self.sites.items()}

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        for name, absences in saved.items():
            self.sites[name].absences = absences

"""A site of a simulation: a learner, and how fast and reliable it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from archipel.core.randomness import generator
from archipel.learner.batches import steps_of_epoch
from archipel.learner.learner import Learner
from archipel.simulation.fleet import Group


@dataclass(slots=True)
class Site:
    """A learner with the speed and reliability of its group."""

    learner: Learner
    group: Group

    def evaluation_seconds(self, examples: int, batch: int) -> float:
        """Return the virtual seconds of evaluating a model on this many examples."""
        return steps_of_epoch(examples, batch) * self.group.evaluate_seconds

    def pace(self, seed: int, task: int) -> float:
        """Return the factor on the seconds of a training step in this task."""
        varies = self.group.varies
        if not varies:
            return 1.0
        return math.exp(varies * generator(seed, "pace", task, self.learner.name).standard_normal())

    def drops(self, seed: int, task: int) -> bool:
        """Return whether this task is lost on its way."""
        rate = self.group.drop_rate
        return rate > 0 and generator(seed, "loss", task, self.learner.name).random() < rate

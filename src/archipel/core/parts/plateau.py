"""A learning rate that is lowered when the distributed validation loss stops falling (Metis, section VII: open)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from archipel.core.checks import at_least, require, share
from archipel.core.members import Member
from archipel.core.metrics import mean_loss, pooled
from archipel.core.parts.part import Needs
from archipel.core.parts.planning import Planner
from archipel.core.state import Update, View
from archipel.core.types import Plan, Score


@dataclass(slots=True)
class PlateauMemory:
    recent: list[float] = field(default_factory=list)
    """Validation losses of the last commits."""
    best: float | None = None
    """The lowest mean of them so far."""
    since: int = 0
    """Commits since then."""
    lowered: int = 0
    """Number of times the rate was lowered."""


@dataclass(frozen=True)
class Plateau(Planner):
    """Lower the learning rate when the validation loss of the updates has not fallen for some commits.

    The loss is that of the committed updates on their learners' own validation parts or, under DVW, on all learners'.
    """

    factor: float = 0.5
    """Factor of the rate."""
    patience: int = 10
    """Commits without a lower loss before the rate is lowered."""
    window: int = 5
    """Commits whose mean loss is compared: single ones are noisy, especially commits of one update."""
    threshold: float = 0.0
    """Relative decrease of the mean that counts as lower."""

    needs = Needs(reports=("validation",), validation=True)

    def __post_init__(self) -> None:
        share("Plateau", "factor", self.factor)
        at_least(1, "Plateau", patience=self.patience, window=self.window)
        at_least(0, "Plateau", threshold=self.threshold)
        require(self.threshold < 1, f"Plateau: threshold should be below 1, got {self.threshold!r}.")

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        lowered = view.memory(PlateauMemory).lowered
        return replace(plan, rate=plan.rate * self.factor**lowered) if lowered else plan

    def committed(self, view: View, updates: Sequence[Update]) -> None:
        losses = [loss for loss in map(_validation_loss, updates) if math.isfinite(loss)]
        if not losses:
            return
        memory = view.memory(PlateauMemory)
        memory.recent = [*memory.recent, statistics.fmean(losses)][-self.window :]
        if len(memory.recent) < self.window:
            return
        mean = statistics.fmean(memory.recent)
        if memory.best is None or mean < memory.best * (1 - self.threshold):
            memory.best, memory.since = mean, 0
            return
        memory.since += 1
        if memory.since >= self.patience:
            memory.lowered += 1
            memory.since, memory.best, memory.recent = 0, None, []  # compare losses under the new rate only


def _validation_loss(update: Update) -> float:
    """Return an update's mean loss on all validation parts it was evaluated on; NaN without any."""
    tables = update.scores(Score("validation"))
    own = update.metrics.validation
    if own is not None:
        tables = [own.as_table(), *tables]
    return mean_loss(pooled(*tables)) if tables else math.nan

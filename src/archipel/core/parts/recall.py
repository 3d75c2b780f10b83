"""Recall: should a task that is still out come back now?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from archipel.core.checks import at_least
from archipel.core.parts.part import Part
from archipel.core.state import Assignment, Update, View


class Recall(Part):
    def due(self, view: View, task: Assignment) -> bool:
        """Looked at on each commit and each `Progress`."""
        raise NotImplementedError


@dataclass(frozen=True)
class MedianStaleness(Recall):
    """C3 of Metis section V: recall a learner whose effective staleness exceeds the median of its own so far.

    S_k = steps committed since its model was handed out + the steps it has made itself.
    """

    after: int = 20
    """Cycles a learner completes before its median counts; from then on all cycles so far do."""

    def __post_init__(self) -> None:
        at_least(1, "MedianStaleness", after=self.after)

    def committed(self, view: View, updates: Sequence[Update]) -> None:
        history = view.memory.setdefault("staleness", {})
        for update in updates:
            history.setdefault(update.learner, []).append(update.stale_steps)

    def due(self, view: View, task: Assignment) -> bool:
        history: list[int] = view.memory.get("staleness", {}).get(task.learner, [])
        if len(history) < self.after:
            return False
        staleness = view.state.committed - task.committed + task.steps
        return staleness > statistics.median(history)

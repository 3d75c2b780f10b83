"""Recall: should a task that is still out come back now?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from archipel.core.checks import at_least
from archipel.core.parts.part import Composition, Needs, Part
from archipel.core.state import Assignment, Update, View


class Recall(Part):
    needs = Needs(reports=("progress",))

    def conflicts(self, algorithm: Composition) -> str | None:
        if algorithm.protocol.commits_while_training:
            return None
        return (
            f"{self!r} recalls tasks that grow stale while others commit; under {type(algorithm.protocol).__name__} "
            "nobody commits while tasks are out. Use Stream(), or leave recall out."
        )

    def due(self, view: View, task: Assignment) -> bool:
        """Return whether to recall a task; asked at each commit and each `Progress`."""
        raise NotImplementedError


@dataclass(slots=True)
class StalenessMemory:
    staleness: dict[str, list[int]] = field(default_factory=dict)
    """Effective staleness of each learner's committed updates."""


@dataclass(frozen=True)
class MedianStaleness(Recall):
    """C3 of Metis section V: recall a learner whose effective staleness exceeds the median of its own so far.

    S_k = steps committed since its model was handed out + the steps it has made itself.
    """

    after: int = 20
    """Cycles a learner completes before its median counts."""
    window: int | None = None
    """Cycles that the median is over, a learner's first ones (20: the histogram of section V); None: all so far."""

    def __post_init__(self) -> None:
        at_least(1, "MedianStaleness", after=self.after)
        if self.window is not None:
            at_least(1, "MedianStaleness", window=self.window)

    def committed(self, view: View, updates: Sequence[Update]) -> None:
        history = view.memory(StalenessMemory).staleness
        for update in updates:
            own = history.setdefault(update.learner, [])
            if self.window is None or len(own) < max(self.window, self.after):
                own.append(update.stale_steps)

    def due(self, view: View, task: Assignment) -> bool:
        history = view.memory(StalenessMemory).staleness.get(task.learner, [])
        if len(history) < self.after:
            return False
        staleness = view.state.committed - task.committed + task.steps
        return staleness > statistics.median(history[: self.window])

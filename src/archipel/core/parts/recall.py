"""Recall: which open tasks learners should finish early."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate

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
            "there are no commits while tasks are open. Use Stream(), or leave recall out."
        )

    def watch(self, view: View, task: Assignment) -> None:
        """Record a task that was handed out or has made further steps."""

    def overdue(self, view: View) -> Iterable[int]:
        """Return the tasks to recall now; asked at each commit and each `Progress`."""
        return [task.task for task in view.out.values() if self.due(view, task)]

    def due(self, view: View, task: Assignment) -> bool:
        """Return whether to recall an open task."""
        raise NotImplementedError


@dataclass(slots=True)
class StalenessCounts:
    """Counts of a learner's committed updates by effective staleness; its size is the number of distinct values."""

    cycles: int = 0
    """Committed updates."""
    values: list[int] = field(default_factory=list)
    """The distinct values, ascending."""
    counts: list[int] = field(default_factory=list)
    counted: int = 0
    """Number of updates counted: all, or those of the window."""

    def add(self, value: int) -> None:
        """Count a value."""
        place = bisect_left(self.values, value)
        if place == len(self.values) or self.values[place] != value:
            self.values.insert(place, value)
            self.counts.insert(place, 0)
        self.counts[place] += 1
        self.counted += 1

    def median(self) -> float:
        """Return the median; for an even number of values, the mean of the middle two."""
        below, above = (self.counted - 1) // 2, self.counted // 2
        ends = list(accumulate(self.counts))
        return (self.values[bisect_right(ends, below)] + self.values[bisect_right(ends, above)]) / 2


@dataclass(slots=True)
class StalenessMemory:
    staleness: dict[str, StalenessCounts] = field(default_factory=dict)
    """Effective staleness of each learner's committed updates."""
    limits: list[tuple[float, int]] = field(default_factory=list)
    """A heap of tasks by the number of committed steps above which each is too stale."""


@dataclass(frozen=True)
class MedianStaleness(Recall):
    """C3 of Metis section V: recall a learner whose effective staleness exceeds the median of its own so far.

    S_k = steps committed since its model was handed out + the steps it has made itself.
    """

    after: int = 20
    """Cycles that a learner completes before its median is used."""
    window: int | None = None
    """Number of a learner's first cycles that the median is over (20: the histogram of section V); None: all."""

    def __post_init__(self) -> None:
        at_least(1, "MedianStaleness", after=self.after)
        if self.window is not None:
            at_least(1, "MedianStaleness", window=self.window)

    def committed(self, view: View, updates: Sequence[Update]) -> None:
        known = view.memory(StalenessMemory).staleness
        for update in updates:
            own = known.setdefault(update.learner, StalenessCounts())
            own.cycles += 1
            if self.window is None or own.counted < self.window:
                own.add(update.stale_steps)

    def watch(self, view: View, task: Assignment) -> None:
        memory = view.memory(StalenessMemory)
        own = memory.staleness.get(task.learner)
        if own is not None and own.cycles >= self.after:
            heappush(memory.limits, (own.median() + task.committed - task.steps, task.task))

    def overdue(self, view: View) -> Iterable[int]:
        limits, found = view.memory(StalenessMemory).limits, set[int]()
        while limits and limits[0][0] < view.state.committed:
            _, task = heappop(limits)
            if task in view.out and self.due(view, view.out[task]):
                found.add(task)
        return found

    def due(self, view: View, task: Assignment) -> bool:
        own = view.memory(StalenessMemory).staleness.get(task.learner)
        if own is None or own.cycles < self.after:
            return False
        return view.state.committed - task.committed + task.steps > own.median()

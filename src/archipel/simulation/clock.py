"""The virtual clock: a heap keyed (time, counter), so that simultaneous occurrences keep the order of scheduling."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from archipel.core.types import Event


@dataclass(frozen=True, slots=True)
class Arrives:
    """The answer of a training task reaches the controller."""

    task: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The last answer of an evaluation reaches the controller."""

    task: int


@dataclass(frozen=True, slots=True)
class EpochEnds:
    """A learner that is followed epoch by epoch ends one."""

    task: int


@dataclass(frozen=True, slots=True)
class TrainingEnds:
    """A learner begins to send its answer, whose size is not known before."""

    task: int


@dataclass(frozen=True, slots=True)
class Goes:
    """A learner goes offline."""

    learner: str


@dataclass(frozen=True, slots=True)
class Returns:
    """A learner comes back online."""

    learner: str


Occurrence: TypeAlias = Event | Arrives | Answered | EpochEnds | TrainingEnds | Goes | Returns


@dataclass
class Clock:
    """The current virtual second and the occurrences that are scheduled."""

    now: float = 0.0
    counter: int = 0
    heap: list[tuple[float, int, Occurrence]] = field(default_factory=list)

    def after(self, seconds: float, occurrence: Occurrence) -> None:
        """Schedule an occurrence in this many seconds."""
        self.at(self.now + seconds, occurrence)

    def at(self, when: float, occurrence: Occurrence) -> None:
        """Schedule an occurrence at a second of the clock."""
        heapq.heappush(self.heap, (when, self.counter, occurrence))
        self.counter += 1

    def next(self) -> Occurrence:
        """Advance to the next occurrence and return it."""
        self.now, _, occurrence = heapq.heappop(self.heap)
        return occurrence

    def save(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"now": self.now, "counter": self.counter, "heap": self.heap}

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        self.now, self.counter, self.heap = saved["now"], saved["counter"], saved["heap"]

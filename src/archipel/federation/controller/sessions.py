"""What the controller knows of each learner while its process runs."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from archipel.core.types import AddUp, Evaluate, Train
from archipel.federation.controller.sum_totals import AddScores

Notice: TypeAlias = Literal["do", "finish", "cancel", "stop", "leave"]
"""The kinds of notices about a task; "leave" ends the Listen call."""

SHORTEST_REST, LONGEST_REST = 0.5, 300.0
"""Seconds that a learner rests after failures that cost no time."""
WAITED_FOR = 0.2
"""Share of the time that others may have waited for a learner in vain, beside the first time."""
FETCHES = 4
"""Models that are sent to one learner at a time; its further calls wait, so that unread models do not fill memory."""

FETCHED = 20
"""How often a learner may fetch a task's model: connections break, but a loop must end."""


@dataclass(eq=False)
class LearnerSession:
    """The session of one learner while this process runs."""

    name: str
    seen: float = 0.0
    """When its last heartbeat came."""
    orders: dict[int, Train | Evaluate | AddUp | AddScores] = field(default_factory=dict)
    """Its open tasks."""
    queue: asyncio.Queue[tuple[Notice, int]] | None = None
    """Notices to send next; None while it does not listen."""
    holds: set[str] = field(default_factory=set)
    """Digests of the layers that it received last and that it sent last."""
    private: set[str] = field(default_factory=set)
    """Its private layers."""
    given: dict[int, dict[str, int]] = field(default_factory=dict)
    """Bytes of each layer sent for a task."""
    fetching: int = 0
    """Models that it is fetching now, or waits to fetch."""
    fetches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES))
    fetched: dict[int, int] = field(default_factory=dict)
    """Bytes that it fetched for a task."""
    failures: int = 0
    """Training tasks in a row without an update."""
    failed: int | None = None
    """The last of them."""
    rests_until: float = 0.0
    """Until then it counts as gone: a learner that fails again and again must not hold up the others' rounds."""
    waited: float = 0.0
    """Seconds that others waited for its answers in vain, less what it was forgiven since."""
    waited_at: float = -math.inf
    """When that was counted."""
    told_end: bool = False
    """Whether it knows that the run is over."""

    def count_success(self) -> None:
        """Note that a training task brought an update."""
        self.failures = 0

    def count_failure(self, task: int, now: float, seconds: float) -> bool:
        """Note that a training task came to nothing after so many seconds; return whether the learner rests now.

        The rest grows with each failure, and with the time that others may have waited for the task. A task that fails
        again, as when its answer is repeated, counts once.
        """
        if task == self.failed:
            return False
        self.failed = task
        self.failures += 1
        if self.failures < 2:  # a single failure does not count
            return False
        rest = max(SHORTEST_REST, seconds) * 2.0 ** min(self.failures, 20)
        self.rests_until = now + min(rest, max(LONGEST_REST, 10 * seconds))
        return True

    def count_wait(self, now: float, deadline: float) -> bool:
        """Note that others have waited for its answer until the deadline; return whether it rests now.

        Updates in between do not help: they would let a learner train, and hold up everybody for each deadline.
        """
        since = now - self.waited_at  # several questions are waited for at the same time
        return self._count(now, deadline, min(deadline, since))

    def count_spoilt(self, now: float, deadline: float) -> bool:
        """Note that a sum has failed because of it; return whether it rests now. It counts as a whole deadline."""
        return self._count(now, deadline, deadline)

    def _count(self, now: float, deadline: float, more: float) -> bool:
        since = now - self.waited_at
        self.waited = max(0.0, self.waited - WAITED_FOR * since) + more
        self.waited_at = now
        if self.waited <= 1.5 * deadline:  # once can happen to anybody
            return False
        self.rests_until = max(self.rests_until, now + (self.waited - deadline) / WAITED_FOR)
        return True

    def count_fetched(self, task: int, more: int, size: int) -> bool:
        """Count bytes that were fetched for a task; return whether they are few enough for a model of that size."""
        if task not in self.fetched:
            for over in [one for one in self.fetched if one not in self.orders]:
                del self.fetched[over]
        self.fetched[task] = self.fetched.get(task, 0) + more
        return self.fetched[task] <= FETCHED * size

    def tell(self, what: Notice, task: int) -> None:
        """Queue a notice, if the learner is listening."""
        if self.queue is not None:
            self.queue.put_nowait((what, task))

    def next_training(self, command: Train | Evaluate) -> Train | None:
        """Return the training task that this command is, or one with the same model as this question."""
        for order in (command, *self.orders.values()):
            if isinstance(order, Train) and order.model == command.model:
                return order
        return None

"""The outbox: the open tasks of each learner, and the notices that it has still to get."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from archipel.core.layout import Layout
from archipel.core.types import Evaluate, Traffic, Train
from archipel.federation.controller.event_log import EventLog
from archipel.federation.controller.meters import Meters
from archipel.federation.controller.sessions import LearnerSession, Notice

LAST_MODEL = -(1 << 62)
"""The task under which a learner may fetch the last version when the run is over."""
ENOUGH = 2
"""Learners needed for a median."""
PATIENCE = 10.0
"""The deadline, in medians."""
SHORTEST, LONGEST = 60.0, 86_400.0
"""The smallest and the largest deadline in seconds; the latter also while too few have answered."""


class TaskDeadline:
    """The seconds after which a training task is given up: a silent learner must not delay a round for a day."""

    def __init__(self, fixed: float | None) -> None:
        """Take the study's own deadline, or None to follow what learners' last tasks have taken."""
        self._fixed = fixed
        self._last: dict[str, float] = {}
        """By learner, so that one that answers often does not count more."""

    def record(self, learner: str, seconds: float) -> None:
        """Record how long a successful task took."""
        self._last[learner] = seconds

    @property
    def seconds(self) -> float:
        """The deadline now."""
        if self._fixed is not None:
            return self._fixed
        if len(self._last) < ENOUGH:
            return LONGEST
        return min(LONGEST, max(SHORTEST, PATIENCE * statistics.median(self._last.values())))


class Outbox:
    """Hand tasks to learners, and count the bytes that were sent for each."""

    def __init__(self, log: EventLog, sessions: Mapping[str, LearnerSession], layout: Layout, meters: Meters) -> None:
        self._log = log
        self._sessions = sessions
        self._layout = layout
        self._meters = meters
        self._holders: dict[int, list[LearnerSession]] = {}
        """By task: the learners that have it open."""

    def give(self, learner: str, command: Train | Evaluate) -> None:
        """Open a task at a learner."""
        session = self._sessions[learner]
        session.orders[command.task] = command
        self._holders.setdefault(command.task, []).append(session)
        session.tell("do", command.task)

    def tell_holders(self, task: int, what: Notice) -> None:
        """Tell the learners that have a task open to finish or to cancel it."""
        for session in self._holders.get(task, ()):
            session.tell(what, task)

    def close(self, task: int) -> None:
        """Remove an answered task from all learners."""
        for session in self._holders.pop(task, ()):
            session.orders.pop(task, None)
            session.given.pop(task, None)

    def announce_end(self) -> None:
        """Tell everybody that the run is over."""
        for session in self._sessions.values():
            session.tell("stop", LAST_MODEL)

    # ------------------------------------------------------------------------------------------------------- counting

    def count(self, session: LearnerSession, command: Train | Evaluate, layers: Sequence[int]) -> None:
        """Count what was sent for a task; a model that is evaluated and then trained counts as sent for training."""
        task = (session.next_training(command) or command).task
        given = session.given.setdefault(task, {})
        for layer in layers:
            name = self._layout.names[layer]
            given[name] = given.get(name, 0) + self._layout.bytes((layer,))
        self._meters.bytes.labels("down").inc(self._layout.bytes(layers))
        self._log.note("controller", "sent", to=session.name, task=task, layers=len(layers))

    def given(self, task: int) -> list[dict[str, int]]:
        """Return the bytes sent for a task by layer, for each learner."""
        return [session.given[task] for session in self._holders.get(task, ()) if task in session.given]

    def traffic(self, task: int, up: int = 0) -> Traffic:
        """Return the bytes sent for a task, and received."""
        given = self.given(task)
        return Traffic(sum(sum(layers.values()) for layers in given), up, max(1, len(given)))

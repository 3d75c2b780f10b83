"""Events for learners that are gone, or that rest."""

from __future__ import annotations

from collections.abc import Iterator

from archipel.core.types import AddUp, Event, Failed, Left, Train
from archipel.federation.controller.outbox import Outbox
from archipel.federation.controller.secure_rounds import SecureRounds
from archipel.federation.controller.sessions import LearnerSession
from archipel.federation.controller.site_evaluations import SiteEvaluations
from archipel.federation.controller.sum_totals import AddScores


class Departures:
    """Give up the open tasks of learners that are gone."""

    def __init__(self, outbox: Outbox, evaluations: SiteEvaluations, sums: SecureRounds) -> None:
        self._sums = sums
        self._outbox = outbox
        self._evaluations = evaluations

    def failed(self, session: LearnerSession, task: int, reason: str, now: float, seconds: float) -> Iterator[Event]:
        """Yield the failure of a task after so many seconds; before it, that its learner has left, if it rests now.

        Post each event before asking for the next.
        """
        if session.count_failure(task, now, seconds):
            yield Left(session.name)
        yield Failed(task, reason, self._outbox.traffic(task))

    def events(self, session: LearnerSession, reason: str) -> Iterator[Event]:
        """Yield that a learner has left, then its failed tasks: in the other order it would get new ones.

        Post each event before asking for the next.
        """
        yield Left(session.name)
        for task, command in list(session.orders.items()):
            if isinstance(command, AddUp | AddScores):
                self._sums.gone(session.name, task)
            elif isinstance(command, Train):
                yield Failed(task, reason, self._outbox.traffic(task))
            else:
                self._evaluations.take(task, session.name, None)

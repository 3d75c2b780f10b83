"""Actions of operators, and of learners for themselves, while a federation runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from archipel.core.types import Event, Left, RolledBack
from archipel.federation.controller.admissions import Admissions
from archipel.federation.controller.departures import Departures
from archipel.federation.controller.event_log import EventLog
from archipel.federation.controller.limiter import Calls, Quota
from archipel.federation.controller.sessions import LearnerSession
from archipel.federation.controller.terms import Rejected, RetryLater, Terms
from archipel.federation.security import roles
from archipel.federation.security.names import Identity
from archipel.federation.storage.durable_controller import Note
from archipel.federation.wire import federation_pb2 as pb

log = logging.getLogger("archipel.federation")

WISHES = 30
"""Decisions a minute of a learner for itself: each is a row of the audit, and some are rows of the journal."""


class Operators:
    """Answer the call Steer."""

    def __init__(
        self,
        event_log: EventLog,
        sessions: Mapping[str, LearnerSession],
        admissions: Admissions,
        departures: Departures,
        calls: Calls,
        terms: Terms,
    ) -> None:
        self._log = event_log
        self._sessions = sessions
        self._admissions = admissions
        self._departures = departures
        self._calls = calls
        self._listed = terms.operators
        self._wishes = Quota(WISHES)

    async def steer(self, who: Identity, wish: pb.Wish) -> pb.Done:
        """Carry out a request, and return what was done."""
        name = wish.learner or who.name
        if who.kind != "operator" and name != who.name:
            raise Rejected(f"{who.name} may pause, resume and withdraw itself, not {name}.")
        if who.kind == "operator":
            forbidden = roles.objection(who.name, self._listed[who.name], wish.action)
            if forbidden is not None:
                raise Rejected(forbidden)
        elif not self._wishes.admit(who.name, self._log.now):
            raise RetryLater(f"{who.name} has been paused, resumed or withdrawn {WISHES} times in a minute.")
        if wish.action == "rollback":
            return await self._roll_back(who, wish.version)
        if name not in self._sessions:
            raise Rejected(f"There is no learner {name[:100]}; the study lists {', '.join(self._sessions)[:500]}.")
        if name in self._admissions.withdrawn and wish.action != "readmit":
            raise Rejected(f"{name} has been withdrawn from this federation; an operator may readmit it.")
        events = self._decide(who, wish.action, name)
        self._log.note(str(who), wish.action, learner=name)
        await self._admissions.store()
        for event in events:
            self._log.post(event)
        log.info("an operator spoke", extra={"action": wish.action, "learner": name, "by": str(who)})
        return pb.Done(told=f"{name}: {wish.action} at version {self._log.state.version}")

    async def _roll_back(self, who: Identity, version: int) -> pb.Done:
        """Make an earlier version the current one."""
        if who.kind != "operator":
            raise Rejected(f"{who.name} is a {who.kind}; only an operator may roll the model back.")
        if self._log.stopped is not None:
            raise Rejected(f"The run is over ({self._log.stopped}): there is nothing to roll back.")
        models = self._log.durable.models
        earlier = await self._log.in_writer(models.earlier)
        if version not in earlier:
            stored = ", ".join(map(str, earlier)) or "none"
            raise Rejected(
                f"Version {version} is not stored. The current one is {self._log.state.version}, and those that can be "
                f"restored are: {stored}."
            )
        delivery = await self._log.in_writer(lambda: models.restore(version))
        note = Note(str(who), "rollback", {"version": version})
        await self._log.post(RolledBack(version, f"r{version}"), delivery=delivery, note=note).handled
        log.warning("the model was rolled back", extra={"version": version, "by": str(who)})
        return pb.Done(told=f"rolled back to version {version}; it is now version {self._log.state.version}")

    def _decide(self, who: Identity, action: str, name: str) -> Iterable[Event]:
        """Change the decisions; return the events to post once they are on disk."""
        admissions, session = self._admissions, self._sessions[name]
        match action:
            case "pause":
                admissions.paused.add(name)
                return [Left(name)]  # the task that it has open may still be answered
            case "resume":
                admissions.paused.discard(name)  # after its next heartbeat it joins again
                return ()
            case "withdraw":
                admissions.withdrawn.add(name)
                admissions.paused.discard(name)
                self._calls.drop(Identity("learner", name))
                return self._departures.events(session, "withdrawn")
            case "readmit":
                if who.kind != "operator":
                    raise Rejected(f"{who.name} is a {who.kind}; only an operator may readmit learners.")
                if name not in admissions.withdrawn:
                    raise Rejected(f"{name} has not been withdrawn, so it need not be readmitted.")
                admissions.withdrawn.discard(name)
                admissions.readmitted.add(name)
                return ()
        raise Rejected(f"There is no action {action[:100]!r}; use pause, resume, withdraw, readmit or rollback.")

"""Operators: who is let in, who is paused or withdrawn, and how it all is doing."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from archipel.core.types import Evaluate, Event, Left, Train
from archipel.federation.controller.terms import Rejected
from archipel.federation.security import roles
from archipel.federation.security.certificates import SOON
from archipel.federation.security.names import Identity
from archipel.federation.wire import federation_pb2 as pb

if TYPE_CHECKING:
    from archipel.federation.controller.engine import Federation

log = logging.getLogger("archipel.federation")


class Operators:
    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.paused: set[str] = set(federation.fact("paused", []))
        self.withdrawn: set[str] = set(federation.fact("withdrawn", []))
        self.readmitted: set[str] = set(federation.fact("readmitted", []))
        """May join once with other counts than before."""

    def objection(self, who: Identity) -> str | None:
        """Why this caller may not come in, or None."""
        if who.kind == "operator":
            listed = who.name in self.federation.terms.operators
            return None if listed else f"{who.name} is not on the study's list of operators."
        if who.name not in self.federation.terms.learners:
            return f"{who.name} is not on the study's list of learners."
        if who.name in self.withdrawn:
            return f"{who.name} has been withdrawn from this federation."
        return None

    async def steer(self, who: Identity, wish: pb.Wish) -> pb.Done:
        federation = self.federation
        name = wish.learner or who.name
        if who.kind != "operator" and name != who.name:
            raise Rejected(f"{who.name} may pause, resume and withdraw itself, not {name}.")
        if who.kind == "operator":
            forbidden = roles.objection(who.name, federation.terms.operators[who.name], wish.action)
            if forbidden is not None:
                raise Rejected(forbidden)
        if name not in federation.seats:
            raise Rejected(f"There is no learner {name[:100]}; the study lists {', '.join(federation.seats)[:500]}.")
        if name in self.withdrawn and wish.action != "readmit":
            raise Rejected(f"{name} has been withdrawn from this federation; an operator may readmit it.")
        events: Iterable[Event] = ()
        match wish.action:
            case "pause":
                self.paused.add(name)
                events = [Left(name)]  # what it is at may still come
            case "resume":
                self.paused.discard(name)  # its next sign of life makes it join again
            case "withdraw":
                self.withdrawn.add(name)
                self.paused.discard(name)
                events = federation.gone(federation.seats[name], "withdrawn")
                federation.orders.hang_up(name)
            case "readmit":
                if who.kind != "operator":
                    raise Rejected(f"{who.name} is a {who.kind}; an operator readmits learners.")
                if name not in self.withdrawn:
                    raise Rejected(f"{name} has not been withdrawn: there is nothing to readmit.")
                self.withdrawn.discard(name)
                self.readmitted.add(name)
            case _:
                raise Rejected(
                    f"There is no action {wish.action[:100]!r}; there are pause, resume, withdraw and readmit."
                )
        federation.note(str(who), wish.action, learner=name)
        await self._settle()
        for event in events:
            federation.post(event)
        log.info("an operator spoke", extra={"action": wish.action, "learner": name, "by": str(who)})
        return pb.Done(told=f"{name}: {wish.action} at version {federation.book.controller.state.version}")

    async def has_joined(self, name: str) -> None:
        """Its counts are fixed again."""
        if name in self.readmitted:
            self.readmitted.discard(name)
            await self._settle()

    async def _settle(self) -> None:
        await self.federation.settle(
            paused=sorted(self.paused), withdrawn=sorted(self.withdrawn), readmitted=sorted(self.readmitted)
        )

    def status(self, who: Identity) -> dict[str, Any]:
        """For an operator; a learner sees of the learners only itself."""
        federation = self.federation
        controller = federation.book.controller
        state = controller.state
        return {
            "version": state.version,
            "rounds": state.rounds,
            "seconds": round(federation.now, 1),
            "score": federation.score,
            "metric": controller.evaluation.metric if controller.evaluation else None,
            "stopped": federation.stopped,
            "waiting for": None if state.begun else f"{controller.learners} learners",
            "updates waiting": len(state.queue),
            "restarts": federation.restarts,
            "certificates": self._certificates(who),
            "learners": [self._status_of(n) for n in federation.seats if who.kind == "operator" or n == who.name],
        }

    def _certificates(self, who: Identity) -> list[dict[str, Any]]:
        """Tell when the certificates that were seen expire, the first one first; a learner sees its own."""
        now = datetime.now(UTC)
        return [
            {"who": whose, "expires": expires.isoformat(), "soon": expires < now + timedelta(days=SOON)}
            for whose, expires in sorted(self.federation.certificates.items(), key=lambda item: item[1])
            if who.kind == "operator" or whose in (str(who), "controller")
        ]

    def _capped(self, name: str) -> list[str]:
        """What this learner claims more of than anybody's share."""
        found = dict(self.federation.book.controller.state.capped)
        moments = ["moments"] if name in self.federation.joining.capped else []
        return [*moments, *(what for what in sorted(found) if name in found[what])]

    def _status_of(self, name: str) -> dict[str, Any]:
        federation = self.federation
        seat, member = federation.seats[name], federation.book.controller.state.members.get(name)
        if name in self.withdrawn:
            state = "withdrawn"
        elif name in self.paused:
            state = "paused"
        elif member is None:
            state = "never seen"
        else:
            state = "there" if member.active else "gone"
        return {
            "name": name,
            "state": state,
            "examples": None if member is None else member.examples,
            "capped": self._capped(name),
            "training": [task for task, command in seat.orders.items() if isinstance(command, Train)],
            "evaluating": sum(isinstance(command, Evaluate) for command in seat.orders.values()),
            "seen": None if member is None else round(federation.now - seat.seen, 1),
        }

"""Admission to a federation: the study's list, and the decisions of operators."""

from __future__ import annotations

from archipel.federation.controller.event_log import EventLog
from archipel.federation.controller.terms import Terms
from archipel.federation.security.names import Identity


class Admissions:
    """Paused, withdrawn and readmitted learners; decisions are stored on disk."""

    def __init__(self, log: EventLog, terms: Terms) -> None:
        self._log = log
        self._terms = terms
        self.paused: set[str] = set(log.fact("paused", []))
        self.withdrawn: set[str] = set(log.fact("withdrawn", []))
        self.readmitted: set[str] = set(log.fact("readmitted", []))
        """Learners that may join once with other counts than before."""

    def objection(self, who: Identity) -> str | None:
        """Return why a caller may not connect, or None."""
        if who.kind == "operator":
            listed = who.name in self._terms.operators
            return None if listed else f"{who.name} is not on the study's list of operators."
        if who.name not in self._terms.learners:
            return f"{who.name} is not on the study's list of learners."
        if who.name in self.withdrawn:
            return f"{who.name} has been withdrawn from this federation."
        return None

    async def has_joined(self, name: str) -> None:
        """Freeze the counts of a readmitted learner again."""
        if name in self.readmitted:
            self.readmitted.discard(name)
            await self.store()

    async def store(self) -> None:
        """Write the decisions to disk."""
        await self._log.store(
            paused=sorted(self.paused), withdrawn=sorted(self.withdrawn), readmitted=sorted(self.readmitted)
        )

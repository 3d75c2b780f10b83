"""The log of events for the journal and the controller, in batches, and the clock that stamps them.

Law: journal, then handle, then send. An event is acknowledged when it is on disk; the commands that
follow from it are sent when the digests of new versions are on disk too.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from archipel.core.state import State
from archipel.core.types import Command, Event
from archipel.federation.controller.limiter import Quota
from archipel.federation.storage.blobs import Buffer
from archipel.federation.storage.durable_controller import DurableController, IncomingEvent, Moved, Note, Taken
from archipel.federation.storage.journal import Answer
from archipel.federation.storage.stored_models import Delivery

T = TypeVar("T")

REFUSALS = 20
"""Refusals a minute that get a row each in the audit, for each caller."""


@dataclass(eq=False)
class PendingEvent:
    """An event that was posted."""

    entry: IncomingEvent
    taken: asyncio.Future[Taken]
    """Done when it is on disk."""
    handled: asyncio.Future[None]
    """Done when the controller has handled it."""


class EventLog:
    """Append events; write and handle them batch by batch in one thread."""

    def __init__(self, durable: DurableController) -> None:
        self.durable = durable
        self.finished = asyncio.Event()
        """Set when the controller has stopped the run and everything is on disk."""
        self._pending: list[PendingEvent] = []
        self._notes: list[Note] = []
        self._refusals = Quota(REFUSALS, told=True)
        self._bell = asyncio.Event()
        self._writer = ThreadPoolExecutor(1, "writer")
        self._opened = time.monotonic()
        self._before = durable.time

    @property
    def now(self) -> float:
        """Seconds that the federation has been running, without the time in which no process ran."""
        return self._before + time.monotonic() - self._opened

    @property
    def state(self) -> State:
        """The controller's state."""
        return self.durable.controller.state

    @property
    def stopped(self) -> str | None:
        """Why the run is over; None while it is running."""
        return self.durable.replay.stopped

    # ------------------------------------------------------------------------------------------------------ appending

    def post(
        self,
        event: Event,
        answer: Answer | None = None,
        delivery: Delivery | None = None,
        body: Buffer = b"",
        moved: Moved | None = None,
        note: Note | None = None,
    ) -> PendingEvent:
        """Append an event; its futures tell when it is on disk and when the controller has handled it."""
        loop = asyncio.get_running_loop()
        entry = IncomingEvent(event, answer, delivery, body, moved or {}, note)
        pending = PendingEvent(entry, loop.create_future(), loop.create_future())
        self._pending.append(pending)
        self._bell.set()
        return pending

    def note(self, who: str, what: str, **detail: object) -> None:
        """Add a row to the audit; it is written with the next batch."""
        self._notes.append(Note(who, what, detail))
        self._bell.set()

    def note_refusal(self, who: str, whose: str = "", **detail: object) -> bool:
        """Add a row on a refusal; return False if it is only counted, since the caller had many lately.

        whose: the caller's identity for the quota, if that is not `who`.
        """
        admitted = self._refusals.admit(whose or who, self.now)
        if admitted:
            self.note(who, "refused", **detail)
        return admitted

    def note_repeats(self) -> None:
        """Add one row for the refusals of a minute that were only counted, for each caller."""
        for who, more in self._refusals.ended(self.now):
            self.note(who, "refused", more=more, reason="repeated")

    async def next_batch(self) -> tuple[list[Event], list[Command]]:
        """Write the appended events and have them handled; return them and the commands to carry out."""
        await self._bell.wait()
        self._bell.clear()
        pending, self._pending = self._pending, []
        notes, self._notes = self._notes, []
        take = partial(self.durable.take, [one.entry for one in pending], notes, self.now)
        for one, taken in zip(pending, await self.in_writer(take), strict=True):
            if not one.taken.cancelled():
                one.taken.set_result(taken)
        commands = await self.in_writer(self.durable.handle) if pending else []
        for one in pending:
            if not one.handled.cancelled():
                one.handled.set_result(None)
        return [one.entry.event for one in pending], commands

    def wake(self) -> None:
        """Start the next batch at once, even an empty one."""
        self._bell.set()

    async def close(self) -> None:
        """Write the last rows of the audit and close the journal."""
        await self.in_writer(partial(self.durable.take, [], self._notes, self.now))
        self._writer.shutdown(wait=True, cancel_futures=True)
        self.durable.close()

    # ---------------------------------------------------------------------------------------------------------- facts

    def fact(self, name: str, otherwise: Any) -> Any:
        """Return a stored fact; once batches are written, only the writer's thread may call this."""
        found = self.durable.journal.fact(name)
        return otherwise if found is None else json.loads(found)

    async def store(self, **facts: object) -> None:
        """Write facts to disk."""

        def write() -> None:
            with self.durable.journal.write():
                for name, value in facts.items():
                    self.durable.journal.store_fact(name, json.dumps(value))

        await self.in_writer(write)

    async def in_writer(self, work: Callable[[], T]) -> T:
        """Run something in the thread that owns the journal."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)

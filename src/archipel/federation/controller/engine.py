"""The engine of a real federation: carries the controller's commands to learners elsewhere, and brings events back.

Who runs where:
    the event loop   calls of learners, clocks and deadlines, who is there; of models it looks at small ones only,
                     and passes on pieces of those in memory
    the clerk        one thread that writes the journal and tells the controller, batch after batch
    the hands        threads that write, hash, check and read models
    home             one thread that tries models at HOME

Law: journal, then handle, then send. A learner hears that its update is safe when it is; a command leaves when the
event it follows from, and the digest of the version it carries, are on disk.

What learners may call is in the files beside this one: `joining`, `orders` (down), `answers` and `opinions` (up), and
`operators`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from archipel.core.records import Capped, Scores
from archipel.core.types import (
    Cancel,
    Command,
    Evaluate,
    Evaluated,
    Event,
    Failed,
    Finish,
    Keep,
    Left,
    Stop,
    Train,
    Trained,
    Woke,
)
from archipel.federation.controller.answers import Answers
from archipel.federation.controller.joining import Joining
from archipel.federation.controller.limiter import Turns
from archipel.federation.controller.meters import Meters
from archipel.federation.controller.operators import Operators
from archipel.federation.controller.opinions import Opinions
from archipel.federation.controller.orders import Orders
from archipel.federation.controller.terms import Home, Seat, Terms
from archipel.federation.security.revocation import RevocationList
from archipel.federation.storage.blobs import Buffer
from archipel.federation.storage.durable_controller import Book, Entry, Moved, Note, Taken
from archipel.federation.storage.journal import Answer
from archipel.federation.storage.stored_models import Delivery
from archipel.federation.wire.body import Bodies

TICK = 0.1
"""Seconds between two looks at the clock."""

log = logging.getLogger("archipel.federation")
T = TypeVar("T")


@dataclass(eq=False)
class Pending:
    """An event on its way."""

    entry: Entry
    taken: asyncio.Future[Taken]
    """Done when it is on disk."""
    handled: asyncio.Future[None]
    """Done when the controller has been told."""


class Federation:
    def __init__(
        self,
        book: Book,
        terms: Terms,
        *,
        study: Mapping[str, str],
        layout: str,
        features: Sequence[int] | None = None,
        home: Home | None = None,
        meters: Meters | None = None,
        revoked: RevocationList | None = None,
    ) -> None:
        """`study`: hashes that a learner's have to equal; `layout`: hash of the layers; `features`: the shape of an
        example, where features are standardised by everybody's statistics."""
        self.book = book
        self.terms = terms
        self.home = home
        self.meters = meters or Meters()
        self.bodies = Bodies(book.layout)
        self.large_pieces = Turns(8, 0.05)
        """Pieces of models on their way down or up: each is in memory several times over. One that takes longer, as on
        a slow line, keeps its turn from others for so many seconds and no more."""
        self.seats = {name: Seat(name) for name in terms.learners}
        self.revoked = revoked or RevocationList()
        self.certificates: dict[str, datetime] = {}
        """When the certificates of the controller and of whoever called expire."""
        self.restarts = 0
        """Controllers before this one that were killed, and their keeper went on."""
        self.name = self._name()
        self.finished = asyncio.Event()
        self.score = self._score(book.last_scores())
        self.joining = Joining(self, study, layout, features)
        self.orders = Orders(self)
        self.answers = Answers(self)
        self.opinions = Opinions(self)
        self.operators = Operators(self)
        self._desk: list[Pending] = []
        self._notes: list[Note] = []
        self._bell = asyncio.Event()
        self._clerk = ThreadPoolExecutor(1, "clerk")
        self._hands = ThreadPoolExecutor(4, "hand")
        self._at_home = ThreadPoolExecutor(1, "home")
        self._errands: set[asyncio.Task[None]] = set()
        self._open = False
        self._opened = time.monotonic()
        self._before = book.time

    def _name(self) -> str:
        """What tells this federation from others, also of the same study: once and for all."""
        name: str = self.fact("federation", "") or secrets.token_hex(8)
        with self.book.journal.write():
            self.book.journal.settle("federation", json.dumps(name))
        return name

    @property
    def now(self) -> float:
        """Seconds that the federation has been at work: the time it was down does not count."""
        return self._before + time.monotonic() - self._opened

    @property
    def stopped(self) -> str | None:
        return self.book.course.stopped

    @property
    def everybody_knows(self) -> bool:
        """All learners that are there have heard that it is over, and have what they wanted to keep."""
        there = [member.name for member in self.book.controller.state.members.values() if member.active]
        return all(self.seats[name].told_end and not self.seats[name].fetching for name in there)

    # ------------------------------------------------------------------------------------------------------ running

    async def run(self) -> None:
        """Go on until the controller stops the run; those who come later are answered until `close`."""
        await self.open()
        works = [self._pump(), self._watch(), self._over()]
        tasks = {asyncio.create_task(work) for work in works}
        self._errands |= tasks
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _over(self) -> None:
        await self.finished.wait()

    async def close(self) -> None:
        for task in self._errands:
            task.cancel()
        await asyncio.gather(*self._errands, return_exceptions=True)
        await self.in_clerk(partial(self.book.take, [], self._notes, self.now))
        for pool in (self._clerk, self._hands, self._at_home):
            pool.shutdown(wait=True, cancel_futures=True)
        self.book.close()

    async def open(self) -> None:
        """Be ready for calls: whoever calls before this would be told of a federation that knows nothing."""
        if not self._open:
            self._open = True
            await self.joining.remember()
            self._resume()

    def _resume(self) -> None:
        """Go on with what was out when the last process ended."""
        for seat in self.seats.values():
            seat.seen = self.now
        for name in self.book.controller.state.members.keys() - self.seats.keys():
            # not on the list any more: it is not let in, and so long silent that it is gone
            self.seats[name] = Seat(name, seen=-math.inf)
        for name in (*self.operators.paused, *self.operators.withdrawn):
            member = self.book.controller.state.members.get(name)
            if member is not None and member.active:  # it was told, and the process ended before the journal was
                self.post(Left(name))  # before any task that fails: who has left is given no new one
        for task, out in list(self.book.out.items()):
            self._carry_out(out.command)
            if out.cancelled:
                self.post(Failed(task, "cancelled"))
        self._bell.set()

    async def _pump(self) -> None:
        """Batch after batch: onto the disk, to the controller, and out."""
        while True:
            await self._bell.wait()
            self._bell.clear()
            desk, self._desk = self._desk, []
            notes, self._notes = self._notes, []
            take = partial(self.book.take, [pending.entry for pending in desk], notes, self.now)
            for pending, taken in zip(desk, await self.in_clerk(take), strict=True):
                if not pending.taken.cancelled():
                    pending.taken.set_result(taken)
            commands = await self.in_clerk(self.book.handle) if desk else []
            for pending in desk:
                self._close(pending.entry.event)
                if not pending.handled.cancelled():
                    pending.handled.set_result(None)
            # questions first: they are about the learners as they are now, before their private layers train on
            for command in sorted(commands, key=lambda command: not isinstance(command, Evaluate)):
                self._carry_out(command)
            self._measure()
            if self.stopped is not None and not self.finished.is_set():
                self.finished.set()
                self.orders.say_goodbye()

    def _carry_out(self, command: Command) -> None:
        match command:
            case Train():
                self.orders.give(command.learner, command)
            case Evaluate():
                self.opinions.ask(command)
            case Finish(task):
                self.orders.say(task, "finish")
            case Cancel(task):
                self.orders.say(task, "cancel")
                self.post(Failed(task, "cancelled"))
            case Keep(Scores() as scores):
                self.score = self._score(scores)
            case Keep(Capped(learner, what, most)):
                self.warn_of_share(learner, what, most)
            case Stop(reason):
                log.info("the run is over", extra={"reason": reason})

    def warn_of_share(self, learner: str, what: str, most: float) -> None:
        log.warning(
            "a learner claims more than anybody's share, and is cut to it: look at its counts",
            extra={"learner": learner, "what": what, "most_share": most},
        )
        self.note(learner, "capped", of=what, most_share=most)

    def _score(self, scores: Scores | None) -> float | None:
        evaluation = self.book.controller.evaluation
        return None if scores is None or evaluation is None else scores.metrics.get(evaluation.metric)

    def _close(self, event: Event) -> None:
        """A task was answered: it is on nobody's list any more."""
        if isinstance(event, Trained | Failed | Evaluated):
            self.opinions.forget(event.task)
            self.orders.forget(event.task)

    # ------------------------------------------------------------------------------------------------- the clock

    async def _watch(self) -> None:
        while True:
            before = self.now
            await asyncio.sleep(TICK)
            asleep = self.now - before - TICK
            if asleep > 10 * TICK:  # while this process stood still it could not hear anybody
                log.warning("this process stood still", extra={"seconds": round(asleep, 1)})
                for seat in self.seats.values():
                    seat.seen += asleep
            due = [self.post(event) for event in self._due()] + self.opinions.due()
            # what is due is said once: the next look comes when the controller has heard it
            await asyncio.gather(*(pending.handled for pending in due))

    def _due(self) -> Iterator[Event]:
        if self.stopped is not None:
            return  # nobody is missed any more
        now, terms = self.now, self.terms
        for alarm in sorted(self.book.course.alarms, key=lambda alarm: alarm.due):
            if alarm.due <= now:
                yield Woke(alarm.tag)
        for task, out in [late for late in list(self.book.out.items()) if late[1].since + terms.task_deadline <= now]:
            if isinstance(out.command, Train):
                yield Failed(task, f"late: no answer in {terms.task_deadline:g} s", self.orders.traffic(task))
        for seat in [seat for seat in self.seats.values() if now - seat.seen > terms.silence]:
            member = self.book.controller.state.members.get(seat.name)
            # one that is paused may still be at something, and go for good
            if member is not None and (member.active or seat.orders):
                log.warning("a learner is silent", extra={"learner": seat.name, "seconds": terms.silence})
                yield from self.gone(seat, f"lost: no sign of life in {terms.silence:g} s")

    def gone(self, seat: Seat, reason: str) -> Iterator[Event]:
        """Tell that a learner has gone, then what it will not answer: whoever is told of its tasks first hands it new
        ones. Post each event before asking for the next."""
        yield Left(seat.name)
        for task, command in list(seat.orders.items()):
            if isinstance(command, Train):
                yield Failed(task, reason, self.orders.traffic(task))
            else:
                self.opinions.take(task, seat.name, None)

    # ---------------------------------------------------------------------------------- what the files beside use

    def post(
        self,
        event: Event,
        answer: Answer | None = None,
        delivery: Delivery | None = None,
        body: Buffer = b"",
        moved: Moved | None = None,
        note: Note | None = None,
    ) -> Pending:
        """Have an event written down and the controller told of it."""
        loop = asyncio.get_running_loop()
        entry = Entry(event, answer, delivery, body, moved or {}, note)
        pending = Pending(entry, loop.create_future(), loop.create_future())
        self._desk.append(pending)
        self._bell.set()
        return pending

    def note(self, who: str, what: str, **detail: object) -> None:
        """For the audit; it is written with the next events, or in a moment."""
        self._notes.append(Note(who, what, detail))
        self._bell.set()

    def refused(self, who: str, call: str, reason: str) -> None:
        """A call that could not be answered: counted, and in the audit."""
        log.warning("a call was refused", extra={"caller": who, "call": call, "reason": reason})
        self.meters.refusals.labels("call").inc()
        self.note(who, "refused", call=call, reason=reason)

    async def in_clerk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._clerk, work)

    async def in_hand(self, work: Callable[[], T]) -> T:
        """Have a thread do it; whoever gives up waiting leaves when it is done, for its files are not to be touched."""
        done = asyncio.get_running_loop().run_in_executor(self._hands, work)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait({done})
            raise

    async def in_home(self, work: Callable[[], T]) -> T:
        """One at a time: whoever tries a model takes the network for it."""
        return await asyncio.get_running_loop().run_in_executor(self._at_home, work)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def fact(self, name: str, otherwise: Any) -> Any:
        """What was settled before, in an earlier process maybe; only while nothing runs yet."""
        found = self.book.journal.fact(name)
        return otherwise if found is None else json.loads(found)

    async def settle(self, **facts: object) -> None:
        """Have facts on disk."""

        def write() -> None:
            with self.book.journal.write():
                for name, value in facts.items():
                    self.book.journal.settle(name, json.dumps(value))

        await self.in_clerk(write)

    def _measure(self) -> None:
        state = self.book.controller.state
        self.meters.version.set(state.version)
        self.meters.learners.set(sum(len(names) for names in state.there.values()))
        self.meters.tasks.labels("train").set(len(state.out))
        self.meters.tasks.labels("evaluate").set(len(state.inquiries))
        for what, names in state.capped.items():
            self.meters.capped.labels(what).set(len(names))
        if self.score is not None:
            self.meters.score.set(self.score)

"""The engine of a real federation: carries the controller's commands to learners, and brings their events back.

Threads:
    the event loop   calls of learners, deadlines and presence; it checks small updates and passes on models in memory
    the writer       one thread that writes the journal and calls the controller, batch after batch (`event_log`)
    the workers      threads that write, hash, check and read models, and one that evaluates at home (`workers`)

Law: journal, then handle, then send (`event_log`).

What learners may call is in the files beside this one: `joining`, `orders` (down), `answers` (up) and `operators`. Each
is given what it uses: the event log, the sessions of learners, the outbox.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence

from archipel.core.records import Capped, Committed, Scores
from archipel.core.types import (
    AddUp,
    Cancel,
    Command,
    Evaluate,
    Evaluated,
    Event,
    Failed,
    Finish,
    Keep,
    Left,
    Pooled,
    Stop,
    Summed,
    Train,
    Trained,
    Woke,
)
from archipel.federation.controller.admissions import Admissions
from archipel.federation.controller.answers import Answers
from archipel.federation.controller.departures import Departures
from archipel.federation.controller.event_log import EventLog, PendingEvent
from archipel.federation.controller.joining import Joining
from archipel.federation.controller.limiter import Backlog, Calls, Limiter
from archipel.federation.controller.meters import Meters
from archipel.federation.controller.operators import Operators
from archipel.federation.controller.orders import Orders
from archipel.federation.controller.outbox import Outbox, TaskDeadline
from archipel.federation.controller.piecewise_uploads import PiecewiseUploads
from archipel.federation.controller.secure_rounds import SecureRounds
from archipel.federation.controller.sessions import LearnerSession
from archipel.federation.controller.site_evaluations import SiteEvaluations
from archipel.federation.controller.status_board import StatusBoard
from archipel.federation.controller.sum_totals import SumRules
from archipel.federation.controller.terms import HomeSite, Terms
from archipel.federation.controller.thread_pools import ThreadPools
from archipel.federation.security.revocation import RevocationList
from archipel.federation.storage.durable_controller import DurableController
from archipel.federation.wire.body import Bodies

TICK = 0.1
"""Seconds between two checks of the clock."""
LARGE_PIECES, PIECE_SECONDS = 8, 0.05
"""Pieces of models on their way down or up, since each is in memory several times over; a slow one stops counting."""
CROWDED = 64
"""Updates in memory above which no further orders are sent."""

log = logging.getLogger("archipel.federation")


class Federation:
    """Build the parts of the controller's side, and run them until the run is over."""

    def __init__(
        self,
        durable: DurableController,
        terms: Terms,
        *,
        study: Mapping[str, str],
        layout: str,
        features: Sequence[int] | None = None,
        home: HomeSite | None = None,
        meters: Meters | None = None,
        revoked: RevocationList | None = None,
        sums: SumRules | None = None,
    ) -> None:
        """Take a controller and the terms.

        study: hashes that a learner's must equal. layout: hash of the layers. features: the shape of an example, where
        features are standardised by everybody's statistics. revoked: certificates that no longer count. sums: how
        updates are added up in secure sums, if they are.
        """
        self.revoked = revoked or RevocationList()
        self.durable = durable
        self.terms = terms
        self.meters = meters or Meters()
        self.log = EventLog(durable)
        self.sessions = {name: LearnerSession(name) for name in terms.learners}
        self.workers = ThreadPools()
        self.calls = Calls()
        self.deadline = TaskDeadline(terms.task_deadline)
        self.outbox = Outbox(self.log, self.sessions, durable.layout, self.meters)
        self._large_pieces = Limiter(LARGE_PIECES, PIECE_SECONDS)
        self.large = PiecewiseUploads(self.log, self.workers, self._large_pieces)
        self.sums = SecureRounds(
            *(self.log, self.sessions, self.workers, self.large, sums),
            federation=self._name(),
            deadline=terms.opinion_deadline,
        )
        self.evaluations = SiteEvaluations(
            *(self.log, self.sessions, self.outbox, self.workers, self.sums, self.meters, home),
            deadline=terms.opinion_deadline,
        )
        self.departures = Departures(self.outbox, self.evaluations, self.sums)
        self.admissions = Admissions(self.log, terms)
        self.status = StatusBoard(self.log, self.sessions, self.admissions, self.meters)
        self.joining = Joining(
            *(self.log, self.sessions, self.admissions, self.status, terms, home),
            name=self._name(),
            study=study,
            layout=layout,
            features=features,
        )
        self.operators = Operators(self.log, self.sessions, self.admissions, self.departures, self.calls, terms)
        self.orders, self.answers = self._down_and_up()
        self._open = False

    def _down_and_up(self) -> tuple[Orders, Answers]:
        """Build the two sides that carry models, which share the limits on what is in memory."""
        log, sessions, outbox, terms = self.log, self.sessions, self.outbox, self.terms
        bodies, backlog = Bodies(self.durable.layout), Backlog(CROWDED)
        orders = Orders(
            *(log, sessions, outbox, self.workers, bodies, self.sums),
            backlog=backlog,
            large_pieces=self._large_pieces,
            heartbeat=terms.heartbeat,
        )
        answers = Answers(
            *(log, sessions, outbox, self.evaluations, self.sums, self.large),
            *(bodies, terms, self.meters, backlog, self.deadline),
        )
        return orders, answers

    def _name(self) -> str:
        """Return the random name of this federation, which distinguishes it from others of the same study."""
        name: str = self.log.fact("federation", "") or secrets.token_hex(8)
        with self.durable.journal.write():
            self.durable.journal.store_fact("federation", json.dumps(name))
        return name

    @property
    def stopped(self) -> str | None:
        """Why the run is over; None while it is running."""
        return self.log.stopped

    @property
    def everybody_knows(self) -> bool:
        """Whether all present learners know of the end, and have fetched the last model if they wanted it."""
        there = [member.name for member in self.log.state.members.values() if member.active]
        return all(self.sessions[name].told_end and not self.sessions[name].fetching for name in there)

    # -------------------------------------------------------------------------------------------------------- running

    async def run(self) -> None:
        """Run until the controller stops the run; later callers are answered until `close`."""
        await self.open()
        tasks = {self.workers.start(work) for work in (self._pump(), self._watch(), self._wait_for_the_end())}
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _wait_for_the_end(self) -> None:
        await self.log.finished.wait()

    async def close(self) -> None:
        """Write everything to disk, and end all threads."""
        await self.workers.cancel()
        await self.log.close()
        self.workers.close()

    async def open(self) -> None:
        """Prepare for calls; must be called before the server starts."""
        if not self._open:
            self._open = True
            await self.joining.load()
            await self.sums.load()
            self._resume()

    def _resume(self) -> None:
        """Resume the tasks that were open when the last process ended."""
        members = self.log.state.members
        for session in self.sessions.values():
            session.seen = self.log.now
        for name in members.keys() - self.sessions.keys():
            # no longer on the list: it is not admitted, and counts as silent
            self.sessions[name] = LearnerSession(name, seen=-math.inf)
        for name in (*self.admissions.paused, *self.admissions.withdrawn):
            if name in members and members[name].active:  # the process ended between the decision and the event
                self.log.post(Left(name))  # before any task that fails: a learner that has left gets no new task
        for task, out in list(self.durable.out.items()):
            self._carry_out(out.command)
            if out.cancelled:
                self.log.post(Failed(task, "cancelled"))
        self.log.wake()

    async def _pump(self) -> None:
        """Write and handle events batch by batch, and carry out what follows."""
        while True:
            events, commands = await self.log.next_batch()
            for event in events:
                if isinstance(event, Summed | Pooled | Failed):
                    self.workers.start(self.sums.close(event.task))
                if isinstance(event, Trained | Failed | Evaluated | Pooled):
                    self.outbox.close(event.task)
                if isinstance(event, Failed | Evaluated | Pooled):
                    self.evaluations.close(event.task)
            # questions first: they are about the learners before their private layers train further
            for command in sorted(commands, key=lambda command: not isinstance(command, Evaluate)):
                self._carry_out(command)
            if events:
                self.status.measure()
            if self.stopped is not None and not self.log.finished.is_set():
                self.log.finished.set()
                self.outbox.announce_end()

    def _carry_out(self, command: Command) -> None:
        match command:
            case Train():
                self.outbox.give(command.learner, command)
            case Evaluate():
                self.evaluations.ask(command)
            case AddUp():
                self.workers.start(self.sums.begin(command))
            case Finish(task):
                self.outbox.tell_holders(task, "finish")
            case Cancel(task):
                self.outbox.tell_holders(task, "cancel")
                self.log.post(Failed(task, "cancelled"))
            case Keep(Scores() as scores):
                self.status.record_scores(scores)
            case Keep(Committed() as commit):
                self.status.record_commit(commit)
            case Keep(Capped() as capped):
                self.status.warn_of_share(capped)
            case Stop(reason):
                log.info("the run is over", extra={"reason": reason})

    # ------------------------------------------------------------------------------------------------------ the clock

    async def _watch(self) -> None:
        """Post due events; time in which this process was suspended does not count against learners."""
        looked, told, silent = self.log.now, list[PendingEvent](), list[str]()
        while True:
            await asyncio.sleep(TICK)
            stalled = self.log.now - looked - TICK
            looked = self.log.now
            if stalled > 10 * TICK:  # a suspended process receives nothing
                log.warning("this process was suspended", extra={"seconds": round(stalled, 1)})
                for session in self.sessions.values():
                    session.seen += stalled
            self.log.note_repeats()
            # each due event is posted once: the next check waits until the controller has handled it
            silent += self.sums.close_due()
            if all(pending.handled.done() for pending in told):
                silent += self.evaluations.silent()
                told = [self.log.post(event) for event in self._due(looked, silent)] + self.evaluations.tell_due()
                silent = []

    def _due(self, now: float, silent: Sequence[str]) -> Iterator[Event]:
        """Yield due events; now: when the last suspension was accounted for, since there may have been another.

        silent: learners that an update, or a sum, has waited for in vain.
        """
        if self.stopped is not None:
            return  # learners may leave after the end
        terms, most = self.terms, self.deadline.seconds
        for session in (self.sessions[name] for name in self.sums.spoilers()):
            if session.count_spoilt(now, terms.opinion_deadline):
                log.warning("a learner has spoilt sums and rests", extra={"learner": session.name})
                yield from self.departures.events(session, "its secret in a sum could not be recovered")
        for session in (self.sessions[name] for name in silent):
            if session.count_wait(now, terms.opinion_deadline):
                log.warning("a learner has not answered again and rests", extra={"learner": session.name})
                yield from self.departures.events(session, f"silent: no answer in {terms.opinion_deadline:g} s")
        for alarm in sorted(self.durable.replay.alarms, key=lambda alarm: alarm.due):
            if alarm.due <= now:
                yield Woke(alarm.tag)
        for task, out in list(self.durable.out.items()):
            if isinstance(out.command, Train) and out.since + most <= now:
                session, reason = self.sessions[out.command.learner], f"late: no answer in {most:.3g} s"
                yield from self.departures.failed(session, task, reason, now, now - out.since)
        for session in [session for session in self.sessions.values() if now - session.seen > terms.silence]:
            member = self.log.state.members.get(session.name)
            # a paused learner may have an open task, and never come back
            if member is not None and (member.active or session.orders):
                log.warning("a learner is silent", extra={"learner": session.name, "seconds": terms.silence})
                yield from self.departures.events(session, f"lost: no heartbeat in {terms.silence:g} s")

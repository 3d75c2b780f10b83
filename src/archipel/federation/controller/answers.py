"""Answers of learners: updates are checked and written to disk before they are acknowledged."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Mapping

from archipel.core.types import AddUp, Evaluate, Event, Failed, Left, Metrics, Train, Trained
from archipel.federation.controller.event_log import EventLog
from archipel.federation.controller.limiter import Backlog, Quota
from archipel.federation.controller.meters import Meters
from archipel.federation.controller.outbox import Outbox, TaskDeadline
from archipel.federation.controller.piecewise_uploads import PiecewiseUploads
from archipel.federation.controller.secure_rounds import SecureRounds
from archipel.federation.controller.sessions import LearnerSession
from archipel.federation.controller.site_evaluations import SiteEvaluations
from archipel.federation.controller.sum_totals import AddScores
from archipel.federation.controller.terms import Rejected, RetryLater, Terms
from archipel.federation.controller.uploads import (
    BROKEN_OFF,
    SMALL,
    TOO_MUCH,
    UpdateCheck,
    announced,
    received,
)
from archipel.federation.storage.blobs import Buffer
from archipel.federation.storage.durable_controller import LATE, REFUSED, Moved, Note, Taken
from archipel.federation.storage.journal import Answer
from archipel.federation.storage.stored_models import Delivery
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.federation.wire.body import Bodies, InvalidUpdate
from archipel.federation.wire.channel import CHUNK
from archipel.federation.wire.pieces import Portion

log = logging.getLogger("archipel.federation")

VERDICTS = {"kept": pb.Receipt.KEPT, "late": pb.Receipt.LATE}
LATE_ANSWERS = 100
"""Late answers a minute that are written to the journal, for each learner."""
UNASKED = 600
"""Answers a minute to tasks that a learner does not have, or no longer has."""
LARGEST = 2**63 - 1
"""The largest integer that the journal can store."""


class Answers:
    """Answer the calls Stored, Reply and Answer."""

    def __init__(
        self,
        event_log: EventLog,
        sessions: Mapping[str, LearnerSession],
        outbox: Outbox,
        evaluations: SiteEvaluations,
        sums: SecureRounds,
        large: PiecewiseUploads,
        bodies: Bodies,
        terms: Terms,
        meters: Meters,
        backlog: Backlog,
        deadline: TaskDeadline,
    ) -> None:
        self._log = event_log
        self._sessions = sessions
        self._outbox = outbox
        self._evaluations = evaluations
        self._sums, self._in_sums = sums, sums.active
        self._large = large
        self._bodies = bodies
        self._terms = terms
        self._meters = meters
        self._backlog = backlog
        self._deadline = deadline
        self._layout = bodies.layout
        self._late, self._unasked = Quota(LATE_ANSWERS), Quota(UNASKED)

    async def stored(self, name: str, parcel: pb.Parcel) -> pb.Offset:
        """Return where to resume an interrupted upload."""
        return pb.Offset(offset=self._large.stored(name, parcel))

    async def reply(self, name: str, portion: Portion) -> pb.Receipt:
        """Receive an answer in one message."""
        return await self._receive(name, *self._split(portion, _nothing_more()))

    async def answer(self, name: str, portions: AsyncIterator[Portion]) -> pb.Receipt:
        """Receive an answer in many pieces."""
        receipt = await self._receive(name, *self._split(await self._next(portions), portions))
        await self._read_to_end(portions)
        return receipt

    async def _receive(self, name: str, head: pb.Head, pieces: AsyncIterator[Buffer]) -> pb.Receipt:
        began = time.monotonic()
        session = self._sessions[name]
        session.seen = self._log.now
        command = session.orders.get(head.task)
        if command is None:
            return await self._unexpected(name, head)
        if isinstance(command, Evaluate):
            return self._evaluations.receive(name, command, head)
        if isinstance(command, AddUp | AddScores):
            return await self._sums.receive(session, command, head, pieces)
        receipt = await self._update(session, command, head, pieces)
        self._meters.latency.observe(time.monotonic() - began)
        return receipt

    # ------------------------------------------------------------------------------------------------------ updates

    async def _update(
        self, session: LearnerSession, command: Train, head: pb.Head, pieces: AsyncIterator[Buffer]
    ) -> pb.Receipt:
        traffic, out = self._outbox.traffic(command.task), self._log.durable.out.get(command.task)
        moved: Moved = {"train down": dict(session.given.get(command.task, {}))}
        delivery: Delivery | None = None
        body: Buffer = b""
        event: Event
        try:
            match head.WhichOneof("result"):
                case "trained" if self._in_sums:
                    event = self._without_numbers(session, command, head)
                case "trained":
                    event, delivery, body = await self._take_in(session, command, head, pieces)
                    names = self._layout.names
                    moved["train up"] = {names[at]: self._layout.bytes((at,)) for at in delivery.inside}
                case "failed":
                    event = Failed(command.task, f"crashed: {head.failed[:500]}", traffic)
                case "scored":
                    raise InvalidUpdate("an evaluation in answer to a training task")
                case _:
                    raise InvalidUpdate("an answer without a result to a training task")
        except KeyError:  # the task's model is gone: the task was answered, maybe by this answer in another call
            return await self._unexpected(session.name, head)
        except InvalidUpdate as error:
            log.warning(
                "an update was refused", extra={"learner": session.name, "task": head.task, "reason": str(error)}
            )
            self._meters.refusals.labels("update").inc()
            event = Failed(command.task, f"{REFUSED}{error}", traffic)
        seconds = 0.0 if out is None else self._log.now - out.since
        if not isinstance(event, Trained) and session.count_failure(head.task, self._log.now, seconds):
            self._log.post(Left(session.name))  # before its task fails: a learner that has left gets no new task
        note = _note(session.name, head)
        self._backlog.add(bool(body))
        try:
            taken = await self._log.post(event, _answer(session.name, head), delivery, body, moved, note).taken
        finally:
            self._backlog.add(-bool(body))
        if out is not None:
            self._meters.turnaround.observe(seconds)
        if isinstance(event, Trained):
            self._deadline.record(session.name, seconds)
            session.count_success()
            session.holds |= set(delivery.digests.values()) if delivery is not None else set()
            session.private |= set(command.plan.private)
        return self._receipt(taken)

    def _without_numbers(self, session: LearnerSession, command: Train, head: pb.Head) -> Trained:
        """Check an update for a secure sum: its numbers stay with the learner until the sum."""
        layers = tuple(layer.name for layer in head.trained.layers)
        if head.size or any(layer.sha256 for layer in head.trained.layers):
            raise InvalidUpdate("numbers or hashes of numbers, and the study adds updates up in secure sums")
        metrics = self._metrics(session, command, head)
        return Trained(command.task, "", layers, head.trained.steps, metrics, self._outbox.traffic(command.task))

    def _metrics(self, session: LearnerSession, command: Train, head: pb.Head) -> Metrics:
        state = self._log.state
        member = state.members[session.name]
        return messages.decode_metrics(
            head.trained,
            command.plan,
            examples=member.examples,
            validation=member.validation,
            classes=state.classes,
            per_token=state.per_token,
        )

    async def _take_in(
        self, session: LearnerSession, command: Train, head: pb.Head, pieces: AsyncIterator[Buffer]
    ) -> tuple[Trained, Delivery, Buffer]:
        """Check an update and write it to a file; raise `InvalidUpdate` with what is wrong with it.

        A small update in one message is returned instead, to be written with its journal entry.
        """
        plan, metrics = command.plan, self._metrics(session, command, head)
        models, bodies = self._log.durable.models, self._bodies
        digests = messages.decode_layers(head.trained.layers)
        optional = self._log.durable.controller.algorithm.optional(self._layout)
        layers = tuple(name for name in plan.sends(self._layout.names) if name in digests or name not in optional)
        expected = announced(bodies, models, command.model.name, layers, digests, head.size, head.sha256.hex())
        check = UpdateCheck(expected, bodies, models, self._terms.norm_bound)
        body: Buffer = b""
        if head.offset == 0 and expected.size <= SMALL:
            body = await _whole(pieces, expected.size)
            delivery = received(body, check)
        else:
            delivery = await self._large.take(session, head, check, pieces)
        up = self._layout.bytes(delivery.inside)
        self._meters.bytes.labels("up").inc(up)
        traffic = self._outbox.traffic(command.task, up)
        event = Trained(command.task, f"t{command.task}", layers, head.trained.steps, metrics, traffic)
        return event, delivery, body

    async def _unexpected(self, name: str, head: pb.Head) -> pb.Receipt:
        """Take an answer to a task that is not open: it was answered before, is late, or was never given."""
        if not self._unasked.admit(name, self._log.now):
            raise RetryLater(f"{name} has answered {UNASKED} tasks in a minute that it does not have.")
        if head.WhichOneof("result") in ("scored", "sum"):
            return pb.Receipt(verdict=pb.Receipt.LATE)  # evaluations are not in the journal one by one
        owner = await self._log.in_writer(lambda: self._log.durable.journal.handed_to(head.task))
        if owner == name and head.task in self._log.durable.out:
            raise RetryLater(f"Task {head.task} is being handed out; try again.")
        if owner != name:
            self._meters.refusals.labels("unknown task").inc()
            self._log.note_refusal(name, task=head.task, reason="unknown task")
            return pb.Receipt(verdict=pb.Receipt.REFUSED, reason=f"task {head.task} was never given to {name}")
        if not self._late.admit(name, self._log.now):
            raise RetryLater(f"{name} has sent {LATE_ANSWERS} late answers in a minute.")
        note = _note(name, head)
        taken = await self._log.post(Failed(head.task, LATE), _answer(name, head), note=note).taken
        return self._receipt(taken)

    def _receipt(self, taken: Taken) -> pb.Receipt:
        self._meters.updates.labels(taken.verdict).inc()
        return pb.Receipt(verdict=VERDICTS.get(taken.verdict, pb.Receipt.REFUSED), reason=taken.reason)

    # ------------------------------------------------------------------------------------------------------ portions

    def _split(self, first: Portion | None, portions: AsyncIterator[Portion]) -> tuple[pb.Head, AsyncIterator[Buffer]]:
        """Return an answer's head, and its data piece by piece."""
        if first is None or first.head is None:
            raise Rejected("An answer begins with its head.")
        if first.head.sequence > LARGEST:
            raise Rejected(f"An answer with the sequence {first.head.sequence}; the largest is {LARGEST}.")
        return first.head, self._pieces(first.data, portions)

    async def _pieces(self, data: Buffer, portions: AsyncIterator[Portion]) -> AsyncIterator[Buffer]:
        while True:
            given = [data]
            del data
            yield given.pop()  # hold no reference while it is in use
            portion = await self._next(portions)
            if portion is None:
                return
            data = portion.data
            del portion

    async def _next(self, portions: AsyncIterator[Portion]) -> Portion | None:
        """Return the next piece of an answer, or None at its end."""
        seconds = self._terms.silence
        try:
            async with asyncio.timeout(seconds):
                return await anext(portions)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            raise RetryLater(f"No data arrived for {seconds:g} s.") from None

    async def _read_to_end(self, portions: AsyncIterator[Portion]) -> None:
        """Read the rest: a receipt sent before the caller's end of stream may be lost (grpc issue 36066)."""
        whole = self._bodies.size(self._layout.indices(None))
        for _ in range(whole // CHUNK + 2):
            if await self._next(portions) is None:
                return  # do not wait for a caller that never ends its stream


async def _nothing_more() -> AsyncIterator[Portion]:
    return
    yield


async def _whole(pieces: AsyncIterator[Buffer], size: int) -> Buffer:
    """Return a body of this many bytes."""
    body: Buffer = b""
    async for piece in pieces:
        body = piece if not body else b"".join((body, piece))  # most come in one piece, which needs no copy
        if len(body) > size:
            raise InvalidUpdate(TOO_MUCH.format(size))
    if len(body) < size:
        raise RetryLater(BROKEN_OFF.format(len(body), size))
    return body


def _note(name: str, head: pb.Head) -> Note:
    """Return the row of the audit."""
    told = {"task": head.task, "sequence": head.sequence, "bytes": head.size, "sha256": head.sha256[:32].hex()}
    return Note(name, "update", told)


def _answer(name: str, head: pb.Head) -> Answer:
    same = pb.Head()
    same.CopyFrom(head)
    same.offset = 0  # the same answer, wherever its data begin
    told = hashlib.sha256(same.SerializeToString(deterministic=True)).hexdigest()
    return Answer(name, head.task, head.sequence, told)

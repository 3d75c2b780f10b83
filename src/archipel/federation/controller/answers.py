"""Answers: updates come in, are looked at, and are on disk before their senders hear that they are safe."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

from archipel.core.types import Evaluate, Event, Failed, Progress, Train, Trained
from archipel.federation.controller.limiter import Turn
from archipel.federation.controller.reception import (
    BROKEN_OFF,
    SMALL,
    TOO_MUCH,
    Examination,
    Reception,
    announced,
    received,
)
from archipel.federation.controller.terms import Busy, Rejected, Seat
from archipel.federation.storage.blobs import Buffer
from archipel.federation.storage.durable_controller import LATE, REFUSED, Moved, Note, Taken
from archipel.federation.storage.journal import Answer
from archipel.federation.storage.stored_models import Delivery
from archipel.federation.wire import codec as speech
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.body import Bad
from archipel.federation.wire.channel import CHUNK
from archipel.federation.wire.pieces import Portion

if TYPE_CHECKING:
    from archipel.federation.controller.engine import Federation

log = logging.getLogger("archipel.federation")

VERDICTS = {"kept": pb.Receipt.KEPT, "late": pb.Receipt.LATE}
CROWDED = 64
"""Updates in memory from which on no further orders leave."""
LARGEST = 2**63 - 1
"""The largest number that a journal can hold."""


class Answers:
    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.book = federation.book
        self._bringing: set[str] = set()
        """Learners whose update is arriving piece by piece."""
        self._in_memory = 0
        """Small updates that are here and not on disk yet."""
        self._room = asyncio.Event()
        """There are not so many of them that orders should wait."""
        self._unfinished: dict[str, str] = {}
        """The upload of each learner that broke off last: nobody may fill the disk with beginnings."""
        for path in sorted(federation.book.blobs.unfinished.iterdir(), key=lambda path: path.stat().st_mtime):
            self._supersede(path.name.rsplit(".", 2)[0], path.name)

    async def beat(self, name: str, pulse: pb.Pulse) -> pb.Heard:
        federation, seat = self.federation, self.federation.seats[name]
        seat.seen = federation.now
        member = self.book.controller.state.members.get(name)
        for task, steps in {told.task: told.steps for told in pulse.steps}.items():
            command = seat.orders.get(task)
            if not isinstance(command, Train) or "progress" not in command.plan.reports:
                continue
            if member is not None and steps <= speech.most_steps(command.plan, member.examples):
                federation.post(Progress(task, steps))
        gone = member is None or not member.active
        return pb.Heard(join=gone and name not in federation.operators.paused and federation.stopped is None)

    async def calm(self) -> None:
        """Wait while many updates are on their way to the disk: who is given work now would only bring more."""
        while self._in_memory >= CROWDED:
            await self._room.wait()

    def _hold(self, more: int) -> None:
        self._in_memory += more
        if self._in_memory < CROWDED:
            self._room.set()
        else:
            self._room.clear()

    async def stored(self, name: str, parcel: pb.Parcel) -> pb.Offset:
        path = self.book.blobs.unfinished / _label(name, parcel.task, parcel.sha256)
        return pb.Offset(offset=path.stat().st_size if path.exists() else 0)

    async def reply(self, name: str, portion: Portion) -> pb.Receipt:
        """An answer in one piece."""
        return await self._hear(name, *self._apart(portion, _nothing_more()))

    async def answer(self, name: str, portions: AsyncIterator[Portion]) -> pb.Receipt:
        """An answer in many pieces."""
        receipt = await self._hear(name, *self._apart(await self._next(portions), portions))
        await self._hear_out(portions)
        return receipt

    async def _hear(self, name: str, head: pb.Head, pieces: AsyncIterator[Buffer]) -> pb.Receipt:
        began = time.monotonic()
        federation, seat = self.federation, self.federation.seats[name]
        seat.seen = federation.now
        command = seat.orders.get(head.task)
        if command is None:
            return await self._unexpected(name, head)
        if isinstance(command, Evaluate):
            return federation.opinions.came(name, command, head)
        receipt = await self._update(seat, command, head, pieces)
        federation.meters.latency.observe(time.monotonic() - began)
        return receipt

    # ------------------------------------------------------------------------------------------------------ updates

    async def _update(self, seat: Seat, command: Train, head: pb.Head, pieces: AsyncIterator[Buffer]) -> pb.Receipt:
        traffic, out = self.federation.orders.traffic(command.task), self.book.out.get(command.task)
        moved: Moved = {"train down": dict(seat.given.get(command.task, {}))}
        delivery: Delivery | None = None
        body: Buffer = b""
        event: Event
        try:
            match head.WhichOneof("result"):
                case "trained":
                    event, delivery, body = await self._arrive(seat, command, head, pieces)
                    names = self.book.layout.names
                    moved["train up"] = {names[at]: self.book.layout.bytes((at,)) for at in delivery.inside}
                case "failed":
                    event = Failed(command.task, f"crashed: {head.failed[:500]}", traffic)
                case "scored":
                    raise Bad("an opinion in answer to a training task")
                case _:
                    raise Bad("an answer without a result to a training task")
        except KeyError:  # the model it stands on is gone: it was answered, maybe by this very answer in another call
            return await self._unexpected(seat.name, head)
        except Bad as bad:
            log.warning("an update was refused", extra={"learner": seat.name, "task": head.task, "reason": str(bad)})
            self.federation.meters.refusals.labels("update").inc()
            event = Failed(command.task, f"{REFUSED}{bad}", traffic)
        note = _note(seat.name, head)
        self._hold(bool(body))
        try:
            taken = await self.federation.post(event, _answer(seat.name, head), delivery, body, moved, note).taken
        finally:
            self._hold(-bool(body))
        if out is not None:
            self.federation.meters.turnaround.observe(self.federation.now - out.since)
        self.federation.orders.came_to(seat, delivery is not None)
        if delivery is not None:
            seat.holds |= set(delivery.digests.values())
            seat.private |= set(command.plan.private)
        return self._receipt(taken)

    async def _arrive(
        self, seat: Seat, command: Train, head: pb.Head, pieces: AsyncIterator[Buffer]
    ) -> tuple[Trained, Delivery, Buffer]:
        """From an update's announcement to its file on disk; raises `Bad` with what is wrong with it.

        A small one that came whole is given back instead, to go to the disk with its journal entry.
        """
        federation, plan = self.federation, command.plan
        state = self.book.controller.state
        member = state.members[seat.name]
        metrics = speech.hear_metrics(
            head.trained, plan, examples=member.examples, validation=member.validation, classes=state.classes
        )
        layers = plan.sends(self.book.layout.names)
        models, bodies = self.book.course.models, federation.bodies
        digests = speech.hear_layers(head.trained.layers)
        expected = announced(bodies, models, command.model.name, layers, digests, head.size, head.sha256.hex())
        examination = Examination(expected, bodies, models, federation.terms.norm_bound)
        body: Buffer = b""
        if head.offset == 0 and expected.size <= SMALL:
            body = await _whole(pieces, expected.size)
            delivery = received(body, examination)
        else:
            delivery = await self._piece_by_piece(seat, head, examination, pieces)
        up = self.book.layout.bytes(delivery.inside)
        federation.meters.bytes.labels("up").inc(up)
        traffic = federation.orders.traffic(command.task, up)
        event = Trained(command.task, f"t{command.task}", layers, head.trained.steps, metrics, traffic)
        return event, delivery, body

    async def _piece_by_piece(
        self, seat: Seat, head: pb.Head, examination: Examination, pieces: AsyncIterator[Buffer]
    ) -> Delivery:
        federation, expected = self.federation, examination.expected
        label = _label(seat.name, head.task, head.sha256)
        if seat.name in self._bringing:
            raise Busy("Another call is bringing an update.")
        self._bringing.add(seat.name)
        self._supersede(seat.name, label)
        self.book.blobs.pin(expected.name)
        reception = Reception(self.book.blobs, label, examination)
        try:
            reception.begin_at(head.offset)
            await self._take(seat, reception, pieces)
            delivery = await federation.in_hand(reception.finish)
        except BaseException as error:
            if isinstance(error, Bad):
                reception.discard()
            self.book.blobs.unpin(expected.name)
            raise
        finally:
            reception.put_aside()
            self._bringing.discard(seat.name)
        if not delivery.blob:
            self.book.blobs.unpin(expected.name)  # no layer had changed: there is no file
        return delivery

    async def _take(self, seat: Seat, reception: Reception, pieces: AsyncIterator[Buffer]) -> None:
        """All pieces, one after the other; the next one comes while a hand is at the one before."""
        federation, here = self.federation, reception.parcel.size
        taking: asyncio.Task[None] | None = None
        turn: Turn | None = None
        try:
            while here < reception.expected.size:
                turn = await federation.large_pieces.begin()
                data = await anext(pieces, None)
                if taking is not None:
                    await taking
                if data is None:
                    return
                here += len(data)
                taking = asyncio.create_task(federation.in_hand(partial(reception.take, data)))
                taking.add_done_callback(partial(_over, turn))
                del data  # while the next turn is waited for, nothing of it is in memory
                seat.seen = federation.now
            if taking is not None:
                await taking
        finally:
            if turn is not None:
                turn.end()
            if taking is not None:
                await asyncio.gather(taking, return_exceptions=True)  # until then its file is not to be touched

    def _supersede(self, learner: str, label: str) -> None:
        """One upload of each learner may be unfinished: the one before is not gone on with any more."""
        before = self._unfinished.get(learner)
        if before is not None and before != label:
            (self.book.blobs.unfinished / before).unlink(missing_ok=True)
        self._unfinished[learner] = label

    async def _unexpected(self, name: str, head: pb.Head) -> pb.Receipt:
        """An answer to a task that is not on the learner's list: it came before, or is late, or never was."""
        if head.WhichOneof("result") == "scored":
            return pb.Receipt(verdict=pb.Receipt.LATE)  # opinions are not in the journal one by one
        owner = await self.federation.in_clerk(lambda: self.book.journal.handed_to(head.task))
        if owner == name and head.task in self.book.out:
            raise Busy(f"Task {head.task} is being handed out: come again.")
        if owner != name:
            self.federation.meters.refusals.labels("unknown task").inc()
            self.federation.note(name, "refused", task=head.task, reason="unknown task")
            return pb.Receipt(verdict=pb.Receipt.REFUSED, reason=f"task {head.task} was never given to {name}")
        note = _note(name, head)
        taken = await self.federation.post(Failed(head.task, LATE), _answer(name, head), note=note).taken
        return self._receipt(taken)

    def _receipt(self, taken: Taken) -> pb.Receipt:
        self.federation.meters.updates.labels(taken.verdict).inc()
        return pb.Receipt(verdict=VERDICTS.get(taken.verdict, pb.Receipt.REFUSED), reason=taken.reason)

    # ------------------------------------------------------------------------------------------------------ portions

    def _apart(self, first: Portion | None, portions: AsyncIterator[Portion]) -> tuple[pb.Head, AsyncIterator[Buffer]]:
        """What an answer says, and its data, piece by piece; nothing of the message itself stays in memory."""
        if first is None or first.head is None:
            raise Rejected("An answer begins with its head.")
        if first.head.sequence > LARGEST:
            raise Rejected(f"An answer with the sequence {first.head.sequence}; the largest is {LARGEST}.")
        return first.head, self._pieces(first.data, portions)

    async def _pieces(self, data: Buffer, portions: AsyncIterator[Portion]) -> AsyncIterator[Buffer]:
        while True:
            given = [data]
            del data
            yield given.pop()  # whoever asked for it has it alone
            portion = await self._next(portions)
            if portion is None:
                return
            data = portion.data
            del portion

    async def _next(self, portions: AsyncIterator[Portion]) -> Portion | None:
        """The next piece of an answer, or None at its end."""
        seconds = self.federation.terms.silence
        try:
            async with asyncio.timeout(seconds):
                return await anext(portions)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            raise Busy(f"Nothing came for {seconds:g} s.") from None

    async def _hear_out(self, portions: AsyncIterator[Portion]) -> None:
        """A receipt before the caller's last word may be lost on its way (grpc issue 36066)."""
        whole = self.federation.bodies.size(self.book.layout.indices(None))
        for _ in range(whole // CHUNK + 2):
            if await self._next(portions) is None:
                return  # who goes on and on is answered without


def _over(turn: Turn, _: object) -> None:
    turn.end()


async def _nothing_more() -> AsyncIterator[Portion]:
    return
    yield


async def _whole(pieces: AsyncIterator[Buffer], size: int) -> Buffer:
    """A body of so many bytes."""
    body: Buffer = b""
    async for piece in pieces:
        body = piece if not body else b"".join((body, piece))  # most come in one: no copy
        if len(body) > size:
            raise Bad(TOO_MUCH.format(size))
    if len(body) < size:
        raise Busy(BROKEN_OFF.format(len(body), size))
    return body


def _label(learner: str, task: int, sha256: bytes) -> str:
    """Name of the file in which an update arrives."""
    return f"{learner}.{task}.{sha256[:8].hex()}"


def _note(name: str, head: pb.Head) -> Note:
    """For the audit."""
    told = {"task": head.task, "sequence": head.sequence, "bytes": head.size, "sha256": head.sha256[:32].hex()}
    return Note(name, "update", told)


def _answer(name: str, head: pb.Head) -> Answer:
    same = pb.Head()
    same.CopyFrom(head)
    same.offset = 0  # the same answer, wherever its data begin
    told = hashlib.sha256(same.SerializeToString(deterministic=True)).hexdigest()
    return Answer(name, head.task, head.sequence, told)

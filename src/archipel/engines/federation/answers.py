"""Answers: updates come in, are looked at, and are on disk before their senders hear that they are safe."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

from archipel.durability.book import LATE, REFUSED, Moved, Taken
from archipel.durability.journal import Answer
from archipel.durability.stored_models import Delivery
from archipel.engines.federation import federation_pb2 as pb
from archipel.engines.federation import speech
from archipel.engines.federation.body import Bad
from archipel.engines.federation.line import CHUNK
from archipel.engines.federation.reception import Reception, announced
from archipel.engines.federation.terms import Busy, Rejected, Seat
from archipel.types import AUC_BINS, Evaluate, Event, Failed, Progress, Train, Trained

if TYPE_CHECKING:
    from archipel.engines.federation.engine import Federation

log = logging.getLogger("archipel.federation")

VERDICTS = {"kept": pb.Receipt.KEPT, "late": pb.Receipt.LATE}


class Answers:
    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.book = federation.book
        self._arriving: set[str] = set()
        """Updates that a call is bringing now."""

    async def beat(self, name: str, pulse: pb.Pulse) -> pb.Heard:
        federation, seat = self.federation, self.federation.seats[name]
        seat.seen = federation.now
        for told in pulse.steps:
            command = seat.orders.get(told.task)
            if isinstance(command, Train) and "progress" in command.plan.reports:
                federation.post(Progress(told.task, told.steps))
        member = self.book.controller.state.members.get(name)
        gone = member is None or not member.active
        return pb.Heard(join=gone and name not in federation.operators.paused and federation.stopped is None)

    async def stored(self, name: str, parcel: pb.Parcel) -> pb.Offset:
        path = self.book.blobs.unfinished / _label(name, parcel.task, parcel.sha256)
        return pb.Offset(offset=path.stat().st_size if path.exists() else 0)

    async def answer(self, name: str, portions: AsyncIterator[pb.Portion]) -> pb.Receipt:
        began = time.monotonic()
        federation, seat = self.federation, self.federation.seats[name]
        seat.seen = federation.now
        first = await self._next(portions)
        if first is None or not first.HasField("head"):
            raise Rejected("An answer begins with its head.")
        command = seat.orders.get(first.head.task)
        if command is None:
            receipt = await self._unexpected(name, first.head)
        elif isinstance(command, Evaluate):
            receipt = federation.opinions.came(name, command, first.head)
        else:
            receipt = await self._update(seat, command, first, portions)
            federation.meters.latency.observe(time.monotonic() - began)
        await self._hear_out(portions)
        return receipt

    # ------------------------------------------------------------------------------------------------------ updates

    async def _update(
        self, seat: Seat, command: Train, first: pb.Portion, portions: AsyncIterator[pb.Portion]
    ) -> pb.Receipt:
        head, traffic = first.head, self.federation.orders.traffic(command.task)
        moved: Moved = {"train down": dict(seat.given.get(command.task, {}))}
        delivery: Delivery | None = None
        event: Event
        try:
            match head.WhichOneof("result"):
                case "trained":
                    event, delivery = await self._arrive(seat, command, first, portions)
                    names = self.book.layout.names
                    moved["train up"] = {names[at]: self.book.layout.bytes((at,)) for at in delivery.inside}
                case "failed":
                    event = Failed(command.task, f"crashed: {head.failed[:500]}", traffic)
                case _:
                    raise Bad("an answer without a result to a training task")
        except KeyError:  # the model it stands on is gone
            return pb.Receipt(verdict=pb.Receipt.LATE, reason="the task was closed in the meantime")
        except Bad as bad:
            log.warning("an update was refused", extra={"learner": seat.name, "task": head.task, "reason": str(bad)})
            self.federation.meters.refusals.labels("update").inc()
            event = Failed(command.task, f"{REFUSED}{bad}", traffic)
        try:
            taken = await self.federation.post(event, _answer(seat.name, head), delivery, moved).taken
        finally:
            self.book.pins.discard(head.sha256.hex())
        if delivery is not None:
            seat.holds |= set(delivery.digests.values())
            seat.private |= set(command.plan.private)
        return self._receipt(seat.name, head, taken)

    async def _arrive(
        self, seat: Seat, command: Train, first: pb.Portion, portions: AsyncIterator[pb.Portion]
    ) -> tuple[Trained, Delivery]:
        """From an update's announcement to its file on disk; raises `Bad` with what is wrong with it."""
        federation, head, plan = self.federation, first.head, command.plan
        state = self.book.controller.state
        metrics = speech.hear_metrics(
            head.trained,
            validation=state.members[seat.name].validation,
            classes=state.classes,
            bins=AUC_BINS if "validation scores" in plan.reports else 0,
        )
        layers = plan.sends(self.book.layout.names)
        models, bodies = self.book.course.models, federation.bodies
        digests = speech.hear_layers(head.trained.layers)
        expected = announced(bodies, models, command.model.name, layers, digests, head.size, head.sha256.hex())
        label = _label(seat.name, head.task, head.sha256)
        if label in self._arriving:
            raise Busy("Another call is bringing this update.")
        self._arriving.add(label)
        self.book.pins.add(expected.sha256)
        reception = Reception(self.book.blobs, label, expected)
        try:
            reception.begin_at(head.offset)
            data: bytes = first.data
            while True:
                await federation.in_hand(partial(reception.take, data))
                if reception.parcel.size >= expected.size or (portion := await self._next(portions)) is None:
                    break
                seat.seen, data = federation.now, portion.data
            delivery = await federation.in_hand(lambda: reception.finish(bodies, models, federation.terms.norm_bound))
        except Bad:
            reception.discard()
            raise
        finally:
            reception.put_aside()
            self._arriving.discard(label)
        up = self.book.layout.bytes(delivery.inside)
        federation.meters.bytes.labels("up").inc(up)
        traffic = federation.orders.traffic(command.task, up)
        return Trained(command.task, f"t{command.task}", layers, head.trained.steps, metrics, traffic), delivery

    async def _unexpected(self, name: str, head: pb.Head) -> pb.Receipt:
        """An answer to a task that is not on the learner's list: it came before, or is late, or never was."""
        if head.WhichOneof("result") == "scored":
            return pb.Receipt(verdict=pb.Receipt.LATE)  # opinions are not in the journal one by one
        owner = await self.federation.in_clerk(lambda: self.book.journal.handed_to(head.task))
        if owner != name:
            self.federation.meters.refusals.labels("unknown task").inc()
            self.federation.note(name, "refused", task=head.task, reason="unknown task")
            return pb.Receipt(verdict=pb.Receipt.REFUSED, reason=f"task {head.task} was never given to {name}")
        taken = await self.federation.post(Failed(head.task, LATE), _answer(name, head)).taken
        return self._receipt(name, head, taken)

    def _receipt(self, name: str, head: pb.Head, taken: Taken) -> pb.Receipt:
        self.federation.meters.updates.labels(taken.verdict).inc()
        self.federation.note(
            name,
            "update",
            task=head.task,
            sequence=head.sequence,
            bytes=head.size,
            sha256=head.sha256.hex(),
            verdict=taken.verdict,
            reason=taken.reason,
        )
        return pb.Receipt(verdict=VERDICTS.get(taken.verdict, pb.Receipt.REFUSED), reason=taken.reason)

    # ------------------------------------------------------------------------------------------------------ portions

    async def _next(self, portions: AsyncIterator[pb.Portion]) -> pb.Portion | None:
        """The next piece of an answer, or None at its end."""
        seconds = self.federation.terms.silence
        try:
            return await asyncio.wait_for(anext(portions), seconds)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            raise Rejected(f"Nothing came for {seconds:g} s.") from None

    async def _hear_out(self, portions: AsyncIterator[pb.Portion]) -> None:
        """A receipt before the caller's last word may be lost on its way (grpc issue 36066)."""
        whole = self.federation.bodies.size(self.book.layout.indices(None))
        for _ in range(whole // CHUNK + 2):
            if await self._next(portions) is None:
                return
        raise Rejected("The answer goes on and on.")


def _label(learner: str, task: int, sha256: bytes) -> str:
    """Name of the file in which an update arrives."""
    return f"{learner}.{task}.{sha256.hex()[:16]}"


def _answer(name: str, head: pb.Head) -> Answer:
    same = pb.Head()
    same.CopyFrom(head)
    same.offset = 0  # the same answer, wherever its data begin
    told = hashlib.sha256(same.SerializeToString(deterministic=True)).hexdigest()
    return Answer(name, head.task, head.sequence, told)

"""The engine of a real federation: carries the controller's commands to learners elsewhere, and brings events back.

Who runs where:
    the event loop   calls of learners, clocks and deadlines, who is there; it never reads or writes a model
    the clerk        one thread that writes the journal and tells the controller, batch after batch
    the hands        threads that write, hash, check and read models, and try them at HOME

Law: journal, then handle, then send. A learner hears that its update is safe when it is; a command leaves when the
event it follows from, and the digest of the version it carries, are on disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from archipel.data.standardise import Moments, combine
from archipel.durability.book import LATE, REFUSED, Book, Entry, Moved, Note, Taken
from archipel.durability.journal import Answer
from archipel.engines.federation import federation_pb2 as pb
from archipel.engines.federation import speech
from archipel.engines.federation.body import Bad, Bodies
from archipel.engines.federation.line import CHUNK
from archipel.engines.federation.meters import Meters
from archipel.engines.federation.reception import Reception, announced
from archipel.engines.federation.tls import Identity
from archipel.records import Scores
from archipel.state import Member
from archipel.types import (
    AUC_BINS,
    HOME,
    Cancel,
    Command,
    Evaluate,
    Evaluated,
    Event,
    Failed,
    Finish,
    Joined,
    Keep,
    Left,
    Progress,
    Result,
    Role,
    Score,
    Stop,
    Traffic,
    Train,
    Trained,
    Woke,
)

INLINE = 1 << 18
"""Bytes of layers that travel with the order itself."""
TICK = 0.1
"""Seconds between two looks at the clock."""
LAST_MODEL = -(1 << 62)
"""The task under which a learner may fetch the last version when the run is over."""

log = logging.getLogger("archipel.federation")
T = TypeVar("T")


class Rejected(Exception):
    """A call that cannot be answered as it was made; the words go to the caller."""


class Busy(Exception):
    """A call that may be made again in a moment."""


class Missing(Exception):
    """A call asks for something that is not there, or not any more."""


@dataclass(frozen=True)
class Guest:
    """A learner on the study's list."""

    group: str = ""
    role: Role = "train"


@dataclass(frozen=True)
class Terms:
    """How a federation is held together."""

    learners: Mapping[str, Guest]
    """Who may take part."""
    wait_for: int
    """Learners that have to be there before it begins."""
    heartbeat: float = 5.0
    """Seconds between two signs of life."""
    silence: float = 30.0
    """Seconds without one after which a learner is taken for gone."""
    task_deadline: float = 86_400.0
    """Seconds that a training task may take."""
    opinion_deadline: float = 60.0
    """Seconds that learners have for trying a model."""
    norm_bound: float | None = None
    """How far an update may move the model; None: as far as it likes."""


class Home(Protocol):
    """The controller's own site."""

    def answer(self, command: Evaluate) -> Result: ...

    def standardise(self, moments: Moments) -> None: ...


@dataclass
class Seat:
    """A learner, as long as the controller runs."""

    name: str
    seen: float
    orders: dict[int, Train | Evaluate] = field(default_factory=dict)
    """What it has to do."""
    queue: asyncio.Queue[tuple[str, int]] | None = None
    """What it is to be told next; None while it does not listen."""
    holds: set[str] = field(default_factory=set)
    """Digests of the layers it was given last and those it sent last."""
    given: dict[int, dict[str, int]] = field(default_factory=dict)
    """Bytes of each layer that were put on the wire for a task."""
    told_end: bool = False
    calls: int = 0
    """Models it is fetching now."""


@dataclass
class Asking:
    """An evaluation that is out."""

    command: Evaluate
    due: float
    opinions: dict[str, Result | None] = field(default_factory=dict)


@dataclass(eq=False)
class Pending:
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
    ) -> None:
        """`study`: hashes that a learner's have to equal; `layout`: hash of the layers; `features`: the shape of an
        example, where features are standardised by everybody's statistics."""
        self.book = book
        self.terms = terms
        self.study = study
        self.layout = layout
        self.features = features
        self.home = home
        self.meters = meters or Meters()
        self.models = book.course.models
        self.bodies = Bodies(book.layout)
        self.seats = {name: Seat(name, 0.0) for name in terms.learners}
        self.paused: set[str] = set(self._fact("paused", []))
        self.withdrawn: set[str] = set(self._fact("withdrawn", []))
        self.finished = asyncio.Event()
        self.score: float | None = None
        self._moments: dict[str, Moments] = {}
        self._statistics: Moments | None = None
        self._asking: dict[int, Asking] = {}
        self._desk: list[Pending] = []
        self._notes: list[Note] = []
        self._bell = asyncio.Event()
        self._clerk = ThreadPoolExecutor(1, "clerk")
        self._hands = ThreadPoolExecutor(4, "hand")
        self._at_home = ThreadPoolExecutor(1, "home")
        self._opened = time.monotonic()
        self._before = book.time
        self._errands: set[asyncio.Task[Any]] = set()
        self._enclosures: dict[tuple[str, tuple[int, ...]], pb.Enclosed] = {}
        """The last few: a round's orders enclose the same."""
        self._receiving: set[str] = set()

    @property
    def now(self) -> float:
        """Seconds that the federation has been at work: the time it was down does not count."""
        return self._before + time.monotonic() - self._opened

    @property
    def stopped(self) -> str | None:
        return self.book.course.stopped

    @property
    def everybody_knows(self) -> bool:
        """All learners that are there have heard that it is over, and are gone."""
        members = self.book.controller.state.members
        return all(
            seat.told_end and not seat.calls
            for seat in self.seats.values()
            if (m := members.get(seat.name)) and m.active
        )

    # ------------------------------------------------------------------------------------------------------ running

    async def run(self) -> None:
        """Go on until the controller stops the run."""
        settled = await self._in_clerk(lambda: self.book.journal.fact("moments"))
        if settled is not None and self.features is not None:
            self._statistics = speech.hear_moments(pb.Moments.FromString(bytes.fromhex(settled)), self.features)
            if self.home is not None:
                self.home.standardise(self._statistics)
        self._resume()
        for work in (self._pump(), self._watch(), self.finished.wait()):
            self._later(work)
        done, _ = await asyncio.wait(self._errands, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def close(self) -> None:
        for task in self._errands:
            task.cancel()
        await asyncio.gather(*self._errands, return_exceptions=True)
        notes = self._notes
        await self._in_clerk(lambda: self.book.take([], notes, self.now))
        for pool in (self._clerk, self._hands, self._at_home):
            pool.shutdown(wait=True, cancel_futures=True)
        self.book.close()

    def _resume(self) -> None:
        """Go on with what was out when the last process ended."""
        for seat in self.seats.values():
            seat.seen = self.now
        for task, out in list(self.book.out.items()):
            self._carry_out(out.command)
            if out.cancelled:
                self._post(Failed(task, "cancelled"))
        self._bell.set()

    async def _pump(self) -> None:
        """Batch after batch: onto the disk, to the controller, and out; also for those who come when it is over."""
        while True:
            await self._bell.wait()
            self._bell.clear()
            desk, self._desk = self._desk, []
            notes, self._notes = self._notes, []
            take = partial(self.book.take, [pending.entry for pending in desk], notes, self.now)
            for pending, taken in zip(desk, await self._in_clerk(take), strict=True):
                if not pending.taken.cancelled():
                    pending.taken.set_result(taken)
            commands = await self._in_clerk(self.book.handle)
            for pending in desk:
                self._close(pending.entry.event)
                if not pending.handled.cancelled():
                    pending.handled.set_result(None)
            for command in commands:
                self._carry_out(command)
            self._measure()
            if self.stopped is not None and not self.finished.is_set():
                self._end()

    def _carry_out(self, command: Command) -> None:
        match command:
            case Train(task, learner):
                self._give(self.seats[learner], command)
            case Evaluate(task, sites):
                self._asking[task] = Asking(command, self.now + self.terms.opinion_deadline)
                for site in sites:
                    if site == HOME:
                        self._later(self._try_at_home(command))
                    else:
                        self._give(self.seats[site], command)
            case Finish(task) | Cancel(task):
                for seat in self.seats.values():
                    if task in seat.orders:
                        self._say(seat, type(command).__name__.lower(), task)
                if isinstance(command, Cancel):
                    self._post(Failed(task, "cancelled"))
            case Keep(Scores(metrics=metrics)):
                evaluation = self.book.controller.evaluation
                self.score = metrics.get(evaluation.metric) if evaluation is not None else None
            case Stop(reason):
                log.info("the run is over", extra={"reason": reason})

    def _end(self) -> None:
        self.finished.set()
        for seat in self.seats.values():
            self._say(seat, "stop", LAST_MODEL)

    def _give(self, seat: Seat, command: Train | Evaluate) -> None:
        seat.orders[command.task] = command
        self._say(seat, "do", command.task)

    def _say(self, seat: Seat, what: str, task: int) -> None:
        if seat.queue is not None:
            seat.queue.put_nowait((what, task))

    def _close(self, event: Event) -> None:
        """A task was answered: it is on nobody's list any more."""
        if isinstance(event, Trained | Failed | Evaluated):
            self._asking.pop(event.task, None)
            for seat in self.seats.values():
                seat.orders.pop(event.task, None)
                seat.given.pop(event.task, None)

    # ------------------------------------------------------------------------------------------------- the clock

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            due = [self._post(event) for event in self._due()]
            for task, asking in list(self._asking.items()):
                if asking.due <= self.now:
                    due.append(self._post_opinions(task, asking))
            # what is due is said once: the next look comes when the controller has heard it
            await asyncio.gather(*(pending.handled for pending in due))

    def _due(self) -> Iterator[Event]:
        now, terms = self.now, self.terms
        for alarm in sorted(self.book.course.alarms, key=lambda alarm: alarm.due):
            if alarm.due <= now:
                yield Woke(alarm.tag)
        for task, out in list(self.book.out.items()):
            if isinstance(out.command, Train) and out.since + terms.task_deadline <= now:
                yield Failed(task, f"late: no answer in {terms.task_deadline:g} s", self._traffic(task))
        for name, member in list(self.book.controller.state.members.items()):
            seat = self.seats.get(name)
            if seat is not None and member.active and now - seat.seen > terms.silence:
                log.warning("a learner is silent", extra={"learner": name, "seconds": terms.silence})
                yield from self._gone(seat, f"lost: no sign of life in {terms.silence:g} s")
                yield Left(name)

    def _gone(self, seat: Seat, reason: str) -> Iterator[Event]:
        """What a learner that has gone will not answer."""
        for task, command in list(seat.orders.items()):
            if isinstance(command, Train):
                yield Failed(task, reason, self._traffic(task))
            else:
                self._opinion(task, seat.name, None)

    # -------------------------------------------------------------------------------------------------- the journal

    def _post(self, event: Event, answer: Answer | None = None, **beside: Any) -> Pending:
        loop = asyncio.get_running_loop()
        pending = Pending(Entry(event, answer, **beside), loop.create_future(), loop.create_future())
        self._desk.append(pending)
        self._bell.set()
        return pending

    def _note(self, who: str, what: str, **detail: object) -> None:
        """For the audit; it is written with the next events, or soon."""
        self._notes.append(Note(who, what, detail))
        self._bell.set()

    async def _in_clerk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._clerk, work)

    async def _in_hand(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._hands, work)

    def _fact(self, name: str, otherwise: Any) -> Any:
        found = self.book.journal.fact(name)
        return otherwise if found is None else json.loads(found)

    async def _settle(self, name: str, value: str) -> None:
        def write() -> None:
            with self.book.journal.write():
                self.book.journal.settle(name, value)

        await self._in_clerk(write)

    # ------------------------------------------------------------------------------------------------------ joining

    async def join(self, name: str, hello: pb.Hello) -> pb.Welcome:
        self._compare(name, hello)
        seat, guest = self.seats[name], self.terms.learners[name]
        seat.seen = self.now
        welcome = pb.Welcome(heartbeat=self.terms.heartbeat, silence=self.terms.silence)
        if self.features is not None:
            wait = await self._gather_moments(name, hello)
            if wait is not None:
                welcome.wait = wait
                return welcome
            assert self._statistics is not None
            welcome.moments.CopyFrom(speech.say_moments(self._statistics))
        joined = Joined(
            name,
            hello.examples if hello.HasField("examples") else None,
            hello.validation,
            hello.test,
            guest.group,
            guest.role,
            hello.fresh,
        )
        if name not in self.paused and self._is_news(joined):
            self._note(name, "joined", examples=joined.examples, fresh=joined.fresh)
            await self._post(joined).handled
            log.info("a learner has joined", extra={"learner": name, "fresh": joined.fresh})
        seat.holds = set()
        return welcome

    def _compare(self, name: str, hello: pb.Hello) -> None:
        if hello.protocol != speech.PROTOCOL:
            raise Rejected(
                f"This controller speaks version {speech.PROTOCOL} of the protocol, the learner version "
                f"{hello.protocol}. Install the same version of Archipel on both sides."
            )
        theirs = dict(hello.study)
        differ = sorted(key for key in self.study.keys() | theirs.keys() if self.study.get(key) != theirs.get(key))
        if differ:
            raise Rejected(
                f"The study of {name} is not the controller's: they differ in {', '.join(differ)}. "
                "Give both sides the same study file and the same code."
            )
        if hello.layout != self.layout:
            raise Rejected(
                f"The network of {name} has other layers or shapes than the controller's. Do its data have other "
                "columns or classes than the others'?"
            )

    def _is_news(self, joined: Joined) -> bool:
        member = self.book.controller.state.members.get(joined.learner)
        if member is None or not member.active or joined.fresh:
            return True
        told = (joined.examples, joined.validation, joined.test)
        return told != (member.examples, member.validation, member.test)

    async def _gather_moments(self, name: str, hello: pb.Hello) -> str | None:
        """Everybody's statistics, once enough have told theirs; what is waited for, until then."""
        assert self.features is not None
        if self._statistics is not None:
            return None
        if not hello.HasField("moments"):
            raise Rejected(
                "This study standardises features by everybody's statistics, and the learner tells none. "
                "Does its operator refuse the moments?"
            )
        try:
            self._moments[name] = speech.hear_moments(hello.moments, self.features)
        except Bad as bad:
            raise Rejected(f"The moments of {name}: {bad}.") from None
        training = [n for n in sorted(self._moments) if self.terms.learners[n].role == "train"]
        if len(training) < self.terms.wait_for:
            return f"{len(training)} of {self.terms.wait_for} learners have told the moments of their features"
        together = combine(self._moments[n] for n in training)
        self._note("controller", "combined moments", learners=training, count=together.count)
        await self._settle("moments", speech.say_moments(together).SerializeToString().hex())
        if self.home is not None:
            self.home.standardise(together)
        self._statistics = together
        return None

    # ---------------------------------------------------------------------------------------------------- listening

    async def listen(self, name: str) -> AsyncIterator[pb.Order]:
        seat = self.seats[name]
        if seat.queue is not None:
            seat.queue.put_nowait(("leave", 0))  # it has called again: the call before is dead
        queue: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        seat.queue = queue
        seat.seen = self.now
        seat.holds = set()
        for task in sorted(seat.orders):
            queue.put_nowait(("do", task))
            out = self.book.out.get(task)
            if out is not None and out.finishing:
                queue.put_nowait(("finish", task))
        if self.finished.is_set():
            queue.put_nowait(("stop", LAST_MODEL))
        try:
            while True:
                try:
                    what, task = await asyncio.wait_for(queue.get(), self.terms.heartbeat)
                except TimeoutError:
                    yield pb.Order(ping=pb.Ping())
                    continue
                if what == "leave":
                    return
                try:
                    order = await self._order(seat, what, task)
                except KeyError:  # its model is not there any more, so nobody waits for it
                    order = None
                if order is not None:
                    yield order
                if what == "stop":
                    seat.told_end = True
                    return
        finally:
            if seat.queue is queue:
                seat.queue = None

    async def _order(self, seat: Seat, what: str, task: int) -> pb.Order | None:
        if what == "stop":
            name = self.book.controller.state.model.name
            model = speech.say_layers(self.book.layout.names, self.models.digests(name))
            return pb.Order(stop=pb.Stop(reason=self.stopped or "", task=LAST_MODEL, model=model))
        if what == "cancel":
            return pb.Order(cancel=pb.Task(task=task))
        command = seat.orders.get(task)
        if command is None:
            return None  # it was answered, or given up, in the meantime
        if what == "finish":
            return pb.Order(finish=pb.Task(task=task))
        digests = self.models.digests(command.model.name)
        model = speech.say_layers(self.book.layout.names, digests)
        enclosed = await self._enclosed(seat, command, digests)
        if isinstance(command, Train):
            return pb.Order(
                train=pb.Train(task=task, model=model, plan=speech.say_plan(command.plan), enclosed=enclosed)
            )
        assert isinstance(command.probe, Score)
        probe = command.probe
        return pb.Order(
            evaluate=pb.Evaluate(task=task, model=model, part=probe.part, bins=probe.bins, enclosed=enclosed)
        )

    async def _enclosed(self, seat: Seat, command: Train | Evaluate, digests: Sequence[str]) -> pb.Enclosed | None:
        """The layers that the learner is not known to have, if they are few bytes."""
        private = set(command.plan.private) if isinstance(command, Train) else set()
        names = self.book.layout.names
        layers = tuple(
            place for place, digest in enumerate(digests) if digest not in seat.holds and names[place] not in private
        )
        if isinstance(command, Train):
            seat.holds = set(digests)
        if not layers or self.book.layout.bytes(layers) > INLINE:
            return None
        key = (command.model.name, layers)
        if key not in self._enclosures:
            while len(self._enclosures) > 8:
                del self._enclosures[next(iter(self._enclosures))]
            body = await self._in_hand(lambda: b"".join(self._body(command.model.name, layers, 0)))
            self._enclosures[key] = pb.Enclosed(layers=[names[place] for place in layers], body=body)
        self._moved_down(seat, command.task, layers)
        return self._enclosures[key]

    # --------------------------------------------------------------------------------------------------- models down

    def _body(self, model: str, layers: Sequence[int], offset: int) -> Iterator[bytes | memoryview]:
        header = self.bodies.header(layers)
        if offset < len(header):
            yield header[offset:]
        yield from self.models.numbers(model, layers, max(0, offset - len(header)), CHUNK)

    async def fetch(self, name: str, want: pb.Want) -> AsyncIterator[pb.Piece]:
        seat = self.seats[name]
        layout = self.book.layout
        unknown = [layer for layer in want.layers if not layout.knows(layer)]
        if unknown or len(set(want.layers)) != len(want.layers):
            raise Rejected(f"There is no layer {unknown[0]!r}." if unknown else "A layer is wanted twice.")
        command = seat.orders.get(want.task)
        over = want.task == LAST_MODEL and self.finished.is_set()
        if command is None and not over:
            raise Missing(f"Task {want.task} is not one of {name}'s, or not any more.")
        model = self.book.controller.state.model.name if command is None else command.model.name
        layers = layout.indices(want.layers)
        if command is not None and want.offset == 0:
            self._moved_down(seat, want.task, layers)
        body = self._body(model, layers, want.offset)
        seat.calls += 1
        try:
            while (piece := await self._in_hand(lambda: next(body, None))) is not None:
                seat.seen = self.now
                yield pb.Piece(data=bytes(piece))
        except KeyError:
            raise Missing(f"Task {want.task} was closed in the meantime.") from None
        finally:
            seat.calls -= 1

    def _moved_down(self, seat: Seat, task: int, layers: Sequence[int]) -> None:
        given = seat.given.setdefault(task, {})
        for layer in layers:
            name = self.book.layout.names[layer]
            given[name] = given.get(name, 0) + self.book.layout.bytes((layer,))
        self.meters.bytes.labels("down").inc(self.book.layout.bytes(layers))
        self._note("controller", "sent", to=seat.name, task=task, layers=len(layers))

    def _down(self, task: int) -> list[dict[str, int]]:
        return [seat.given[task] for seat in self.seats.values() if seat.given.get(task)]

    def _traffic(self, task: int, up: int = 0) -> Traffic:
        given = self._down(task)
        return Traffic(sum(sum(layers.values()) for layers in given), up, max(1, len(given)))

    # ------------------------------------------------------------------------------------------------------ answers

    async def beat(self, name: str, pulse: pb.Pulse) -> pb.Heard:
        seat = self.seats[name]
        seat.seen = self.now
        for told in pulse.steps:
            command = seat.orders.get(told.task)
            out = self.book.out.get(told.task)
            if isinstance(command, Train) and "progress" in command.plan.reports and out is not None:
                self._post(Progress(told.task, told.steps))
        member = self.book.controller.state.members.get(name)
        gone = member is None or not member.active
        return pb.Heard(join=gone and name not in self.paused and self.stopped is None)

    async def stored(self, name: str, parcel: pb.Parcel) -> pb.Offset:
        path = self.book.blobs.unfinished / _label(name, parcel.task, parcel.sha256.hex())
        return pb.Offset(offset=path.stat().st_size if path.exists() else 0)

    async def answer(self, name: str, portions: AsyncIterator[pb.Portion]) -> pb.Receipt:
        began = time.monotonic()
        seat = self.seats[name]
        seat.seen = self.now
        first = await _next(portions, self.terms.silence)
        if first is None or not first.HasField("head"):
            raise Rejected("An answer begins with its head.")
        head = first.head
        command = seat.orders.get(head.task)
        if command is None:
            receipt = await self._too_late(name, head)
        elif isinstance(command, Evaluate):
            receipt = self._opinion_came(name, command, head)
        else:
            receipt = await self._update_came(seat, command, head, first.data, portions)
        self.meters.latency.observe(time.monotonic() - began)
        await self._hear_out(portions)
        return receipt

    async def _hear_out(self, portions: AsyncIterator[pb.Portion]) -> None:
        """A receipt before the caller's last word may be lost on its way (grpc issue 36066)."""
        for _ in range(self.bodies.size(self.book.layout.indices(None)) // CHUNK + 2):
            if await _next(portions, self.terms.silence) is None:
                return
        raise Rejected("The answer goes on and on.")

    async def _update_came(
        self, seat: Seat, command: Train, head: pb.Head, data: bytes, portions: AsyncIterator[pb.Portion]
    ) -> pb.Receipt:
        kind = head.WhichOneof("result")
        answer = Answer(seat.name, head.task, head.sequence, _print(head))
        moved: Moved = {"train down": dict(seat.given.get(head.task, {}))}
        if kind == "failed":
            event: Event = Failed(head.task, f"crashed: {head.failed[:500]}", self._traffic(head.task))
            return self._receipt(seat, head, await self._post(event, answer, moved=moved).taken)
        label = _label(seat.name, head.task, head.sha256.hex())
        if label in self._receiving:
            raise Busy("Another call is bringing this update.")
        self._receiving.add(label)
        try:
            if kind != "trained":
                raise Bad("an answer without a result to a training task")
            event, delivery = await self._receive(seat, command, head, label, data, portions)
        except KeyError:
            return pb.Receipt(verdict=pb.Receipt.LATE, reason="the task was closed in the meantime")
        except Bad as bad:
            log.warning("an update was refused", extra={"learner": seat.name, "task": head.task, "reason": str(bad)})
            self.meters.refusals.labels("update").inc()
            event = Failed(head.task, f"{REFUSED}{bad}", self._traffic(head.task))
            return self._receipt(seat, head, await self._post(event, answer, moved=moved).taken)
        finally:
            self._receiving.discard(label)
        names = self.book.layout.names
        moved["train up"] = {names[layer]: self.book.layout.bytes((layer,)) for layer in delivery.inside}
        try:
            taken = await self._post(event, answer, delivery=delivery, moved=moved).taken
        finally:
            self.book.pins.discard(head.sha256.hex())
        seat.holds |= set(delivery.digests.values())
        return self._receipt(seat, head, taken)

    async def _receive(
        self, seat: Seat, command: Train, head: pb.Head, label: str, data: bytes, portions: AsyncIterator[pb.Portion]
    ) -> tuple[Trained, Any]:
        """Everything between an update's announcement and its journal entry."""
        told = head.trained
        plan = command.plan
        member: Member = self.book.controller.state.members[seat.name]
        bins = AUC_BINS if "validation scores" in plan.reports else 0
        metrics = speech.hear_metrics(
            told, validation=member.validation, classes=self.book.controller.state.classes, bins=bins
        )
        expected = announced(
            self.bodies,
            self.models,
            command.model.name,
            plan.sends(self.book.layout.names),
            speech.hear_layers(told.layers),
            head.size,
            head.sha256.hex(),
        )
        reception = Reception(self.book.blobs, label, expected)
        self.book.pins.add(expected.sha256)
        try:
            reception.begin_at(head.offset)
            await self._in_hand(lambda: reception.take(data))
            while reception.parcel.size < expected.size:
                portion = await _next(portions, self.terms.silence)
                if portion is None:
                    break
                seat.seen = self.now
                await self._in_hand(partial(reception.take, portion.data))
            delivery = await self._in_hand(lambda: reception.finish(self.bodies, self.models, self.terms.norm_bound))
        except Bad:
            reception.discard()
            raise
        finally:
            reception.put_aside()
        up = self.book.layout.bytes(delivery.inside)
        self.meters.bytes.labels("up").inc(up)
        event = Trained(
            head.task,
            f"t{head.task}",
            plan.sends(self.book.layout.names),
            told.steps,
            metrics,
            self._traffic(head.task, up),
        )
        return event, delivery

    def _receipt(self, seat: Seat, head: pb.Head, taken: Taken) -> pb.Receipt:
        self.meters.updates.labels(taken.verdict).inc()
        self._note(
            seat.name,
            "update",
            task=head.task,
            sequence=head.sequence,
            bytes=head.size,
            verdict=taken.verdict,
            sha256=head.sha256.hex(),
            reason=taken.reason,
        )
        verdict = {"kept": pb.Receipt.KEPT, "late": pb.Receipt.LATE}.get(taken.verdict, pb.Receipt.REFUSED)
        return pb.Receipt(verdict=verdict, reason=taken.reason)

    async def _too_late(self, name: str, head: pb.Head) -> pb.Receipt:
        """An answer to a task that is not on the learner's list: it came before, or is late, or never was."""
        if head.WhichOneof("result") == "scored":
            return pb.Receipt(verdict=pb.Receipt.LATE)  # opinions are not in the journal one by one
        answer = Answer(name, head.task, head.sequence, _print(head))
        owner = await self._in_clerk(lambda: self.book.journal.handed_to(head.task))
        if owner != name:
            self.meters.refusals.labels("unknown task").inc()
            self._note(name, "refused", task=head.task, reason="unknown task")
            return pb.Receipt(verdict=pb.Receipt.REFUSED, reason=f"task {head.task} was never given to {name}")
        return self._receipt(self.seats[name], head, await self._post(Failed(head.task, LATE), answer).taken)

    # ----------------------------------------------------------------------------------------------------- opinions

    def _opinion_came(self, name: str, command: Evaluate, head: pb.Head) -> pb.Receipt:
        member = self.book.controller.state.members[name]
        assert isinstance(command.probe, Score)
        try:
            if head.WhichOneof("result") == "failed":
                self._opinion(command.task, name, None)
                self._note(name, "no opinion", task=command.task, reason=head.failed[:500])
                return pb.Receipt(verdict=pb.Receipt.KEPT)
            if head.WhichOneof("result") != "scored":
                raise Bad("an update in answer to a question")
            scored = speech.hear_scored(
                head.scored,
                count=member.validation if command.probe.part == "validation" else member.test,
                classes=self.book.controller.state.classes,
                bins=command.probe.bins,
            )
        except Bad as bad:
            self.meters.refusals.labels("opinion").inc()
            self._note(name, "refused", task=command.task, reason=str(bad))
            log.warning("an opinion was refused", extra={"learner": name, "task": command.task, "reason": str(bad)})
            self._opinion(command.task, name, None)
            return pb.Receipt(verdict=pb.Receipt.REFUSED, reason=str(bad))
        self._opinion(command.task, name, scored)
        self._note(name, "opinion", task=command.task)
        return pb.Receipt(verdict=pb.Receipt.KEPT)

    def _opinion(self, task: int, site: str, result: Result | None) -> None:
        """Opinions are safe when all are in: until then a crash costs asking again."""
        asking = self._asking.get(task)
        if asking is None or site in asking.opinions:
            return
        asking.opinions[site] = result
        if site != HOME:
            self.seats[site].orders.pop(task, None)
        if len(asking.opinions) == len(asking.command.sites):
            self._post_opinions(task, asking)

    def _post_opinions(self, task: int, asking: Asking) -> Pending:
        results = tuple(asking.opinions.get(site) for site in asking.command.sites)
        kind = "score down" if asking.command.record else "evaluate down"
        moved: Moved = {kind: {}}
        for layers in self._down(task):
            for layer, amount in layers.items():
                moved[kind][layer] = moved[kind].get(layer, 0) + amount
        self._asking.pop(task, None)
        return self._post(Evaluated(task, results, self._traffic(task)), moved=moved)

    async def _try_at_home(self, command: Evaluate) -> None:
        result: Result | None = None
        home = self.home
        if home is not None:
            result = await asyncio.get_running_loop().run_in_executor(self._at_home, lambda: home.answer(command))
        self._opinion(command.task, HOME, result)

    def _later(self, work: Any) -> None:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    # ---------------------------------------------------------------------------------------------------- operators

    def objection(self, who: Identity) -> str | None:
        """Why this caller may not come in, or None."""
        if who.kind == "operator":
            return None
        if who.name not in self.terms.learners:
            return f"{who.name} is not on the study's list of learners."
        if who.name in self.withdrawn:
            return f"{who.name} has been withdrawn from this federation."
        return None

    async def steer(self, who: Identity, wish: pb.Wish) -> pb.Done:
        name = wish.learner or who.name
        if who.kind != "operator" and name != who.name:
            raise Rejected(f"{who.name} may pause, resume and withdraw itself, not {name}.")
        if name not in self.seats:
            raise Rejected(f"There is no learner {name}; the study lists {', '.join(self.seats)}.")
        match wish.action:
            case "pause":
                self.paused.add(name)
                events: list[Event] = [Left(name)]
            case "resume":
                self.paused.discard(name)
                events = []  # its next sign of life makes it join again
            case "withdraw":
                self.withdrawn.add(name)
                self.paused.discard(name)
                events = [*self._gone(self.seats[name], "withdrawn"), Left(name)]
                self._say(self.seats[name], "leave", 0)
            case _:
                raise Rejected(f"There is no action {wish.action!r}; there are pause, resume and withdraw.")
        self._note(f"{who.kind} {who.name}", wish.action, learner=name)
        await self._settle("paused", json.dumps(sorted(self.paused)))
        await self._settle("withdrawn", json.dumps(sorted(self.withdrawn)))
        for event in events:
            self._post(event)
        log.info("an operator spoke", extra={"action": wish.action, "learner": name, "by": who.name})
        return pb.Done(told=f"{name}: {wish.action} at version {self.book.controller.state.version}")

    def status(self) -> dict[str, Any]:
        state = self.book.controller.state
        return {
            "version": state.version,
            "rounds": state.rounds,
            "seconds": round(self.now, 1),
            "score": self.score,
            "metric": self.book.controller.evaluation.metric if self.book.controller.evaluation else None,
            "stopped": self.stopped,
            "waiting for": None if state.begun else f"{self.book.controller.learners} learners",
            "updates waiting": len(state.queue),
            "learners": [self._status_of(name) for name in self.seats],
        }

    def _status_of(self, name: str) -> dict[str, Any]:
        seat, member = self.seats[name], self.book.controller.state.members.get(name)
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
            "training": [task for task, command in seat.orders.items() if isinstance(command, Train)],
            "evaluating": sum(isinstance(command, Evaluate) for command in seat.orders.values()),
            "seen": None if member is None else round(self.now - seat.seen, 1),
        }

    def _measure(self) -> None:
        state = self.book.controller.state
        self.meters.version.set(state.version)
        self.meters.learners.set(sum(member.active for member in state.members.values()))
        self.meters.tasks.labels("train").set(len(state.out))
        self.meters.tasks.labels("evaluate").set(len(state.inquiries))
        if self.score is not None:
            self.meters.score.set(self.score)


def _label(learner: str, task: int, sha256: str) -> str:
    return f"{learner}.{task}.{sha256[:16]}"


def _print(head: pb.Head) -> str:
    """What an answer says, wherever its data begin."""
    same = pb.Head()
    same.CopyFrom(head)
    same.offset = 0
    return hashlib.sha256(same.SerializeToString(deterministic=True)).hexdigest()


async def _next(portions: AsyncIterator[pb.Portion], seconds: float) -> pb.Portion | None:
    """The next piece of an answer, or None at its end; silence is an end as well."""
    try:
        return await asyncio.wait_for(anext(portions), seconds)
    except StopAsyncIteration:
        return None
    except TimeoutError:
        raise Rejected(f"Nothing came for {seconds:g} s.") from None

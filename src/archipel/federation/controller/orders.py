"""Messages to learners: orders through their open Listen call, and the models that they fetch.

Only the layers that a learner lacks are sent: small ones inside the order, large ones are fetched.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

from archipel.core.types import AddUp, Evaluate, Score, Train
from archipel.federation.controller.event_log import EventLog
from archipel.federation.controller.limiter import Backlog, Limiter
from archipel.federation.controller.outbox import LAST_MODEL, Outbox
from archipel.federation.controller.secure_rounds import SecureRounds
from archipel.federation.controller.sessions import FETCHED, LearnerSession, Notice
from archipel.federation.controller.sum_totals import AddScores
from archipel.federation.controller.terms import Missing, Rejected
from archipel.federation.controller.thread_pools import ThreadPools
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.federation.wire.body import Bodies
from archipel.federation.wire.channel import CHUNK
from archipel.federation.wire.pieces import encode_piece

ENCLOSED = 1 << 18
"""Bytes of layers that travel inside the order."""
AT_A_TIME = 32
"""Orders that are sent at once: a thousand would take much memory, and bring a thousand answers at once."""
LONGEST = 1.0
"""Seconds after which an order no longer counts among them: a learner that does not read must not delay others."""
REMEMBERED = 8
"""Enclosed models that are kept: a round's orders share one."""
NO_MORE: tuple[int, bytes | None] = (0, None)
PING = pb.Order(ping=pb.Ping()).SerializeToString()


class Orders:
    """Answer the calls Listen and Fetch."""

    def __init__(
        self,
        log: EventLog,
        sessions: Mapping[str, LearnerSession],
        outbox: Outbox,
        workers: ThreadPools,
        bodies: Bodies,
        sums: SecureRounds,
        *,
        backlog: Backlog,
        large_pieces: Limiter,
        heartbeat: float,
    ) -> None:
        self._log = log
        self._sessions = sessions
        self._outbox = outbox
        self._workers = workers
        self._bodies = bodies
        self._sums = sums
        self._backlog = backlog
        self._large_pieces = large_pieces
        self._heartbeat = heartbeat
        self._layout = bodies.layout
        self._models = log.durable.models
        self._enclosed: dict[tuple[str, tuple[int, ...]], pb.Enclosed] = {}
        """The bodies sent last, by model and layers."""
        self._sending = Limiter(AT_A_TIME, LONGEST)

    # ------------------------------------------------------------------------------------------------------ listening

    async def listen(self, name: str) -> AsyncGenerator[bytes]:
        """Yield a learner's open tasks, then each notice as it comes, and a ping after a heartbeat without any."""
        session = self._sessions[name]
        queue = self._open(session)
        said_stop = False
        try:
            while True:
                try:
                    async with asyncio.timeout(self._heartbeat):
                        what, task = await queue.get()
                except TimeoutError:
                    yield PING
                    continue
                if what == "leave":
                    return
                async with self._sending.slot(name):
                    await self._backlog.drained()
                    order = await self._order(session, what, task)
                    # set before sending: a learner may hang up as soon as it has read it
                    said_stop = said_stop or what == "stop"
                    if order is not None:
                        yield order
                    del order  # it may hold a model: keep none while waiting for the next notice
        finally:
            session.told_end = session.told_end or said_stop
            if session.queue is queue:
                session.queue = None

    def _open(self, session: LearnerSession) -> asyncio.Queue[tuple[Notice, int]]:
        """End the learner's earlier call, and queue everything that is open."""
        session.tell("leave", 0)
        queue: asyncio.Queue[tuple[Notice, int]] = asyncio.Queue()
        session.queue = queue
        session.told_end = False  # a learner that calls again needs all notices again
        session.seen = self._log.now
        session.holds = set()
        for task in sorted(session.orders):
            session.tell("do", task)
            out = self._log.durable.out.get(task)
            if out is not None and out.finishing:
                session.tell("finish", task)
        if self._log.finished.is_set():
            session.tell("stop", LAST_MODEL)
        return queue

    async def _order(self, session: LearnerSession, what: Notice, task: int) -> bytes | None:
        """Return the message for a notice; None if the task was closed in the meantime."""
        if what == "stop":
            digests = self._models.digests(self._log.state.model.name)
            model = messages.encode_layers(self._layout.names, digests)
            stop = pb.Stop(reason=self._log.stopped or "", task=LAST_MODEL, model=model)
            return pb.Order(stop=stop).SerializeToString()
        if what == "cancel":
            return pb.Order(cancel=pb.Task(task=task)).SerializeToString()
        command = session.orders.get(task)
        if command is None:
            return None
        if what == "finish":
            return pb.Order(finish=pb.Task(task=task)).SerializeToString()
        if isinstance(command, AddUp | AddScores):
            step = self._sums.order(session.name, command)
            return None if step is None else step.SerializeToString()
        try:
            return await self._task(session, command)
        except KeyError:  # the model was dropped, so nobody waits for an answer
            return None

    async def _task(self, session: LearnerSession, command: Train | Evaluate) -> bytes:
        """Return the message of a task, with the layers that the learner lacks if they are few bytes."""
        digests, names = self._models.digests(command.model.name), self._layout.names
        lacking = tuple(
            place
            for place, digest in enumerate(digests)
            if digest not in session.holds and names[place] not in session.private
        )
        trains_on_it = session.next_training(command) is not None
        if trains_on_it:
            session.holds = set(digests)
        order = pb.Order()
        if isinstance(command, Train):
            order.train.task = command.task
            order.train.plan.CopyFrom(messages.encode_plan(command.plan, command.key))
            await self._add_shift(session, command, order.train)
        else:
            assert isinstance(command.probe, Score)
            order.evaluate.task = command.task
            order.evaluate.part, order.evaluate.bins = command.probe.part, command.probe.bins
            order.evaluate.keep = trains_on_it
        about = order.train if isinstance(command, Train) else order.evaluate
        about.model.extend(messages.encode_layers(names, digests))
        if lacking and self._layout.bytes(lacking) <= ENCLOSED:
            about.enclosed.CopyFrom(await self._enclose(command.model.name, lacking))
            self._outbox.count(session, command, lacking)
        return order.SerializeToString()

    async def _add_shift(self, session: LearnerSession, command: Train, order: pb.Train) -> None:
        """Add the layers of the vector that a task adds to gradients, with their numbers if they are few bytes."""
        plan = command.plan
        if plan.shift is None:
            return
        layers = self._layout.shared_parameters(plan.trains, plan.private)
        digests = self._models.digests(plan.shift)
        names = [self._layout.names[place] for place in layers]
        order.shift.extend(messages.encode_layers(names, [digests[place] for place in layers]))
        if self._layout.bytes(layers) <= ENCLOSED:
            order.enclosed_shift.CopyFrom(await self._enclose(plan.shift, layers))
            self._outbox.count(session, command, layers)

    async def _enclose(self, model: str, layers: tuple[int, ...]) -> pb.Enclosed:
        key = (model, layers)
        if key not in self._enclosed:
            body = await self._workers.run(lambda: b"".join(self._body(model, layers, 0)))
            while len(self._enclosed) >= REMEMBERED:
                del self._enclosed[next(iter(self._enclosed))]
            self._enclosed[key] = pb.Enclosed(layers=[self._layout.names[place] for place in layers], body=body)
        return self._enclosed[key]

    # --------------------------------------------------------------------------------------------------------- models

    async def fetch(self, name: str, want: pb.Want) -> AsyncGenerator[bytes]:
        """Yield layers of the model of one of the learner's own tasks, or of the last model, as messages."""
        session = self._sessions[name]
        unknown = [layer for layer in want.layers if not self._layout.knows(layer)]
        if unknown or len(set(want.layers)) != len(want.layers):
            raise Rejected(f"There is no layer {unknown[0][:100]!r}." if unknown else "A layer is requested twice.")
        command = session.orders.get(want.task)
        over = want.task == LAST_MODEL and self._log.finished.is_set()
        if isinstance(command, AddUp | AddScores) or (command is None and not over):
            raise Missing(f"Task {want.task} is not a task of {name}, or is closed.")
        model = self._log.state.model.name if command is None else command.model.name
        if want.shift:
            model = command.plan.shift if isinstance(command, Train) and command.plan.shift is not None else ""
            if not model:
                raise Rejected(f"Task {want.task} adds no vector to gradients.")
        layers = self._layout.indices(want.layers)
        pieces = ((len(part), encode_piece(part)) for part in self._body(model, layers, want.offset))
        whole = self._bodies.size(self._layout.indices(None))
        session.fetching += 1
        try:
            async with session.fetches:
                while True:
                    async with self._large_pieces.slot(name):
                        if self._models.in_memory(model):  # nothing is read from disk
                            size, piece = next(pieces, NO_MORE)
                        else:
                            size, piece = await self._workers.run(lambda: next(pieces, NO_MORE))
                        if piece is None:
                            break
                        if not session.count_fetched(want.task, size, whole):
                            raise Rejected(f"{name} has fetched task {want.task}'s model {FETCHED} times.")
                        session.seen = self._log.now
                        yield piece
                        del piece  # keep none in memory while waiting for a slot
        except KeyError:
            raise Missing(f"Task {want.task} was closed in the meantime.") from None
        finally:
            session.fetching -= 1
        if command is not None:  # not reached if the learner hangs up before the end
            self._outbox.count(session, command, layers)

    def _body(self, model: str, layers: Sequence[int], offset: int) -> Iterator[bytes | memoryview]:
        header = self._bodies.header(layers)
        if offset < len(header):
            yield header[offset:]
        yield from self._models.numbers(model, layers, max(0, offset - len(header)), CHUNK)

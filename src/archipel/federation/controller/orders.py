"""Orders: what learners are told to do, and the models that go with it.

A model goes down layer by layer, and only the layers that a learner does not have: few bytes travel with the order
itself, many are fetched.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TYPE_CHECKING

from archipel.core.types import Evaluate, Score, Traffic, Train
from archipel.federation.controller.limiter import Turns
from archipel.federation.controller.terms import Missing, Rejected, Seat
from archipel.federation.wire import codec as speech
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.channel import CHUNK
from archipel.federation.wire.pieces import say_piece

if TYPE_CHECKING:
    from archipel.federation.controller.engine import Federation

ENCLOSED = 1 << 18
"""Bytes of layers that travel with the order itself."""
LAST_MODEL = -(1 << 62)
"""The task under which a learner may fetch the last version when the run is over."""
AT_A_TIME = 32
"""Orders on their way out: a thousand at once would take as much memory, and bring a thousand answers at once."""
LONGEST = 1.0
"""Seconds that an order counts among them: a learner that does not read must not hold up the others."""
LONGEST_REST = 300.0
"""Seconds that a learner whose tasks fail again and again is left alone."""
REMEMBERED = 8
"""Ends of orders that are kept: a round's orders have the same one."""
PING = pb.Order(ping=pb.Ping()).SerializeToString()


class Orders:
    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.layout = federation.book.layout
        self.models = federation.book.course.models
        self._holders: dict[int, list[Seat]] = {}
        """Who has which task on its list."""
        self._ends: dict[tuple[type, str, tuple[int, ...]], bytes] = {}
        """What all who get the same layers of the same model are told alike, as it travels."""
        self._turns = Turns(AT_A_TIME, LONGEST)

    # ------------------------------------------------------------------------------------------------- what is out

    def give(self, learner: str, command: Train | Evaluate) -> None:
        seat = self.federation.seats[learner]
        seat.orders[command.task] = command
        self._holders.setdefault(command.task, []).append(seat)
        self._do(seat, command)

    def _do(self, seat: Seat, command: Train | Evaluate) -> None:
        """Tell a learner of a task, now or when it has rested."""
        rest = seat.rests_until - self.federation.now
        if isinstance(command, Train) and rest > 0:
            asyncio.get_running_loop().call_later(rest, _tell, seat, "do", command.task)
        else:
            _tell(seat, "do", command.task)

    def came_to(self, seat: Seat, something: bool) -> None:
        """A training task of a learner has brought an update, or nothing."""
        seat.failures = 0 if something else seat.failures + 1
        if seat.failures > 1:  # once can happen to anybody
            seat.rests_until = self.federation.now + min(LONGEST_REST, 0.5 * 2 ** min(seat.failures, 20))

    def say(self, task: int, what: str) -> None:
        """Tell those who are at a task to finish it, or that nobody waits for it any more."""
        for seat in self._holders.get(task, ()):
            _tell(seat, what, task)

    def forget(self, task: int) -> None:
        for seat in self._holders.pop(task, ()):
            seat.orders.pop(task, None)
            seat.given.pop(task, None)

    def say_goodbye(self) -> None:
        for seat in self.federation.seats.values():
            _tell(seat, "stop", LAST_MODEL)

    def hang_up(self, learner: str) -> None:
        _tell(self.federation.seats[learner], "leave", 0)

    # --------------------------------------------------------------------------------------------------- listening

    async def listen(self, name: str) -> AsyncGenerator[bytes]:
        """All that is out for a learner, and then whatever comes, each as it travels; nothing for a heartbeat is a sign
        of life."""
        federation, seat = self.federation, self.federation.seats[name]
        _tell(seat, "leave", 0)  # it has called again: the call before is dead
        queue: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        seat.queue = queue
        seat.told_end = False  # whoever calls again wants to hear it again
        seat.seen = federation.now
        seat.holds = set()
        for task in sorted(seat.orders):
            self._do(seat, seat.orders[task])
            out = federation.book.out.get(task)
            if out is not None and out.finishing:
                _tell(seat, "finish", task)
        if federation.finished.is_set():
            _tell(seat, "stop", LAST_MODEL)
        said_stop = False
        try:
            while True:
                try:
                    async with asyncio.timeout(federation.terms.heartbeat):
                        what, task = await queue.get()
                except TimeoutError:
                    yield PING
                    continue
                if what == "leave":
                    return
                async with self._turns.one():
                    await federation.answers.calm()
                    order = await self._order(seat, what, task)
                    said_stop = said_stop or what == "stop"  # before: it may hang up as soon as it has heard
                    if order is not None:
                        yield order
                    del order  # it may hold a model: while the next one is waited for, nothing of it is in memory
        finally:
            seat.told_end = seat.told_end or said_stop  # it has hung up: it has what it wanted
            if seat.queue is queue:
                seat.queue = None

    async def _order(self, seat: Seat, what: str, task: int) -> bytes | None:
        """What a learner is told; None if it was answered, or given up, in the meantime."""
        if what == "stop":
            digests = self.models.digests(self.federation.book.controller.state.model.name)
            model = speech.say_layers(self.layout.names, digests)
            stop = pb.Stop(reason=self.federation.stopped or "", task=LAST_MODEL, model=model)
            return pb.Order(stop=stop).SerializeToString()
        if what == "cancel":
            return pb.Order(cancel=pb.Task(task=task)).SerializeToString()
        command = seat.orders.get(task)
        if command is None:
            return None
        if what == "finish":
            return pb.Order(finish=pb.Task(task=task)).SerializeToString()
        try:
            end = await self._end(seat, command)
        except KeyError:  # the model is not there any more, so nobody waits for an answer
            return None
        if isinstance(command, Train):
            order = pb.Order(train=pb.Train(task=task, plan=speech.say_plan(command.plan)))
        else:
            assert isinstance(command.probe, Score)
            keep = _next_training(seat, command) is not None
            probe = command.probe
            order = pb.Order(evaluate=pb.Evaluate(task=task, part=probe.part, bins=probe.bins, keep=keep))
        return order.SerializeToString() + end  # whoever reads the one behind the other reads one message

    async def _end(self, seat: Seat, command: Train | Evaluate) -> bytes:
        """The model's layers, and with them those that the learner is not known to have, if they are few bytes."""
        digests, names = self.models.digests(command.model.name), self.layout.names
        layers = tuple(
            place
            for place, digest in enumerate(digests)
            if digest not in seat.holds and names[place] not in seat.private
        )
        if _next_training(seat, command) is not None:
            seat.holds = set(digests)
        if self.layout.bytes(layers) > ENCLOSED:
            layers = ()
        key = (type(command), command.model.name, layers)
        if key not in self._ends:
            enclosed = None
            if layers:
                body = await self.federation.in_hand(lambda: b"".join(self._body(command.model.name, layers, 0)))
                enclosed = pb.Enclosed(layers=[names[place] for place in layers], body=body)
            model = speech.say_layers(names, digests)
            if isinstance(command, Train):
                order = pb.Order(train=pb.Train(model=model, enclosed=enclosed))
            else:
                order = pb.Order(evaluate=pb.Evaluate(model=model, enclosed=enclosed))
            while len(self._ends) >= REMEMBERED:
                del self._ends[next(iter(self._ends))]
            self._ends[key] = order.SerializeToString()
        end = self._ends[key]
        if layers:
            self._sent(seat, command, layers)
        return end

    # ------------------------------------------------------------------------------------------------------ models

    def _body(self, model: str, layers: Sequence[int], offset: int) -> Iterator[bytes | memoryview]:
        header = self.federation.bodies.header(layers)
        if offset < len(header):
            yield header[offset:]
        yield from self.models.numbers(model, layers, max(0, offset - len(header)), CHUNK)

    async def fetch(self, name: str, want: pb.Want) -> AsyncGenerator[bytes]:
        """Layers of the model of one of the learner's own tasks, or of the last one when it is over; as messages."""
        seat = self.federation.seats[name]
        unknown = [layer for layer in want.layers if not self.layout.knows(layer)]
        if unknown or len(set(want.layers)) != len(want.layers):
            raise Rejected(f"There is no layer {unknown[0][:100]!r}." if unknown else "A layer is wanted twice.")
        command = seat.orders.get(want.task)
        over = want.task == LAST_MODEL and self.federation.finished.is_set()
        if command is None and not over:
            raise Missing(f"Task {want.task} is not one of {name}'s, or not any more.")
        model = self.federation.book.controller.state.model.name if command is None else command.model.name
        layers = self.layout.indices(want.layers)
        pieces = map(say_piece, self._body(model, layers, want.offset))
        seat.fetching += 1
        try:
            while True:
                async with self.federation.large_pieces.one():
                    if self.models.in_memory(model):  # there is no disk to wait for
                        piece = next(pieces, None)
                    else:
                        piece = await self.federation.in_hand(lambda: next(pieces, None))
                    if piece is None:
                        break
                    seat.seen = self.federation.now
                    yield piece
                    del piece  # while its turn is waited for, nothing of it is in memory
        except KeyError:
            raise Missing(f"Task {want.task} was closed in the meantime.") from None
        finally:
            seat.fetching -= 1
        if command is not None:  # whoever hangs up before the end has not had it
            self._sent(seat, command, layers)

    # ------------------------------------------------------------------------------------------------------ counting

    def _sent(self, seat: Seat, command: Train | Evaluate, layers: Sequence[int]) -> None:
        """Count what goes down for a task; a model that is tried and then trained counts as sent to be trained."""
        task = (_next_training(seat, command) or command).task
        given = seat.given.setdefault(task, {})
        for layer in layers:
            name = self.layout.names[layer]
            given[name] = given.get(name, 0) + self.layout.bytes((layer,))
        self.federation.meters.bytes.labels("down").inc(self.layout.bytes(layers))
        self.federation.note("controller", "sent", to=seat.name, task=task, layers=len(layers))

    def given(self, task: int) -> list[dict[str, int]]:
        """Bytes by layer that were put on the wire for a task, for each learner."""
        return [seat.given[task] for seat in self._holders.get(task, ()) if task in seat.given]

    def traffic(self, task: int, up: int = 0) -> Traffic:
        given = self.given(task)
        return Traffic(sum(sum(layers.values()) for layers in given), up, max(1, len(given)))


def _next_training(seat: Seat, command: Train | Evaluate) -> Train | None:
    """The training task that this is, or that has the same model as this question."""
    for order in (command, *seat.orders.values()):
        if isinstance(order, Train) and order.model == command.model:
            return order
    return None


def _tell(seat: Seat, what: str, task: int) -> None:
    if seat.queue is not None:
        seat.queue.put_nowait((what, task))

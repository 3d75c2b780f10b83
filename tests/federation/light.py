"""Light learners: they speak the real protocol over real connections, and invent their updates.

A thousand of them fit into a few processes. An update is the carried model plus noise that follows from the task's key,
so that anybody can say afterwards what it must have been.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import grpc
import numpy as np

from archipel.core.layout import Layout
from archipel.federation.learner.link import Link, TurnedAway
from archipel.federation.storage.blobs import Buffer
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.federation.wire.body import HEADER, WIDTH, Bodies, fingerprint

T = TypeVar("T")
Answer = tuple[pb.Head, tuple[bytes | memoryview, ...]]
"""The head of an answer, and the parts of its body."""
Seen = Callable[[str, pb.Head, pb.Receipt], None]
"""Called for every receipt: with the learner, the answer and the receipt."""


def made_up(carried: np.ndarray, key: int) -> np.ndarray:
    """The update that a light learner makes of a model."""
    noise = np.random.Generator(np.random.Philox(key=key % 2**63)).standard_normal(len(carried), dtype=np.float32)
    made: np.ndarray = carried + np.float32(0.01) * noise
    return made


@dataclass
class Light:
    """One learner; `hello` is its message on joining."""

    name: str
    link: Link
    layout: Layout
    hello: pb.Hello
    seen: Seen
    make: Callable[[np.ndarray, int], np.ndarray] = made_up
    delay: float = 0.0
    """Seconds that it trains."""
    ended: str | None = None
    owed: dict[int, Answer] = field(default_factory=dict)
    """Answers that have no receipt yet: asked again, it gives the same."""

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.layout)
        self.layers: dict[str, np.ndarray] = {}
        self.sequence = 0
        self.order_tasks: set[asyncio.Task[None]] = set()
        self.at: set[int] = set()
        self.heartbeat = 5.0
        self.welcomed = asyncio.Event()

    async def run(self) -> None:
        beats = asyncio.create_task(self._beats())
        try:
            while self.ended is None:
                try:
                    welcome = await self.link.join(self.hello)
                    self.heartbeat = welcome.heartbeat
                    self.welcomed.set()
                    async for order in self.link.listen():
                        self._obey(order)
                        if self.ended is not None:
                            break  # type: ignore[unreachable]  # _obey has set it
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.05)
        finally:
            for task in (beats, *self.order_tasks):
                task.cancel()
            await asyncio.gather(beats, *self.order_tasks, return_exceptions=True)
            await self.link.close()

    async def _beats(self) -> None:
        await self.welcomed.wait()
        while True:
            await asyncio.sleep(self.link.rest(self.heartbeat))
            if self.link.rest(self.heartbeat) > 0:
                continue  # it has answered in the meantime
            try:
                heard = await self.link.beat(pb.Pulse())
                if heard.join:
                    await self.link.join(self.hello)
            except TurnedAway:
                pass

    def _obey(self, order: pb.Order) -> None:
        match order.WhichOneof("what"):
            case "train" if order.train.task not in self.at:
                self._later(self._train(order.train))
            case "evaluate" if order.evaluate.task not in self.at:
                self._later(self._evaluate(order.evaluate))
            case "stop":
                self.ended = order.stop.reason

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.order_tasks.add(task)
        task.add_done_callback(self.order_tasks.discard)

    async def _train(self, order: pb.Train) -> None:
        task = order.task
        self.at.add(task)
        try:
            if task not in self.owed:
                self.owed[task] = await self._work_at(order)
            head, body = self.owed[task]
            receipt = await self.link.answer(head, *body)
            self.seen(self.name, head, receipt)
            del self.owed[task]
        except TurnedAway:
            self.owed.pop(task, None)
        finally:
            self.at.discard(task)

    async def _work_at(self, order: pb.Train) -> Answer:
        carried = await self._model(order)
        await asyncio.sleep(self.delay)
        self.sequence += 1
        return await self._aside(partial(self._made, order, self.sequence, carried))

    async def _aside(self, work: Callable[[], T]) -> T:
        """Where models are large, in a thread, as a real learner does."""
        return await asyncio.to_thread(work) if self.layout.size > 1_000_000 else work()

    def _made(self, order: pb.Train, sequence: int, carried: np.ndarray) -> Answer:
        vector = self.make(carried, order.plan.key)
        names = messages.decode_plan(order.plan).sends(self.layout.names)
        places = self.layout.indices(names)
        pieces = [vector[self.layout.layers[p].start : self.layout.layers[p].stop].data.cast("B") for p in places]
        digests = [hashlib.sha256(piece).hexdigest() for piece in pieces]
        header = self.bodies.header(places)
        body: tuple[bytes | memoryview, ...] = (header, *pieces)
        trained = pb.Trained(layers=messages.encode_layers([self.layout.names[p] for p in places], digests), steps=1)
        size, name = sum(map(len, body)), bytes.fromhex(fingerprint(header, digests))
        return pb.Head(task=order.task, sequence=sequence, size=size, sha256=name, trained=trained), body

    async def _evaluate(self, order: pb.Evaluate) -> None:
        self.at.add(order.task)
        try:
            count = self.hello.validation if order.part == "validation" else self.hello.test
            confusion = [0] * 4
            confusion[order.task % 4] = count
            self.sequence += 1
            scored = pb.Scored(count=count, loss=1.0, classes=2, confusion=confusion)
            await self.link.answer(pb.Head(task=order.task, sequence=self.sequence, scored=scored))
        except TurnedAway:
            pass
        finally:
            self.at.discard(order.task)

    async def _model(self, order: pb.Train) -> np.ndarray:
        digests = {layer.name: layer.sha256.hex() for layer in order.model}
        found = (
            dict(self._unpack(order.enclosed.body, list(order.enclosed.layers), digests)) if order.enclosed.body else {}
        )
        missing = [n for n in self.layout.names if n not in found and digests[n] not in self.layers]
        if missing:
            size = self.bodies.size(self.layout.indices(missing))
            body = await self.link.fetch(order.task, missing, size)
            found |= await self._aside(partial(self._unpack, body, missing, digests))
        self.layers = {digests[n]: found[n] if n in found else self.layers[digests[n]] for n in self.layout.names}
        layers = [self.layers[digests[n]] for n in self.layout.names]
        return layers[0] if len(layers) == 1 else np.concatenate(layers)

    def _unpack(self, body: Buffer, names: list[str], digests: Mapping[str, str]) -> dict[str, np.ndarray]:
        places = self.layout.indices(names)
        start = self.bodies.check_header(places, bytes(body[: WIDTH + HEADER]), len(body))
        found = {}
        for place in places:
            layer = self.layout.layers[place]
            numbers = np.frombuffer(body, np.float32, layer.size, start)
            start += 4 * layer.size
            assert hashlib.sha256(numbers.data).hexdigest() == digests[layer.name]
            found[layer.name] = numbers
        return found

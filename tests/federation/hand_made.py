"""A federation in one process with two honest light learners, and a third that misbehaves.

What an honest one would say is made here too, so that a test changes just the one thing that it is about.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch

from archipel.core.types import Failed, Trained
from archipel.federation.controller.engine import Federation
from archipel.federation.controller.service import serve
from archipel.federation.learner.link import Link
from archipel.federation.storage.durable_controller import CODEC
from archipel.federation.storage.journal import Journal
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.federation.wire.body import fingerprint
from archipel.study.federate import Hosting, hashes_of, host, layout_hash
from archipel.study.files import study_of
from tests.federation.light import Light
from tests.waiting import LIMIT, reached

NAMES = ("site-0", "site-1", "site-2")
BAD = "site-2"
"""The one that misbehaves."""
METADATA = (("archipel-identity", f"learner/{BAD}"),)
EXAMPLES, VALIDATION, TEST = 100, 20, 10


def study(**sections: Any) -> dict[str, Any]:
    """There are no data: the controller is told their shape, and learners invent their updates."""
    raw: dict[str, Any] = {
        "algorithms": "fedavg",
        "data": {"source": {"name": "from_csv", "path": "elsewhere.csv", "label": "y"}, "split": {"learners": 3}},
        "model": {"name": "mlp", "hidden": [8]},
        "ending": {"commits": 3},
        "evaluation": {"every": 100, "at": "learners"},
        "federation": {
            "learners": list(NAMES),
            "operators": [{"name": "alice", "role": "admin"}],
            "example": [6],
            "classes": 2,
            "heartbeat": 0.3,
            "silence": 5 * LIMIT,
            "keep_updates": True,
        },
    }
    for name, section in sections.items():
        raw[name] = {**raw[name], **section} if isinstance(raw.get(name), dict) else section
    return raw


@dataclass
class Update:
    """An honest update, in pieces that a test may spoil before it is sent."""

    head: pb.Head
    header: bytes
    numbers: np.ndarray

    @property
    def body(self) -> bytes:
        return self.header + self.numbers.tobytes()

    def sign(self, layers: bool = True, *, body: bytes | None = None) -> bytes:
        """Make hashes and size fit the content, so that checking hashes alone would accept it; return the body."""
        whole = self.body if body is None else body
        if layers:
            place = 0
            for layer, size in zip(self.head.trained.layers, self.sizes, strict=False):
                layer.sha256 = hashlib.sha256(self.numbers[place : place + size].tobytes()).digest()
                place += size
        name = fingerprint(whole[: len(self.header)], [layer.sha256.hex() for layer in self.head.trained.layers])
        self.head.size, self.head.sha256 = len(whole), bytes.fromhex(name)
        return whole

    sizes: tuple[int, ...] = ()


@dataclass
class Steady(Light):
    """Its opinion depends on the model alone, and not on the order of updates."""

    async def _evaluate(self, order: pb.Evaluate) -> None:
        count = self.hello.validation if order.part == "validation" else self.hello.test
        right = order.model[0].sha256[0] % count
        self.sequence += 1
        scored = pb.Scored(count=count, loss=1.0, classes=2, confusion=[right, count - right, 0, 0])
        await self.link.answer(pb.Head(task=order.task, sequence=self.sequence, scored=scored))


@dataclass
class Liar(Steady):
    """Answer tasks with the acts of a test, and honestly once they are used up."""

    acts: list[Act] = field(default_factory=list)
    """One for each training task, from the first on."""
    opinions: list[Act] = field(default_factory=list)
    """One for each question about the part with which it misbehaves."""
    part: str = "validation"
    told: list[pb.Receipt] = field(default_factory=list)
    failure: BaseException | None = None
    acting: int = 0
    """Acts that are not done yet."""
    port: int = 0
    federation: Federation | None = None

    async def _train(self, order: pb.Train) -> None:
        await self._act(self.acts, super()._train, order)

    async def _evaluate(self, order: pb.Evaluate) -> None:
        await self._act(self.opinions if order.part == self.part else [], super()._evaluate, order)

    async def _act(self, acts: list[Act], otherwise: Callable[[Any], Awaitable[None]], order: Any) -> None:
        if not acts:
            await reached(lambda: not self.acting, "the acts before")  # the run must not be over before
            await otherwise(order)
            return
        self.at.add(order.task)
        self.acting += 1
        try:
            await acts.pop(0)(self, order)
            self.acting -= 1
        except BaseException as error:  # shown when the run is over
            self.failure = error
            raise

    # ------------------------------------------------------------------------------------------- what acts are made of

    async def update(self, order: pb.Train) -> Update:
        """What an honest one would send."""
        head, parts = await self._work_at(order)
        body = b"".join(parts)
        start = len(self.bodies.header(self.layout.indices(None)))
        sizes = tuple(layer.size for layer in self.layout.layers)
        return Update(head, body[:start], np.frombuffer(body[start:], np.float32).copy(), sizes)

    async def send(self, head: pb.Head | None, body: bytes = b"", piece: int = 1 << 20) -> pb.Receipt:
        """Make one call without retries; raises `AioRpcError`."""
        return await self.send_portions(portions(head, body, piece))

    async def reply(self, head: pb.Head, body: bytes = b"") -> pb.Receipt:
        """The same in one message."""
        receipt: pb.Receipt = await self.link._reply(pb.Portion(head=head, data=body), metadata=METADATA, timeout=LIMIT)
        self.told.append(receipt)
        return receipt

    async def send_portions(self, said: Sequence[pb.Portion] | Iterator[pb.Portion]) -> pb.Receipt:
        receipt: pb.Receipt = await self.link._answer(iter(said), metadata=METADATA, timeout=LIMIT)
        self.told.append(receipt)
        return receipt

    async def raw(self, method: str, data: bytes, kind: str = "unary_unary") -> bytes:
        """A call whose message is just these bytes."""
        stub = getattr(self.link.channel, kind)(f"/archipel.v1.Federation/{method}")
        message = iter([data]) if kind.startswith("stream") else data
        answer = stub(message, metadata=METADATA, timeout=LIMIT)
        if kind.endswith("stream"):
            return b"".join([piece async for piece in answer])
        return bytes(await answer)


Act = Callable[[Liar, Any], Awaitable[None]]


def portions(head: pb.Head | None, body: bytes, piece: int = 1 << 20) -> Iterator[pb.Portion]:
    yield pb.Portion(head=head, data=body[:piece])
    for place in range(piece, len(body), piece):
        yield pb.Portion(data=body[place : place + piece])


@dataclass
class Left:
    """What a run has left behind."""

    hosting: Hosting
    folder: Path
    model: torch.Tensor
    version: int
    reason: str
    metrics: dict[str, float]
    bad: Liar

    @property
    def lines(self) -> list[tuple[Any, str | None]]:
        """Events, and whose answers they are."""
        journal = Journal(self.folder / "journal.sqlite")
        try:
            return [
                (CODEC.value(line.event), None if line.answer is None else line.answer.learner)
                for line in journal.events()
            ]
        finally:
            journal.close()

    @property
    def audit(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Caller, kind and details of each row; the hash chain is verified."""
        journal = Journal(self.folder / "journal.sqlite")
        try:
            rows = [(who, what, json.loads(detail)) for _, _, who, what, detail, _ in journal.audit()]
            assert journal.check_audit() == len(rows) > 0
            return rows
        finally:
            journal.close()

    def failed(self, learner: str = BAD) -> list[Failed]:
        """Failed answers of the third learner."""
        return [event for event, whose in self.lines if isinstance(event, Failed) and whose == learner]

    def trained(self, learner: str = BAD) -> list[Trained]:
        return [event for event, whose in self.lines if isinstance(event, Trained) and whose == learner]

    def refused_calls(self) -> list[str]:
        return [detail["reason"] for who, what, detail in self.audit if (who, what) == (BAD, "refused")]


def run(
    folder: Path,
    *acts: Act,
    raw: dict[str, Any] | None = None,
    opinions: Sequence[Act] = (),
    part: str = "validation",
    before: Act | None = None,
) -> Left:
    """Run a federation to its end; `before` is called before the third learner joins."""
    return asyncio.run(_run(folder, acts, raw or study(), opinions, part, before))


async def _run(
    folder: Path,
    acts: Sequence[Act],
    raw: dict[str, Any],
    opinions: Sequence[Act],
    part: str,
    before: Act | None,
) -> Left:
    hosting = host(study_of(raw))
    federation = hosting.open(folder)
    server, port = await serve(federation, "127.0.0.1:0", None)
    honest = [Steady(*_arguments(name, port, hosting)) for name in NAMES if name != BAD]
    bad = Liar(*_arguments(BAD, port, hosting))
    bad.acts, bad.opinions, bad.part = list(acts), list(opinions), part
    bad.port, bad.federation = port, federation

    async def takes_part() -> None:
        if before is not None:
            await before(bad, None)
        await bad.run()

    try:
        await _held(federation, bad, [*(light.run() for light in honest), takes_part()])
    finally:
        await server.stop(None)
        await federation.close()
    if bad.failure is not None:
        raise bad.failure
    return _left(hosting, folder, federation, bad)


def _arguments(name: str, port: int, hosting: Hosting) -> tuple[Any, ...]:
    """What a light learner is made of."""
    link = Link(f"127.0.0.1:{port}", None, f"learner/{name}")
    return name, link, hosting.layout, hello(hosting), lambda *_: None


async def _held(federation: Federation, bad: Liar, learners: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run the federation to its end, or until a learner fails."""

    async def watches() -> None:
        await reached(lambda: federation.log.finished.is_set() or bad.failure is not None, "the run's end")
        if bad.failure is not None:
            raise bad.failure

    over = asyncio.create_task(federation.run())
    beside = [asyncio.create_task(one) for one in (*learners, watches())]
    try:
        async with asyncio.timeout(LIMIT):
            done, _ = await asyncio.wait({over, *beside}, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            await over
            await asyncio.gather(*beside)
    except TimeoutError:
        if bad.failure is None:
            raise
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


def _left(hosting: Hosting, folder: Path, federation: Federation, bad: Liar) -> Left:
    """Read the files of the run, and check that a replay gives the same model."""
    state = federation.durable.controller.state
    model = federation.durable.replay.models.read(state.model.name).clone()
    again = hosting.replay(folder)
    assert torch.equal(model, again.models.read(again.controller.state.model.name))
    found = {
        "_".join((sample.name, *sample.labels.values())): sample.value
        for metric in federation.meters.registry.collect()
        for sample in metric.samples
    }
    return Left(hosting, folder, model, state.version, federation.stopped or "", found, bad)


def hello(hosting: Hosting) -> pb.Hello:
    everybodys = hosting.study.data.standardise == "global"
    return pb.Hello(
        moments=moments() if everybodys else None,
        protocol=messages.PROTOCOL,
        study=hashes_of(hosting.study),
        layout=layout_hash(hosting.layout),
        examples=EXAMPLES,
        validation=VALIDATION,
        test=TEST,
        fresh=False,
    )


def moments(count: int = EXAMPLES, total: float = 1.0, squares: float = 100.0) -> pb.Moments:
    """Of six features."""
    return pb.Moments(count=count, sum=np.full(6, total).tobytes(), squares=np.full(6, squares).tobytes())


async def crash(bad: Liar, order: pb.Train) -> None:
    """A task that simply failed."""
    bad.sequence += 1
    await bad.send(pb.Head(task=order.task, sequence=bad.sequence, failed="it broke"))


def code_of(caught: Any) -> grpc.StatusCode:
    code: grpc.StatusCode = caught.value.code()
    return code


Spoil = Callable[[Update], bytes]
"""Changes an honest update; returns the body that is sent."""


def numbers(value: float) -> Spoil:
    """Put another number into an update."""

    def spoil(update: Update) -> bytes:
        update.numbers[7] = value
        return update.sign()

    return spoil

"""A controller in this process, and beside it learners of all kinds: light ones, agents, and processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import select
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archipel.core.records import Committed
from archipel.core.types import Event, Trained
from archipel.federation.controller.engine import Federation
from archipel.federation.controller.service import serve
from archipel.federation.learner.agent import Agent
from archipel.federation.learner.link import Link
from archipel.federation.learner.local_state import CODEC as MEMORY
from archipel.federation.learner.local_state import Memory
from archipel.federation.security.tls import channel_credentials, server_credentials
from archipel.federation.storage.durable_controller import CODEC
from archipel.federation.storage.journal import Line
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.study.federate import Hosting, hashes_of, host, layout_hash
from archipel.study.files import study_of
from tests.federation.in_one_process import agent
from tests.federation.light import Light
from tests.forked import Forked
from tests.waiting import LIMIT, reached

HELD_LOSS = f"{Path(__file__).with_name('held_loss.py')}:loss"
"""The loss of studies whose sites can be held."""


class Site:
    """`archipel learner` in a process of its own."""

    def __init__(self, folder: Path, raw: dict[str, Any], name: str, port: int, held: bool) -> None:
        self.folder = folder / name
        self.name = name
        self.log = folder / f"{name}.log"
        self._hold = folder / f"{name}.hold"
        if held:
            assert raw.get("loss") == HELD_LOSS
            self.hold()
        study = folder / f"{name}.json"
        study.write_text(json.dumps(raw))
        arguments = [
            *("learner", str(study), "--controller", f"127.0.0.1:{port}", "--insecure", f"learner/{name}"),
            *("--state", str(self.folder), "--json-log", "--allow-code"),
        ]
        with self.log.open("ab") as log:
            said = (None, None, log.fileno())
            self._process = Forked(arguments, environment={**os.environ, "HOLD": str(self._hold)}, streams=said)
        self.pid = self._process.pid
        self._handle = os.pidfd_open(self.pid)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def hold(self) -> None:
        """From now on it does not get through a step of training."""
        self._hold.with_suffix(".reached").unlink(missing_ok=True)
        self._hold.touch()

    async def held(self) -> None:
        """Wait until it is in the middle of a step."""
        await reached(self._hold.with_suffix(".reached").exists, lambda: f"{self.name} to train:\n{self.said}")

    def release(self) -> None:
        self._hold.unlink()

    async def kill(self) -> None:
        self.send(signal.SIGKILL)
        await self.end()

    async def end(self) -> None:
        await reached(lambda: self.ended, lambda: f"{self.name} to end:\n{self.said}")

    @property
    def ended(self) -> bool:
        return bool(select.select([self._handle], [], [], 0)[0])

    @property
    def code(self) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(LIMIT)

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def memory(self) -> Memory | None:
        """What is in its folder."""
        path = self.folder / "learner.safetensors"
        found: Memory | None = MEMORY.load(path) if path.exists() else None
        return found


@dataclass
class Scene:
    raw: dict[str, Any]
    folder: Path
    hosting: Hosting
    federation: Federation
    port: int
    running: asyncio.Task[None]
    papers: Path | None = None
    """Everybody's certificates; without them it is insecure."""
    sites: list[Site] = field(default_factory=list)
    beside: list[asyncio.Task[None]] = field(default_factory=list)

    # ---------------------------------------------------------------------------------------------------- learners

    def light(self, name: str, delay: float = 0.0, kind: type[Light] = Light, **more: Any) -> Light:
        one = kind(name, self.link(f"learner/{name}"), self.layout, self.hello(), lambda *_: None, delay=delay, **more)
        self.beside.append(asyncio.create_task(one.run()))
        return one

    def agent(self, name: str, port: int | None = None) -> Agent:
        one = agent(self.raw, name, self.folder / name, port or self.port)
        self.beside.append(asyncio.create_task(one.run()))
        return one

    def site(self, name: str, port: int | None = None, held: bool = False) -> Site:
        """held: its first step of training waits for `release`."""
        self.sites.append(Site(self.folder, self.raw, name, port or self.port, held))
        return self.sites[-1]

    def link(self, who: str) -> Link:
        if self.papers is None:
            return Link(f"127.0.0.1:{self.port}", None, who)
        return Link(f"localhost:{self.port}", channel_credentials(self.papers / who.removeprefix("learner/")))

    def hello(self) -> pb.Hello:
        return pb.Hello(
            protocol=messages.PROTOCOL,
            study=hashes_of(self.hosting.study),
            layout=layout_hash(self.layout),
            examples=100,
            validation=20,
            test=10,
        )

    # ------------------------------------------------------------------------------------------------ what happened

    @property
    def layout(self) -> Any:
        return self.hosting.layout

    @property
    def version(self) -> int:
        return self.federation.durable.controller.state.version

    async def lines(self) -> list[Line]:
        return await self.federation.log.in_writer(lambda: [*self.federation.durable.journal.events()])

    async def events(self, learner: str | None = None) -> list[Event]:
        """All, or those that are answers of this learner."""
        lines = await self.lines()
        return [CODEC.value(line.event) for line in lines if learner in (None, line.answer and line.answer.learner)]

    async def updates(self, learner: str) -> list[Trained]:
        return [event for event in await self.events(learner) if isinstance(event, Trained)]

    async def records(self, kind: type[object]) -> list[tuple[float, Any]]:
        found = await self.federation.log.in_writer(lambda: [*self.federation.durable.records()])
        return [(stamped.time, stamped.record) for stamped in found if isinstance(stamped.record, kind)]

    async def commits_of(self, learner: str) -> list[float]:
        """When its updates were committed."""
        return [time for time, record in await self.records(Committed) if learner in record.learners]

    async def audit(self) -> list[tuple[str, str, dict[str, Any]]]:
        rows = await self.federation.log.in_writer(lambda: [*self.federation.durable.journal.audit()])
        return [(who, what, json.loads(detail)) for _, _, who, what, detail, _ in rows]

    async def until(self, done: Callable[[], Any]) -> float:
        """Wait for it; the federation's time then."""
        end = time.monotonic() + LIMIT
        while True:
            found = done()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return self.federation.log.now
            if self.running.done():
                self.running.result()
                assert done(), "the run is over"
            assert time.monotonic() < end, f"waited {LIMIT:g} s for:\n{inspect.getsource(done)}"
            await asyncio.sleep(0.02)

    async def lose(self, name: str) -> None:
        """Wait until one that says nothing more is taken for gone, without waiting as long as the study does."""
        federation, session = self.federation, self.federation.sessions[name]

        def gone() -> bool:
            session.seen = federation.log.now - 2 * federation.terms.silence
            return not session.orders and not federation.durable.controller.state.members[name].active

        await self.until(gone)

    async def at_work(self, name: str) -> int:
        """Wait until it has been told to train and has not answered yet; the task."""
        found: list[int] = []

        async def told() -> bool:
            # an answer is in the journal a moment before its order is off the list
            answered = {event.task for event in await self.updates(name)}
            session = self.federation.sessions[name]
            found[:] = [task for task in session.orders if task >= 0 and session.given and task not in answered]
            return bool(found)

        await self.until(told)
        return found[0]


@asynccontextmanager
async def scene(raw: dict[str, Any], folder: Path, papers: Path | None = None) -> AsyncIterator[Scene]:
    """Open a federation, or take up the one that is in the folder; with certificates it listens at every address."""
    folder.mkdir(parents=True, exist_ok=True)
    hosting = host(study_of(raw, code="any"))  # the held loss lies beside the tests
    federation = hosting.open(folder / "state")
    if papers is None:
        server, port = await serve(federation, "127.0.0.1:0", None)
    else:
        server, port = await serve(federation, "0.0.0.0:0", server_credentials(papers / "controller"))
    one = Scene(raw, folder, hosting, federation, port, asyncio.create_task(federation.run()), papers)
    try:
        yield one
    finally:
        for site in one.sites:
            site.send(signal.SIGKILL)
        for task in (one.running, *one.beside):
            task.cancel()
        await asyncio.gather(one.running, *one.beside, return_exceptions=True)
        await server.stop(None)
        await federation.close()

"""A real federation on loopback: a controller's process over mutual TLS, and light learners in a thread of this one.

The controller is the command that a person types. What learners are told is written down as it happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from archipel.federation.learner.link import Link
from archipel.federation.security.authority import create_authority, issue
from archipel.federation.security.tls import channel_credentials
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.study.federate import Hosting, hashes_of, host, layout_hash
from archipel.study.files import read_study
from tests.federation.kept import controllers_of
from tests.federation.light import Answer, Light
from tests.federation.removed_events import keep_removed_events
from tests.forked import Forked
from tests.waiting import LIMIT

HERE = Path(__file__).parent
LONGEST = LIMIT
"""Seconds after which a process is taken to hang."""
COMMAND = (sys.executable, "-c", "from archipel.cli import main; main()")


@dataclass(frozen=True)
class Setting:
    """What is run."""

    algorithm: str
    """As in a study."""
    ending: int = 1
    """Commits."""
    learners: int = 5
    features: int = 24
    hidden: tuple[int, ...] = (64, 32)
    snapshot_every: int = 3
    evaluate_every: int = 5
    keep_updates: bool = True
    operators: tuple[str, ...] = ()
    """Admins."""
    delay: float = 0.0
    """Seconds that a learner trains."""

    @property
    def names(self) -> list[str]:
        return [f"site-{number:02}" for number in range(self.learners)]

    @property
    def study(self) -> str:
        """In TOML; there are no data: the controller is told their shape, and learners invent their updates."""
        return f"""
algorithms = [{self.algorithm}]
validation = 0.2

[data]
source = {{ name = "from_csv", path = "elsewhere.csv", label = "y" }}
split = {{ learners = {self.learners} }}

[model]
name = "mlp"
hidden = {list(self.hidden)}

[ending]
commits = {self.ending}

[evaluation]
every = {self.evaluate_every}
at = "learners"

[federation]
learners = {self.names}
operators = [{", ".join(f'{{ name = "{name}", role = "admin" }}' for name in self.operators)}]
example = [{self.features}]
classes = 2
heartbeat = 1.0
snapshot_every = {self.snapshot_every}
keep_updates = {str(self.keep_updates).lower()}
"""


@dataclass(frozen=True)
class Stage:
    """A folder with everything that a federation needs, and a port."""

    folder: Path
    setting: Setting
    port: int
    hosting: Hosting
    fresh: bool = False
    """Start the command from nothing, as a person does, and not from a process that has imported what it needs."""

    @property
    def study(self) -> Path:
        return self.folder / "study.toml"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def receipts(self) -> Path:
        """Receipts of learners, one JSON object a line."""
        return self.folder / "receipts.jsonl"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def controller(self, *, crime: str | None = None, code: str | None = None) -> Process:
        """Start the command; crime: a law that it breaks; code: a program to run in the command's place."""
        arguments = [
            *([crime] if crime else []),
            *("controller", str(self.study), "--listen", self.address, "--json-log"),
            *("--tls", str(self.folder / "ca" / "controller"), "--state", str(self.state)),
        ]
        program = HERE / "sabotage.py" if crime else code
        return Process(arguments, self.folder / "controller.log", program=program, fresh=self.fresh)

    def told(self) -> list[dict[str, Any]]:
        """The receipts so far."""
        return [json.loads(line) for line in self.receipts.read_text().splitlines()] if self.receipts.exists() else []


def set_up(folder: Path, setting: Setting, *, fresh: bool = False) -> Stage:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text(setting.study)
    create_authority(folder / "ca")
    issue(folder / "ca", "controller")
    for name in setting.names:
        issue(folder / "ca", "learner", name)
    for name in setting.operators:
        issue(folder / "ca", "operator", name)
    if not setting.keep_updates:
        keep_removed_events(folder / "state")
    return Stage(folder, setting, free_port(), host(read_study(folder / "study.toml")), fresh)


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


class Process:
    """The command's process, which is the keeper, that of its controller, and their log."""

    def __init__(
        self, arguments: Sequence[str], log: Path, *, program: Path | str | None = None, fresh: bool = False
    ) -> None:
        """program: in the command's place; fresh: not forked from a process that has imported what it needs."""
        log.unlink(missing_ok=True)
        log.touch()
        self._log = log.open()
        self.said = ""
        self.began = time.monotonic()
        """The command, or its last controller."""
        self.listened_at: float | None = None
        self.restarts = 0
        self._before = 0
        """Length of the log before the last controller."""
        self._killed: int | None = None
        with log.open("ab") as said:
            self._popen: subprocess.Popen[bytes] | Forked
            if fresh:
                assert program is None
                self._popen = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=said)
            else:
                self._popen = Forked(arguments, streams=(None, None, said.fileno()), program=program)
        self.pid = self._popen.pid
        self._keeper = os.pidfd_open(self.pid)

    @property
    def controller(self) -> int | None:
        """The id of the controller's own process, while there is one."""
        return next((pid for pid in controllers_of(self.pid) if pid != self._killed), None)

    @property
    def listening(self) -> bool:
        if self.listened_at is None and '"event": "listening"' in self.last_life():
            self.listened_at = time.monotonic()
        return self.listened_at is not None

    @property
    def ended(self) -> bool:
        return _over(self._keeper, 0)

    def kill_controller(self, number: signal.Signals = signal.SIGKILL) -> float:
        """Send a signal to the controller alone; return when. Its keeper is stopped until `go_on`."""
        pid = self.controller
        with _handle(pid) as controller:
            assert controller is not None, f"there is no controller:\n{self.last_words()}"
            signal.pidfd_send_signal(self._keeper, signal.SIGSTOP)
            at = time.monotonic()
            signal.pidfd_send_signal(controller, number)
            assert _over(controller, LONGEST), f"the controller, {pid}, does not end"
        self._killed = pid
        self._read()
        self._before = len(self.said)
        return at

    def go_on(self) -> None:
        """Let the keeper notice that its controller was killed."""
        self.restarts += 1
        self.listened_at = None
        self.began = time.monotonic()
        signal.pidfd_send_signal(self._keeper, signal.SIGCONT)

    def kill(self) -> float:
        """SIGKILL to the keeper, with which the controller goes; when."""
        pid = self.controller
        with _handle(pid) as controller:
            at = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._keeper, signal.SIGKILL)
            self.wait(LONGEST)
            assert controller is None or _over(controller, LONGEST), f"the controller, {pid}, outlives its keeper"
        return at

    def wait(self, seconds: float) -> int:
        """Wait for its end; return its exit code, or -9 if it was killed."""
        if not _over(self._keeper, seconds):
            self.kill()
            raise TimeoutError(f"The controller did not end in {seconds:g} s.\n{self.last_words()}")
        self._read()
        return self._popen.wait()

    def last_life(self) -> str:
        """The log since the last kill."""
        self._read()
        return self.said[self._before :]

    def last_words(self) -> str:
        self._read()
        return "".join(self.said.splitlines(keepends=True)[-30:])

    def _read(self) -> None:
        self.said += self._log.read()


@contextlib.contextmanager
def _handle(pid: int | None) -> Iterator[int | None]:
    """Of a process, if there is one: an id may be another's in a moment."""
    try:
        handle = None if pid is None else os.pidfd_open(pid)
    except ProcessLookupError:
        handle = None
    yield handle
    if handle is not None:
        os.close(handle)


def _over(handle: int, seconds: float) -> bool:
    """Has the process ended, or does it within so many seconds?"""
    return bool(select.select([handle], [], [], seconds)[0])


@cache
def loop() -> asyncio.AbstractEventLoop:
    """One for all learners of this process, in a thread of its own; gRPC does not like to see one closed."""
    found = asyncio.new_event_loop()
    threading.Thread(target=found.run_forever, daemon=True).start()
    return found


class Wire:
    """A connection between learners and a controller that breaks at times, and works again at once."""

    def __init__(self, stage: Stage, breaks: Iterable[int]) -> None:
        """breaks: bytes from the learners after which it breaks, one number for each time."""
        self.behind = stage.port
        self.cuts = 0
        self._breaks = iter(breaks)
        self._left = next(self._breaks)
        self._ends: set[asyncio.StreamWriter] = set()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), loop()).result()

    def _count(self, size: int) -> None:
        """So much goes up; break off all connections if it is enough."""
        self._left -= size
        if self._left > 0:
            return
        self._left = next(self._breaks, sys.maxsize)
        self.cuts += len(self._ends) // 2
        for end in self._ends:
            end.transport.abort()

    async def _listen(self) -> int:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward, back = await asyncio.open_connection("127.0.0.1", self.behind)
        except OSError:
            writer.close()
            return
        self._ends |= {writer, back}
        await asyncio.gather(self._pass(reader, back, self._count), self._pass(onward, writer))
        self._ends -= {writer, back}

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        count: Callable[[int], None] = lambda _: None,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                count(len(data))
                writer.write(data)
                await writer.drain()
        writer.close()


@dataclass
class Member(Light):
    """One learner of many."""

    crowd: Crowd | None = None

    async def _work_at(self, order: pb.Train) -> Answer:
        answer = await super()._work_at(order)
        assert self.crowd is not None
        await self.crowd.may_send()
        return answer


@dataclass
class Crowd:
    """The learners, in a thread of this process."""

    stage: Stage
    kept_at: list[float] = field(default_factory=list)
    """When updates were acknowledged."""
    most: int | None = None
    """Number of acknowledged updates after which they send no more, so that a run does not end before its test."""
    _gone: asyncio.Event = field(default_factory=asyncio.Event)

    def __enter__(self) -> Crowd:
        self._file = self.stage.receipts.open("a", buffering=1)
        self._taking_part = asyncio.run_coroutine_threadsafe(self._take_part(), loop())
        return self

    def __exit__(self, *_: Any) -> None:
        self._taking_part.cancel()
        asyncio.run_coroutine_threadsafe(self._gone.wait(), loop()).result()
        self._file.close()

    @property
    def kept(self) -> int:
        """Number of acknowledged updates."""
        return len(self.kept_at)

    @property
    def failure(self) -> BaseException | None:
        """What went wrong on the learners' side."""
        ended = self._taking_part.done() and not self._taking_part.cancelled()
        return self._taking_part.exception() if ended else None

    async def _take_part(self) -> None:
        stage, layout = self.stage, self.stage.hosting.layout
        hello = pb.Hello(
            protocol=messages.PROTOCOL,
            study=hashes_of(stage.hosting.study),
            layout=layout_hash(layout),
            examples=100,
            validation=20,
            test=10,
            fresh=False,
        )
        links = {n: Link(stage.address, channel_credentials(stage.folder / "ca" / n)) for n in stage.setting.names}
        delay = stage.setting.delay
        try:
            async with asyncio.TaskGroup() as everybody:
                for name, link in links.items():
                    everybody.create_task(Member(name, link, layout, hello, self._seen, delay=delay, crowd=self).run())
        finally:
            self._gone.set()

    async def may_send(self) -> None:
        while self.most is not None and self.kept >= self.most:
            await asyncio.sleep(0.005)

    def _seen(self, name: str, head: pb.Head, receipt: pb.Receipt) -> None:
        told: dict[str, Any] = {
            "learner": name,
            "task": head.task,
            "sequence": head.sequence,
            "sha256": head.sha256.hex(),
            "verdict": pb.Receipt.Verdict.Name(receipt.verdict),
            "reason": receipt.reason,
        }
        self._file.write(json.dumps(told) + "\n")
        if receipt.verdict == pb.Receipt.KEPT:
            self.kept_at.append(time.monotonic())

"""A real federation on loopback: a controller's process over mutual TLS, and light learners in a thread of this one.

The controller is the command that a person types. What learners are told is written down as it happens.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from light import Light

from archipel.engines.federation import federation_pb2 as pb
from archipel.engines.federation import speech
from archipel.engines.federation.authority import create_authority, issue_controller, issue_learner
from archipel.engines.federation.link import Link
from archipel.engines.federation.tls import channel_credentials
from archipel.study.federate import Hosting, hashes_of, host, layout_hash
from archipel.study.files import read_study

COMMAND = (sys.executable, "-c", "from archipel.cli import main; main()")


@dataclass(frozen=True)
class Setting:
    """What is run."""

    algorithm: str
    """As a study says it."""
    ending: int
    """Commits."""
    learners: int = 5
    features: int = 24
    hidden: tuple[int, ...] = (64, 32)
    snapshot_every: int = 3
    evaluate_every: int = 5
    keep_updates: bool = True
    delay: float = 0.0
    """Seconds that a learner trains."""

    @property
    def names(self) -> list[str]:
        return [f"site-{number:02}" for number in range(self.learners)]

    @property
    def study(self) -> str:
        """In TOML; nobody has data: the controller is told their shape, and learners make their updates up."""
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

    @property
    def study(self) -> Path:
        return self.folder / "study.toml"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def receipts(self) -> Path:
        """What learners were told, one JSON object a line."""
        return self.folder / "receipts.jsonl"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def controller(self, command: Sequence[str] = COMMAND) -> Process:
        return Process(
            [
                *(*command, "controller", str(self.study), "--listen", self.address, "--json-log"),
                *("--tls", str(self.folder / "ca" / "controller"), "--state", str(self.state)),
            ]
        )

    def told(self) -> list[dict[str, Any]]:
        """The receipts so far."""
        return [json.loads(line) for line in self.receipts.read_text().splitlines()] if self.receipts.exists() else []


def set_up(folder: Path, setting: Setting) -> Stage:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text(setting.study)
    create_authority(folder / "ca")
    issue_controller(folder / "ca")
    for name in setting.names:
        issue_learner(folder / "ca", name)
    return Stage(folder, setting, free_port(), host(read_study(folder / "study.toml")))


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


class Process:
    """A controller's process and what it says."""

    def __init__(self, command: Sequence[str]) -> None:
        self.began = time.monotonic()
        self.popen = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []
        self.listening = threading.Event()
        self.listened_at = 0.0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.said.append(line)
            if '"event": "listening"' in line:
                self.listened_at = time.monotonic()
                self.listening.set()

    @property
    def ended(self) -> bool:
        return self.popen.poll() is not None

    def kill(self) -> float:
        """SIGKILL; when."""
        at = time.monotonic()
        self.popen.kill()
        self.popen.wait()
        self._reader.join()
        return at

    def wait(self, seconds: float) -> int:
        """Its exit code."""
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"The controller did not end in {seconds:g} s.\n{self.last_words()}") from None

    def last_words(self) -> str:
        return "".join(self.said[-30:])


@cache
def loop() -> asyncio.AbstractEventLoop:
    """One for all learners of this process, in a thread of its own; gRPC does not like to see one closed."""
    found = asyncio.new_event_loop()
    threading.Thread(target=found.run_forever, daemon=True).start()
    return found


@dataclass
class Crowd:
    """The learners, in a thread of this process."""

    stage: Stage
    kept: int = 0
    """Updates that they were told are safe."""
    last_kept: float = 0.0
    """When they last were."""
    _gone: asyncio.Event = field(default_factory=asyncio.Event)

    def __enter__(self) -> Crowd:
        self._file = self.stage.receipts.open("a", buffering=1)
        self._taking_part = asyncio.run_coroutine_threadsafe(self._take_part(), loop())
        return self

    def __exit__(self, *_: object) -> None:
        self._taking_part.cancel()
        asyncio.run_coroutine_threadsafe(self._gone.wait(), loop()).result()
        self._file.close()

    @property
    def failure(self) -> BaseException | None:
        """What went wrong on the learners' side."""
        ended = self._taking_part.done() and not self._taking_part.cancelled()
        return self._taking_part.exception() if ended else None

    async def _take_part(self) -> None:
        stage, layout = self.stage, self.stage.hosting.work.layout
        hello = pb.Hello(
            protocol=speech.PROTOCOL,
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
                    everybody.create_task(Light(name, link, layout, hello, self._seen, delay=delay).run())
        finally:
            self._gone.set()

    def _seen(self, name: str, head: pb.Head, receipt: pb.Receipt) -> None:
        told = {
            "learner": name,
            "task": head.task,
            "sequence": head.sequence,
            "sha256": head.sha256.hex(),
            "verdict": pb.Receipt.Verdict.Name(receipt.verdict),
            "reason": receipt.reason,
        }
        self._file.write(json.dumps(told) + "\n")
        if receipt.verdict == pb.Receipt.KEPT:
            self.kept += 1
            self.last_kept = time.monotonic()

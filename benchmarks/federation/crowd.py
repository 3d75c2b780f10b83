"""A controller in a process of its own, and a crowd of light learners in a few others, over mutual TLS on loopback."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit
from torch import Tensor

from archipel.federation.learner.link import Link
from archipel.federation.security import authority
from archipel.federation.security.tls import channel_credentials
from archipel.federation.storage.blobs import Buffer
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.messages import PROTOCOL
from archipel.kernels.memory import empty
from archipel.study.federate import hashes_of, host, layout_hash, one_run
from archipel.study.files import read_study
from tests.federation.light import Answer, Light, made_up


@dataclass(frozen=True)
class Receipt:
    learner: str
    task: int
    verdict: int
    sent: float
    """When its answer was begun."""
    seconds: float
    """Until the receipt came."""


def write_study(folder: Path, learners: Sequence[str], parameters: int, **sections: Any) -> Path:
    """A linear network of so many parameters, which nobody at the controller has data for."""
    features = parameters // 2 - 1
    raw: dict[str, Any] = {
        "algorithms": "fedavg",
        "data": {"source": {"name": "from_csv", "path": "elsewhere.csv", "label": "y"}, "split": {"learners": 2}},
        "model": {"name": "logistic_regression", "features": features, "classes": 2},
        "ending": {"rounds": 10},
        "federation": {"learners": list(learners), "example": [features], "classes": 2},
    }
    for name, section in sections.items():
        raw[name] = {**raw[name], **section} if isinstance(raw.get(name), dict) else section
    path = folder / "study.toml"
    path.write_text(tomlkit.dumps(raw))
    return path


def certify(folder: Path, learners: Sequence[str]) -> Path:
    """Papers for everybody."""
    papers = folder / "ca"
    authority.create_authority(papers)
    authority.issue(papers, "controller")
    for name in learners:
        authority.issue(papers, "learner", name)
    return papers


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def controller(folder: Path, study: Path, papers: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    with open(folder / "controller.log", "ab") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "archipel.cli", "controller", str(study)),
                *(
                    "--listen",
                    f"127.0.0.1:{port}",
                    "--tls",
                    str(papers / "controller"),
                    "--state",
                    str(folder / "state"),
                ),
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def peak_memory(pid: int) -> int:
    """Bytes of memory that a process had at most."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def proportional_memory(pids: Sequence[int]) -> int:
    """Bytes of memory of some processes together, what they share counted once."""
    found = 0
    for pid in pids:
        (pss,) = re.findall(r"^Pss: +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        found += int(pss) * 1024
    return found


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def crowd(
    folder: Path,
    study: Path,
    papers: Path,
    port: int,
    learners: Sequence[str],
    processes: int,
    echo: bool = False,
    parrot: bool = False,
) -> Iterator[list[Path]]:
    """Learners in so many processes; each process writes its receipts to a file when it ends."""
    context = multiprocessing.get_context("spawn")
    shares = [learners[i::processes] for i in range(processes)]
    files = [folder / f"receipts-{i}.jsonl" for i in range(processes)]
    workers = [
        context.Process(target=_learn, args=(study, papers, port, share, file, echo, parrot))
        for share, file in zip(shares, files, strict=True)
    ]
    for worker in workers:
        worker.start()
    try:
        yield files
    finally:
        for worker in workers:
            worker.join(120)
            if worker.is_alive():
                worker.kill()


def _learn(study: Path, papers: Path, port: int, learners: Sequence[str], file: Path, echo: bool, parrot: bool) -> None:
    narrowed = one_run(read_study(study))
    layout = host(narrowed).layout
    hello = pb.Hello(protocol=PROTOCOL, study=hashes_of(narrowed), layout=layout_hash(layout), examples=100, fresh=True)
    receipts: list[Receipt] = []

    async def go() -> None:
        crowd = []
        for name in learners:
            link = Timed(f"localhost:{port}", channel_credentials(papers / name), receipts, name)
            make = echoed() if echo else made_up
            crowd.append((Parrot if parrot else Light)(name, link, layout, hello, lambda *_: None, make=make))
        gc.collect()
        gc.freeze()  # a process with one learner would not have the others' objects to look through
        await asyncio.gather(*(light.run() for light in crowd))

    asyncio.run(go())
    file.write_text("".join(json.dumps(vars(receipt)) + "\n" for receipt in receipts))


def echoed() -> Callable[[np.ndarray, int], np.ndarray]:
    """What a learner makes that does not train, in the same memory again, as a network's parameters are."""
    spare: dict[int, Tensor] = {}

    def make(carried: np.ndarray, _: int) -> np.ndarray:
        out: np.ndarray = np.multiply(carried, np.float32(1.0000001), out=empty(len(carried), spare).numpy())
        return out

    return make


class Parrot(Light):
    """Says the same whatever it is given: what is left is the work of the line and of the controller."""

    said: Answer | None = None

    async def _work_at(self, order: pb.Train) -> Answer:
        self.sequence += 1
        if self.said is None:
            self.said = self._made(order, self.sequence, np.zeros(self.layout.size, np.float32))
        head, body = self.said
        again = pb.Head()
        again.CopyFrom(head)
        again.task, again.sequence = order.task, self.sequence
        return again, body


class Timed(Link):
    """A link that keeps how long receipts took."""

    def __init__(self, address: str, credentials: Any, receipts: list[Receipt], name: str) -> None:
        super().__init__(address, credentials)
        self.receipts, self.name = receipts, name

    async def answer(self, head: pb.Head, *body: Buffer) -> pb.Receipt:
        began = time.time()
        receipt = await super().answer(head, *body)
        self.receipts.append(Receipt(self.name, head.task, receipt.verdict, began, time.time() - began))
        return receipt


def read_receipts(files: Sequence[Path]) -> list[Receipt]:
    return [Receipt(**json.loads(line)) for file in files for line in file.read_text().splitlines()]

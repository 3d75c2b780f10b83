"""A cluster that is started with `ray start` and asks for a token, as the how-to shows, and drivers of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import archipel as ap
from archipel.simulation.cluster import connection, head_token
from archipel.simulation.cluster.connection import ClusterError
from tests.cluster.conftest import family, signal_all
from tests.federation.stage import free_port
from tests.forked import Forked
from tests.waiting import LIMIT, until

pytestmark = pytest.mark.slow

TOKEN = "0123456789abcdef" * 4
STUDY = """
title = "by hand"
loss = "own.py:slow"
ending = {rounds = 12}
algorithms = ["fedavg"]
[data]
source = "digits"
split = {learners = 4}
"""
OWN = """
import time
from pathlib import Path
from torch.nn.functional import cross_entropy

def slow(outputs, targets):
    if not Path({go!r}).exists():
        time.sleep(0.02)
    return cross_entropy(outputs, targets)
"""
DRIVER = """
import sys
from archipel.study import execute
execute.SAVE = 0.0  # a checkpoint at every look
from archipel.cli import main
sys.exit(main())
"""


@dataclass
class ByHand:
    """A head and nodes, each a process of `ray start --block`."""

    folder: Path
    port: int = field(default_factory=free_port)
    client: int = field(default_factory=free_port)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def variables(self) -> dict[str, str]:
        """What the cluster and its drivers have in their environments."""
        mine = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
        return {**os.environ, **mine}

    def head(self) -> None:
        ports = (f"--port={self.port}", f"--ray-client-server-port={self.client}")
        self._start("--head", *ports, "--include-dashboard=false", f"--temp-dir={self.folder}")

    def node(self) -> None:
        self._start(f"--address=127.0.0.1:{self.port}")

    def _start(self, *options: str) -> None:
        ray = shutil.which("ray", path=str(Path(sys.executable).parent))
        assert ray is not None
        log = self.folder / f"node-{len(self.started)}.log"
        command = [ray, "start", *options, "--num-cpus=1", "--object-store-memory=100000000", "--block"]
        with log.open("wb") as written:
            self.started.append(subprocess.Popen(command, env=self.variables, stdout=written, stderr=subprocess.STDOUT))
        until(lambda: "Ray runtime started" in log.read_text() and self._takes_drivers(), log.read_text)

    def _takes_drivers(self) -> bool:
        """Return whether the head listens for drivers, which it does some time after it says that it has started."""
        return not any(connection.connection_trouble("127.0.0.1", port, 1.0) for port in (self.port, self.client))

    def end(self) -> None:
        for process in reversed(self.started):
            whole = family(process.pid)
            process.terminate()
            process.wait(LIMIT)
            signal_all(whole, signal.SIGKILL)

    def driver(self, log: Path, *command: str | Path) -> Forked:
        with log.open("wb") as said:
            return Forked(
                command, environment=self.variables, streams=(None, said.fileno(), said.fileno()), program=DRIVER
            )


@pytest.fixture(scope="module")
def by_hand() -> Iterator[ByHand]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as short:  # sockets have short names
        made = ByHand(Path(short))
        try:
            made.head()
            yield made
        finally:
            made.end()


@pytest.mark.parametrize(
    ("variables", "refused"),
    [
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}, False),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "right"}, False),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}, True),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "missing"}, True),
        ({"RAY_AUTH_TOKEN": TOKEN}, True),  # Ray does not send it
        ({}, True),
    ],
)
def test_a_token_that_is_missing_or_wrong_is_refused_at_once(
    by_hand: ByHand, variables: dict[str, str], refused: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "right").write_text(TOKEN + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for address in (f"127.0.0.1:{by_hand.port}", f"ray://127.0.0.1:{by_hand.client}"):
        if not refused:
            connection.check_address(address)
            assert not head_token.refuses_token(address)
            continue
        with pytest.raises(ClusterError, match=r"asks for a token, and this machine's is missing or another one\. Set"):
            connection.check_address(address)


def test_a_driver_that_is_killed_is_resumed_with_one_node_more(by_hand: ByHand, tmp_path: Path) -> None:
    study, results = tmp_path / "study.toml", tmp_path / "results"
    study.write_text(STUDY)
    go = tmp_path / "go"
    (tmp_path / "own.py").write_text(OWN.format(go=str(go)))
    log = tmp_path / "driver.log"
    killed = by_hand.driver(log, "run", study, "--out", results, "--cluster", f"127.0.0.1:{by_hand.port}")

    def has_checkpoint() -> bool:
        assert killed.poll() is None, log.read_text()
        return bool(list(results.rglob("checkpoint.safetensors")))

    try:
        until(has_checkpoint, "a checkpoint")
    finally:
        killed.kill()
        killed.wait()
    assert not list(results.rglob("run.json"))
    go.touch()
    by_hand.node()
    resumed = by_hand.driver(log, "run", "--resume", results, "--cluster", f"ray://127.0.0.1:{by_hand.client}")
    assert resumed.wait(LIMIT) == 0, log.read_text()
    (spread,) = ap.load_results(results)
    (here,) = ap.run_study(study, tmp_path / "here", processes=1)
    assert torch.equal(spread.model, here.model)
    assert spread.records == here.records

"""The same round in Flower: a SuperLink, four SuperNodes and `flwr run`, its own programs in its own environment.

The SuperLink shows a certificate and the SuperNodes none; a SuperNode and the app that it starts talk in the clear.
All else is what Flower does unless told otherwise: apps in subprocesses, and the SuperLink's state in memory, so that
nothing of a round outlives a crash.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import tomlkit

from archipel.federation.security import authority
from archipel.federation.security.key_files import AUTHORITY, CERTIFICATE, KEY
from benchmarks.environments.prepare import prepare
from benchmarks.federation.crowd import free_port

NODES = 4
PATIENCE = 900.0
"""Seconds that a run may take."""


def rounds(parameters: int, count: int) -> list[float]:
    """Seconds of each round of FedAvg, by the server's clock; the first has the SuperNodes' start in it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        ticks, log = folder / "ticks", folder / "log"
        port = free_port()
        papers = _certify(folder)
        _write_project(folder, port, papers, parameters=parameters, rounds=count, nodes=NODES, ticks=str(ticks))
        try:
            _run(folder, log, port, papers)
        finally:
            _end_all(folder)
        if not ticks.exists():
            raise RuntimeError(f"Flower did not make its {count} rounds:\n{log.read_text()[-5000:]}")
        times = json.loads(ticks.read_text())
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _certify(folder: Path) -> Path:
    authority.create_authority(folder / "ca")
    return authority.issue(folder / "ca", "controller").folder


def _write_project(folder: Path, port: int, papers: Path, **config: object) -> None:
    """The app, and where `flwr run` finds the SuperLink."""
    (folder / "app").mkdir()
    shutil.copy(Path(__file__).with_name("flower_app.py"), folder / "app" / "echo.py")
    project = {
        "project": {"name": "echo", "version": "1.0.0", "description": "", "license": ""},
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "here",
                    "components": {"serverapp": "echo:server", "clientapp": "echo:client"},
                    "config": config,
                }
            }
        },
    }
    (folder / "app" / "pyproject.toml").write_text(tomlkit.dumps(project))
    link = {"address": f"127.0.0.1:{port}", "root-certificates": str(papers / AUTHORITY)}
    (folder / "config.toml").write_text(tomlkit.dumps({"superlink": {"default": "here", "here": link}}))


def _run(folder: Path, log: Path, port: int, papers: Path) -> None:
    programs = prepare("flower").parent
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",  # they start one another by name
        "HOME": str(folder),
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }

    with open(log, "ab") as said:

        def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
            command = [str(programs / program), *arguments]
            return subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=said)

        superlink = start(
            "flower-superlink",
            *("--port", str(port), "--disable-runtime-dependency-installation"),
            *("--ssl-certfile", str(papers / CERTIFICATE), "--ssl-keyfile", str(papers / KEY)),
            *("--ssl-ca-certfile", str(papers / AUTHORITY)),
        )
        _wait_for(superlink, port, log)
        for number in range(NODES):
            start(
                "flower-supernode",
                *("--superlink", f"127.0.0.1:{port}", "--root-certificates", str(papers / AUTHORITY)),
                *("--port", str(free_port()), "--node-config", f"number={number}"),
            )
        with suppress(subprocess.TimeoutExpired):
            start("flwr", "run", "app", "--stream").wait(PATIENCE)


def _wait_for(superlink: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while superlink.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"Flower's SuperLink does not listen:\n{log.read_text()[-5000:]}")


def _end_all(home: Path) -> None:
    """Kill whatever was started with this home: Flower's programs start others, in sessions of their own."""
    mark = f"FLWR_HOME={home}\0".encode()
    while found := [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path)]:
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""

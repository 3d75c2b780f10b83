"""Running contenders: each lap a process of its own, watched from outside, all contenders in turn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contenders.protocol import SPAWNED
from benchmarks.entries import Entry

ROOT = Path(__file__).parent.parent
PATIENCE = 3600.0
"""Seconds after which a lap is given up."""


def race(
    entries: Sequence[Entry], workload: str, repeats: int, rounds: int | None = None
) -> Iterator[tuple[Entry, int, dict[str, Any]]]:
    """Laps of all entries in turn, so that a busy spell of the machine meets all of them; another begins each time."""
    for repeat in range(repeats):
        first = repeat % len(entries)
        for entry in (*entries[first:], *entries[:first]):
            yield entry, repeat, lap(entry, workload, rounds)


def lap(entry: Entry, workload: str, rounds: int | None = None, root: Path = ROOT) -> dict[str, Any]:
    """One run of one contender: what it says of itself, and `whole` and `peak_mb` as seen from outside.

    A lap that went wrong has `failed` instead. root: where the source is; another one is installed there in `site`.
    """
    command = [str(entry.python()), "-m", f"benchmarks.contenders.{entry.script}", "--workload", workload]
    command += [] if rounds is None else ["--rounds", str(rounds)]
    command += [word for name, value in entry.options.items() for word in (f"--{name}", value)]
    spawned = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=root,
        env={**os.environ, SPAWNED: repr(spawned)} | ({} if root == ROOT else {"PYTHONPATH": str(root / "site")}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    samples: list[tuple[float, float]] = []
    output = errors = None
    while output is None:
        began = time.monotonic()
        samples.append((began - spawned, held(process.pid)))
        # reading a large process's pages stops it for a moment: watch for a twentieth of the time at most
        rest = max(0.05, 20 * (time.monotonic() - began))
        try:
            output, errors = process.communicate(timeout=rest)
        except subprocess.TimeoutExpired:
            if time.monotonic() - spawned > PATIENCE:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return {"failed": f"it was not done after {PATIENCE:.0f} s"}
    exited = time.monotonic() - spawned
    if process.returncode != 0:
        return {"failed": _last_line(errors or "") or f"it ended with code {process.returncode}"}
    try:
        line: dict[str, Any] = json.loads(_last_line(output))
    except json.JSONDecodeError:
        return {"failed": f"its last line is no JSON: {_last_line(output)!r}"}
    if "cannot" not in line:
        line["whole"] = exited - line["checking"]
        line["peak_mb"] = max(megabytes for when, megabytes in samples if when <= line["stopped"])
    return line


def held(process: int) -> float:
    """Megabytes of memory that a process and its descendants hold.

    One process: what is resident. Several: what they share is counted once (their proportional set sizes).
    """
    tree = _tree(process)
    if len(tree) > 1:
        return sum(_field(f"/proc/{pid}/smaps_rollup", "Pss:") for pid in tree) / 1024
    return _field(f"/proc/{process}/status", "VmRSS:") / 1024


@contextmanager
def watched() -> Iterator[list[float]]:
    """Watch what this process and its descendants hold; the list has the megabytes at their peak."""
    peak, done = [held(os.getpid())], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            peak[0] = max(peak[0], held(os.getpid()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def _tree(process: int) -> list[int]:
    pids = [process]
    for pid in pids:  # grows while it is walked
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            pids += map(int, _read(children).split())
    return pids


def _field(path: str, name: str) -> int:
    """A number of a file in /proc; 0 where the process has ended."""
    return next((int(line.split()[1]) for line in _read(Path(path)).splitlines() if line.startswith(name)), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")

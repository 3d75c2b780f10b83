"""What strangers cost a controller: its rate and its memory while they do what they can, over mutual TLS on loopback.

    python -m benchmarks.federation.strangers --out benchmarks/measured/strangers.json

Strangers are callers without a certificate, or with one of the authority whose name is not on the study's list. The
rate is that of durable updates of five learners, in windows before, during and after each attack. Controller, learners
and strangers share the machine, so part of what is lost is the strangers' own work. Updates for each second of the
controller's CPU time tell the controller's own part, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import grpc

from archipel.federation.security.authority import issue
from archipel.federation.security.tls import channel_credentials
from archipel.federation.wire.channel import NAME
from benchmarks.federation.crowd import cpu_seconds
from tests.federation.stage import Crowd, Process, Setting, Stage, set_up
from tests.waiting import until

WINDOW = 6.0
"""Seconds over which a rate is measured."""
WINDOWS = 2
"""Of an attack; one before it and one after it are compared with them."""
NEVER = 1 << 40
GROWTH = 64
"""Megabytes that memory may grow by."""
AT_ONCE = 400
"""Refused calls that are open."""
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The beginning of a TLS handshake that is never finished."""


# ------------------------------------------------------------------------------------------------------------ attacks


@contextmanager
def connections(stage: Stage, count: int, first: bytes = b"") -> Iterator[dict[str, int]]:
    """Hold connections open; each says these bytes and nothing more."""
    with ExitStack() as held:
        refused = 0
        for _ in range(count):
            try:
                one = held.enter_context(socket.create_connection(("127.0.0.1", stage.port), timeout=10))
                one.sendall(first)
            except OSError:
                refused += 1
        yield {"connections": count, "refused by the kernel": refused}


@contextmanager
def calls(stage: Stage, count: int, kind: str) -> Iterator[dict[str, int]]:
    """Have another process make calls with a certificate that is not listed."""
    context = multiprocessing.get_context("spawn")
    begun, end, told = context.Event(), context.Event(), context.Queue()
    papers = str(stage.folder / "ca" / "stranger")
    process = context.Process(target=_call, args=(stage.address, papers, count, kind, begun, end, told))
    process.start()
    begun.wait(120)
    outcome: dict[str, int] = {}
    try:
        yield outcome
    finally:
        end.set()
        outcome |= told.get(timeout=300)
        process.join()


def _call(address: str, papers: str, count: int, kind: str, begun: Event, end: Event, told: Any) -> None:
    """In its own process: "refused" calls are as many at a time as may be open, "slow" ones never end."""
    options = [("grpc.use_local_subchannel_pool", 1)]  # each channel is a connection
    channels = [grpc.secure_channel(address, channel_credentials(Path(papers)), options) for _ in range(4)]
    codes: dict[str, int] = {}
    if kind == "refused":
        beats = [one.unary_unary(f"/{NAME}/Beat", bytes, bytes) for one in channels]
        waiting: deque[Any] = deque()
        for number in range(count + AT_ONCE):
            if number < count:
                waiting.append(beats[number % len(beats)].future(b"", timeout=60))
            if number >= AT_ONCE and waiting:
                code = _ending(waiting.popleft())
                codes[code] = codes.get(code, 0) + 1
                begun.set()
    else:
        answer = channels[0].stream_unary(f"/{NAME}/Answer", bytes, bytes)

        def endless() -> Iterator[bytes]:
            yield bytes(1 << 20)
            end.wait()

        open_calls = [answer.future(endless()) for _ in range(count)]
        begun.set()
        end.wait()
        for one in open_calls:
            one.cancel()
        codes["calls"] = count
    told.put(codes)


def _ending(call: Any) -> str:
    """Return a call's status, and whether its stream was refused before it reached the controller (HTTP/2, error 7)."""
    refused = "error code 7" in (call.debug_error_string() or "")
    return f"{call.code().name}{', stream refused' if refused else ''}"


# ---------------------------------------------------------------------------------------------------------- measuring


def memory(process: Process) -> float:
    """Return the controller's resident megabytes."""
    status = Path(f"/proc/{process.controller}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


@dataclass
class Window:
    """What happened in some seconds."""

    updates: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    """Seconds of the controller's."""
    peak: float = 0.0
    """Megabytes."""


def window(crowd: Crowd, process: Process) -> Window:
    pid = process.controller
    assert pid is not None
    kept, began, cpu, found = crowd.kept, time.monotonic(), cpu_seconds(pid), Window()
    while time.monotonic() - began < WINDOW:
        found.peak = max(found.peak, memory(process))
        time.sleep(0.2)
    return Window(crowd.kept - kept, time.monotonic() - began, cpu_seconds(pid) - cpu, found.peak)


def share(under: Sequence[Window], calm: Sequence[Window], unit: str) -> float:
    """Return the rate under attack relative to the rate without, by seconds or by CPU time."""
    fast, slow = (
        sum(one.updates for one in windows) / sum(getattr(one, unit) for one in windows) for windows in (calm, under)
    )
    return float(round(slow / fast, 3))


def measure(crowd: Crowd, process: Process, attack: Callable[[], Any]) -> dict[str, Any]:
    base = memory(process)
    calm = [window(crowd, process)]
    with attack() as outcome:
        under = [window(crowd, process) for _ in range(WINDOWS)]
    until(lambda: memory(process) < base + GROWTH, "memory to come back", 300)
    after = memory(process)
    calm.append(window(crowd, process))
    return {
        **outcome,
        "updates_a_second": {
            "quiet": [round(one.updates / one.seconds, 1) for one in calm],
            "attacked": [round(one.updates / one.seconds, 1) for one in under],
        },
        "share_of_the_rate": share(under, calm, "seconds"),
        "share_of_updates_a_cpu_second": share(under, calm, "cpu"),
        "megabytes": {"before": round(base), "peak": round(max(one.peak for one in under)), "after": round(after)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--attacks", nargs="+", help="only these; others that were stored stay")
    parser.add_argument("--share", type=float, default=1.0, help="of the full number of connections and calls")
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    stored = given.out is not None and given.out.exists()
    found: dict[str, Any] = json.loads(given.out.read_text()) if stored else {}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        stage = set_up(Path(name), Setting('"async_fedavg"', NEVER, keep_updates=False, snapshot_every=100))
        issue(stage.folder / "ca", "learner", "stranger")
        process = stage.controller()
        attacks: dict[str, Callable[[], Any]] = {
            "idle connections": partial(connections, stage, int(5000 * given.share)),
            "half-open TLS": partial(connections, stage, int(2000 * given.share), HELLO),
            "refused calls": partial(calls, stage, int(10_000 * given.share), "refused"),
            "slow senders": partial(calls, stage, 100, "slow"),
        }
        try:
            with Crowd(stage) as crowd:
                until(lambda: crowd.kept > 200, "the first updates", 300)
                for what, attack in attacks.items():
                    if given.attacks and what not in given.attacks:
                        continue
                    found[what] = measure(crowd, process, attack)
                    print(what, json.dumps(found[what], indent=1), flush=True)
            found["restarts"] = process.said.count('"restarts"')
        finally:
            process.kill()
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

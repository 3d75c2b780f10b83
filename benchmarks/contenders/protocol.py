"""What a contender is asked and what it answers: arguments in, one JSON line out.

Needs numpy alone, as workloads.py does. A contender is run as `python -m benchmarks.contenders.<name>` and reads like
this:

    lap = Lap()                       # after the imports
    workload = lap.workload
    ...                               # data and model
    lap.ready()
    for chosen in selections(workload):
        ...
        lap.round()
    lap.tell("bare", version, setting="2 threads", updates=..., steps=..., loss=lambda: ...)
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from benchmarks.workloads import WORKLOADS

SPAWNED = "BENCHMARK_SPAWNED"
"""The variable in which the harness says when it started this process, on the monotonic clock all processes share."""

_STARTED = float(os.environ.get(SPAWNED, time.monotonic()))


class Lap:
    """A contender's stopwatch, in seconds since its process was started."""

    def __init__(self, arguments: Sequence[str] | None = None, **options: str) -> None:
        """options: this contender's own, by name, with their defaults; found in `self.options`."""
        self._imported = self._now()
        parser = argparse.ArgumentParser()
        parser.add_argument("--workload", choices=WORKLOADS, required=True)
        parser.add_argument("--rounds", type=int, help="instead of the workload's own number")
        for name, default in options.items():
            parser.add_argument(f"--{name}", default=default)
        given = vars(parser.parse_args(arguments))
        workload = WORKLOADS[given.pop("workload")]
        rounds = given.pop("rounds")
        self.workload = workload if rounds is None else replace(workload, rounds=rounds)
        self.options: dict[str, str] = given
        self._ready = 0.0
        self._rounds: list[float] = []

    def ready(self) -> None:
        """Data and model are there; training begins."""
        self._ready = self._now()

    def round(self) -> None:
        """A round has ended, its model merged."""
        self._rounds.append(self._now())

    def rounds(self, ends: Sequence[float]) -> None:
        """All rounds' ends at once, in seconds on the monotonic clock, for a contender that notes them itself."""
        self._rounds = [end - _STARTED for end in ends]

    def tell(
        self, contender: str, version: str, *, setting: str, updates: int, steps: int, loss: Callable[[], float]
    ) -> None:
        """Print the answer.

        updates and steps: of all learners in all rounds; loss: the final model's mean over all learners' data, which is
        worked out here because checking is nobody's work: its time and memory are left out.
        """
        peak = _peak()
        stopped = self._now()
        final = loss()
        line = {
            "contender": contender,
            "version": version,
            "workload": self.workload.name,
            "setting": setting,
            "imported": self._imported,
            "ready": self._ready,
            "rounds": self._rounds,
            "updates": updates,
            "steps": steps,
            "loss": final,
            "stopped": stopped,
            "checking": self._now() - stopped,
            "peak_rss_mb": peak,
        }
        print(json.dumps(line), flush=True)

    def cannot(self, contender: str, reason: str) -> NoReturn:
        """Say that this contender has no way to do this work, and end."""
        print(json.dumps({"contender": contender, "workload": self.workload.name, "cannot": reason}), flush=True)
        sys.exit(0)

    @staticmethod
    def _now() -> float:
        return time.monotonic() - _STARTED


def _peak() -> float:
    """Own peak and the largest child's; the harness samples the whole tree besides."""
    return sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024

"""Kill the controller with SIGKILL: how long until a learner hears that an update is safe?

    python -m benchmarks.federation.recovery [--learners 100] [--parameters 1000000] [--kills 10] [--out FILE]

The clock runs from the kill to the first receipt after it. Two kinds of kills take turns: of the controller, which its
keeper forks again; and of both, after which the command is started again at once, as systemd would, so that Python's
own start and the imports count. Where the time goes is told by marks in a second set of kills: their processes are the
same but for the marks.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import facts, load
from tests.federation.stage import Crowd, Process, Setting, set_up

MARKED = """
import json, os, sys, time

def mark(name, at=None):
    print(json.dumps({"mark": name, "at": at or time.time()}), file=sys.stderr, flush=True)

mark("python")
from archipel.cli.loading import loading
with loading():
    import numpy, torch
    mark("torch")
    import archipel.cli.controller, archipel.federation.processes, archipel.executors.choice
    import archipel.study.federate, archipel.study.files
mark("archipel")
os.register_at_fork(after_in_child=lambda: mark("forked"))
opened = archipel.study.federate.Hosting.open

def open_(self, folder):
    mark("study")
    federation = opened(self, folder)
    mark("journal")
    return federation

archipel.study.federate.Hosting.open = open_
from archipel.cli import main
main()
"""
IMPORTS = {
    "python": "Python starts",
    "torch": "numpy and torch are imported",
    "archipel": "grpc, pydantic and Archipel are imported",
}
REST = {
    "forked": "the controller is forked",
    "study": "the study is read and the network made",
    "journal": "the last snapshot is read and what came after it told again",
    "listening": "it listens",
    "receipt": "learners connect, and the first update is brought, checked and on disk",
}
KILLED = {"controller": REST, "keeper and controller": IMPORTS | REST}
"""Who is killed, and the steps until the next receipt."""
COMMITS = 1_000_000
"""It does not end by itself."""
AT_WORK = 5
"""Updates after which the next kill may come."""


def measure(learners: int, parameters: int, kills: int, algorithm: str, delay: float) -> dict[str, Any]:
    hidden = 500
    features = (parameters - 3 * hidden) // hidden
    setting = Setting(
        json.dumps(algorithm),
        COMMITS,
        learners=learners,
        features=features,
        hidden=(hidden,),
        snapshot_every=10,
        evaluate_every=COMMITS,
        keep_updates=False,
        delay=delay,
    )
    times: dict[str, list[float]] = {who: [] for who in KILLED}
    steps: dict[str, list[dict[str, float]]] = {who: [] for who in KILLED}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        stage = set_up(Path(folder), setting)
        with Crowd(stage) as crowd:
            process = stage.controller()
            _wait_for(lambda: crowd.kept >= learners // 2, process)
            for number in range(2 * kills):
                marked = number % 2 == 1
                for who in reversed(KILLED):  # the command that is started last is the one whose controller is killed
                    at = time.time()
                    if who == "controller":
                        killed = process.kill_controller()
                        process.go_on()
                    else:
                        killed = process.kill()
                        process = stage.controller(code=MARKED if marked else None)
                    _wait_for(lambda: process.listening, process)  # noqa: B023
                    before = crowd.kept  # receipts of the old process may have been under way
                    _wait_for(lambda: crowd.kept > before, process)  # noqa: B023
                    seconds = crowd.kept_at[before] - killed
                    if marked:
                        steps[who].append(_steps(process, KILLED[who], at, at + seconds))
                    else:
                        times[who].append(seconds)
                    _wait_for(lambda: crowd.kept >= before + AT_WORK, process)  # noqa: B023
            process.kill()
    return {
        "learners": learners,
        "parameters": stage.hosting.layout.size,
        "algorithm": algorithm,
        "killed": {
            who: {
                "seconds": [round(one, 3) for one in times[who]],
                "steps": {name: round(statistics.median(one[name] for one in steps[who]), 3) for name in KILLED[who]},
            }
            for who in KILLED
        },
    }


def _wait_for(done: Callable[[], bool], process: Process) -> None:
    deadline = time.monotonic() + 120
    while not done():
        if process.ended or time.monotonic() > deadline:
            raise RuntimeError(f"The controller is gone, or too slow:\n{process.last_words()}")
        time.sleep(0.002)


def _steps(process: Process, names: Iterable[str], killed: float, receipt: float) -> dict[str, float]:
    """Seconds of each step."""
    marks = {}
    for line in process.last_life().splitlines():
        told = json.loads(line) if line.startswith("{") else {}
        if "mark" in told:
            marks[told["mark"]] = told["at"]
        if told.get("event") == "listening":
            marks["listening"] = datetime.fromisoformat(told["at"]).timestamp()
    marks["receipt"] = receipt
    before, found = killed, {}
    for name in names:
        found[name], before = marks[name] - before, marks[name]
    return found


def show(results: Sequence[dict[str, Any]]) -> None:
    for result in results:
        print(f"{result['algorithm']}, {result['learners']} learners, {result['parameters']:,} parameters")
        for who, told in result["killed"].items():
            times = sorted(told["seconds"])
            print(
                f"  kill -9 of the {who}: from kill to first receipt {statistics.median(times):.2f} s "
                f"({times[0]:.2f} to {times[-1]:.2f}, {len(times)} kills)"
            )
            for name, seconds in told["steps"].items():
                print(f"    {seconds:6.3f} s  until {KILLED[who][name]}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federation.recovery", description=__doc__)
    parser.add_argument("--learners", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--algorithms", nargs="+", default=["fedavg", "async_fedavg"])
    parser.add_argument("--delay", type=float, default=0.5, help="seconds that a learner trains")
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    given = parser.parse_args()
    logging.getLogger("archipel.learner").setLevel(logging.ERROR)
    before = load()
    results = [
        measure(given.learners, given.parameters, given.kills, algorithm, given.delay) for algorithm in given.algorithms
    ]
    show(results)
    if given.out:
        told = {"machine": facts(), "load before": before, "recovery": results}
        given.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()

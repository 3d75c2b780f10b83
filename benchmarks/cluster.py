"""Simulations on a Ray cluster on this machine, beside the same ones on local workers.

`python -m benchmarks.cluster [workloads sleeping losses memory]` prints figures; --out FILE stores them, beside the
parts that the file has already. `python -m benchmarks.page` writes measured/cluster.json into the page on performance.

workloads: W1 and W3 on two one-core nodes against local workers, both after start-up, in turns.
sleeping: learners that sleep instead of computing, a million parameters, 2 to 64 actors: how well the driver keeps them
busy, and the processor time that a task costs the driver, Ray's processes and the actors, which share this machine.
losses: an actor killed, an actor stopped, a node stopped, a node killed: how much longer a run takes.
memory: the driver's peak with ten million parameters, and with a small network.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import archipel as ap
from archipel.simulation.cluster.executor import ClusterExecutor
from archipel.simulation.simulate import prepare
from archipel.simulation.simulator import Simulator
from benchmarks.contenders.archipel_ import _fleet, _islands, _local
from benchmarks.contenders.networks import network
from benchmarks.machine import facts, load
from benchmarks.workloads import WORKLOADS

PARTS = ("workloads", "sleeping", "losses", "memory")
HEALTH = {"period_ms": "1000", "timeout_ms": "1000", "failure_threshold": "3", "initial_delay_ms": "1000"}
STORE = 2_000_000_000
"""Bytes of each node's object store: twice the examples of W3, and the models of two tasks of each of 64 actors."""


@contextmanager
def machines(nodes: int, cpus: int = 1, *, head: int = 0) -> Iterator[Any]:
    """Start a cluster of this many nodes, beside the head, where the driver is; head: its cores."""
    for name, value in HEALTH.items():
        os.environ[f"RAY_health_check_{name}"] = value
    import ray
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": STORE}
    first = {"num_cpus": head, "include_dashboard": False, **store}
    cluster: Any = Cluster(initialize_head=True, head_node_args=first)
    try:
        cluster.archipel_nodes = [cluster.add_node(num_cpus=cpus, **store) for _ in range(nodes)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def wait_for_actors(simulator: Simulator, count: int) -> None:
    """Wait until this many actors are ready."""
    executor = simulator.executor
    assert isinstance(executor, ClusterExecutor)
    while len(executor.pool.ready) < count:
        executor.look()
        executor.pool.wait(0.05)


def timed(simulator: Simulator) -> float:
    began = time.monotonic()
    simulator.run()
    return time.monotonic() - began


# ---------------------------------------------------------------------------------------------------------- workloads


def workload(name: str, cluster: str | None, rounds: int) -> Simulator:
    """Return a workload of the race, ready to run."""
    work = WORKLOADS[name]
    simulator = prepare(
        ap.fedavg(work.per_round / work.learners, **_local(work)),
        _islands(work),
        model=network(work),
        fleet=_fleet(work),
        ending=ap.Ending(commits=rounds),
        execution="workers",
        cluster=cluster,
    )
    simulator.begin()
    return simulator


def workloads(repeats: int) -> dict[str, Any]:
    """Measure W1 and W3, here and on the cluster in turns; the models must be equal."""
    found: dict[str, Any] = {}
    with machines(2):
        for name, rounds in (("W1", 20), ("W3", 5)):
            ratios = []
            for _ in range(repeats):
                here = workload(name, None, rounds)
                alone = timed(here)
                there = workload(name, "auto", rounds)
                wait_for_actors(there, 2)
                spread = timed(there)
                same = torch.equal(
                    *(one.controller.models.read(one.controller.state.model.name) for one in (here, there))
                )
                assert same, f"{name}: the models differ"
                here.close()
                there.close()
                ratios.append(spread / alone)
            found[name] = {"time over local workers": ratios, "median": statistics.median(ratios)}
    return found


# ------------------------------------------------------------------------------------------------------------ sleeping


class Sleeping(nn.Module):
    """A network of this many parameters whose training step sleeps; only four parameters have gradients to compute."""

    def __init__(self, parameters: int, seconds: Path) -> None:
        """seconds: a file that holds how long."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(max(1, parameters - 4)))
        self.head = nn.Linear(1, 2)
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            time.sleep(float(self.seconds.read_text()))
        out: Tensor = self.head(x)
        return out


def sleepers(parameters: int, seconds: Path, learners: int, commits: int = 1 << 20) -> Simulator:
    """Return a stream of learners that sleep, one step each, ready to run; it is scored at the end only."""
    data = ap.data.from_arrays(torch.ones(4 * learners, 1).numpy(), torch.arange(4 * learners).remainder(2).numpy())
    simulator = prepare(
        ap.async_fedavg(batch=2, epochs=1),
        data.split(learners=learners, test=0.5),
        model=lambda: Sleeping(parameters, seconds),
        ending=ap.Ending(commits=commits),
        evaluation=ap.Evaluation(every=commits),
        execution="workers",
        cluster="auto",
    )
    simulator.begin()
    return simulator


PLACES = {"driver's node": (2, 4, 16, 64), "another node": (2, 4, 16)}
"""Where actors are, and how many: models travel through shared memory, or from one node's memory to the other's."""
SLEEPS = (20, 50, 200)
"""Milliseconds that a task takes."""
TASKS = 10
"""Of each actor, in a measurement."""
SKIPPED = 4
"""Of each actor, before it."""
EVENTS = 2
"""Of each task, in a simulation."""


def sleeping(repeats: int) -> dict[str, Any]:
    """Measure how busy actors are kept; predict it from the processor time that a task costs."""
    rows = []
    for place, counts in PLACES.items():
        for actors in counts:
            there = place == "another node"
            with machines(1 if there else 0, actors, head=0 if there else actors):
                for row in slept(actors):
                    rows.append({"actors on": place, **row})
                    print(json.dumps(rows[-1]), flush=True)
    for row in rows:
        # of the runs at the same place, the one that asked the most of the driver
        (*_, hardest) = sorted((one for one in rows if one["actors on"] == row["actors on"]), key=_asked)
        row["predicted here"] = predicted(row, hardest, pace(hardest))
        row["predicted, actors elsewhere"] = predicted(row, hardest, hardest[DRIVER])
    (*_, hardest) = sorted(rows, key=_asked)
    carried = {f"tasks of {seconds} s": int(seconds / (0.8 * hardest[DRIVER])) for seconds in (1, 10, 60)}
    return {"rows": rows, "actors that one driver carries at 0.8": carried}


DRIVER, RAY, ACTORS = "driver", "Ray's own processes", "the actors"
"""Whose processor seconds a task are told."""


def _asked(row: dict[str, Any]) -> float:
    return float(row["actors"] / row["seconds"])


def predicted(row: dict[str, Any], hardest: dict[str, Any], pace: float) -> float:
    """Return the efficiency if an actor takes its own time for a task beside the sleep, and the driver this pace."""
    return float(row["seconds"] / max(row["seconds"] + hardest[ACTORS], row["actors"] * pace))


def pace(row: dict[str, Any]) -> float:
    """Return the least seconds from task to task: the driver's own, or those of all that shares the cores here."""
    cores = len(os.sched_getaffinity(0))
    return float(max(row[DRIVER], (row["process of the driver"] + row[RAY] + row[ACTORS]) / cores))


def slept(actors: int) -> Iterator[dict[str, Any]]:
    """Have actors sleep in each task, as long as SLEEPS say; the first tasks after a change do not count."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seconds"
        file.write_text("0")
        # two learners for each actor, so that the next task can travel while an actor works
        simulator = sleepers(1_000_000, file, 2 * actors)
        wait_for_actors(simulator, actors)
        for milliseconds in SLEEPS:
            seconds = milliseconds / 1000
            (Path(folder) / "next").write_text(str(seconds))
            (Path(folder) / "next").replace(file)
            simulator.run(events=EVENTS * SKIPPED * actors)
            before, version = {**processor_seconds(), DRIVER: time.thread_time()}, simulator.controller.state.version
            began = time.monotonic()
            simulator.run(events=EVENTS * TASKS * actors)
            took = time.monotonic() - began
            after, tasks = (
                {**processor_seconds(), DRIVER: time.thread_time()},
                simulator.controller.state.version - version,
            )
            yield {
                "actors": actors,
                "seconds": seconds,
                "efficiency": tasks * seconds / (actors * took),
                "seconds a task": took / tasks,
                **{who: (after[who] - before[who]) / tasks for who in after},
            }
        simulator.close()


def processor_seconds() -> dict[str, float]:
    """Return what the driver with all its threads, Ray's processes and the actors have used."""
    used = {RAY: 0.0, ACTORS: 0.0, "process of the driver": time.process_time()}
    for process in descendants(os.getpid()):
        with suppress(OSError):
            name, rest = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)
            ticks = rest.split()[11:13]  # in user space and in the kernel
            used[ACTORS if "ray::" in name else RAY] += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return used


# -------------------------------------------------------------------------------------------------------------- losses


def losses(repeats: int) -> dict[str, Any]:
    """Measure what a run takes longer if an actor is killed, a node is killed, or an actor is stopped."""
    found: dict[str, Any] = {}
    rounds = 10
    with machines(2) as cluster:

        def run(lose: Callable[[Simulator], None] | None) -> float:
            simulator = workload("W1", "auto", rounds)
            wait_for_actors(simulator, 2)
            began = time.monotonic()
            simulator.run(events=60)
            if lose is not None:
                lose(simulator)
            simulator.run()
            seconds = time.monotonic() - began
            simulator.close()
            return seconds

        def actor(simulator: Simulator) -> int:
            executor = simulator.executor
            assert isinstance(executor, ClusterExecutor)
            return executor.pool.ready[0].process

        whole = run(None)
        found["nothing lost"] = whole
        found["actor killed: seconds more"] = run(lambda one: os.kill(actor(one), signal.SIGKILL)) - whole
        found["actor stopped: seconds more"] = run(lambda one: os.kill(actor(one), signal.SIGSTOP)) - whole
        stopped = cluster.archipel_nodes[0]
        found["node stopped: seconds more"] = run(lambda one: signal_node(stopped, signal.SIGSTOP)) - whole
        signal_node(stopped, signal.SIGKILL)
        cluster.archipel_nodes[0] = cluster.add_node(num_cpus=1)
        found["node killed: seconds more"] = (
            run(lambda one: cluster.remove_node(cluster.archipel_nodes.pop(), allow_graceful=False)) - whole
        )
    return found


def signal_node(node: Any, number: signal.Signals) -> None:
    """Signal all processes of a node: its raylet and what that has started."""
    raylet = node.all_processes["raylet"][0].process.pid
    for process in [raylet, *descendants(raylet)]:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def descendants(parent: int) -> list[int]:
    """Return the processes that a process has started, and theirs."""
    children = [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return [*children, *(one for child in children for one in descendants(child))]


# -------------------------------------------------------------------------------------------------------------- memory


def memory(repeats: int) -> dict[str, Any]:
    """Measure the driver's peak with a large and with a small network, each in a process of its own."""
    peaks = {}
    for parameters in (24, LARGE):
        command = [sys.executable, "-m", "benchmarks.cluster", "--peak", str(parameters)]
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        peaks[parameters] = int(ran.stdout.splitlines()[-1])
    return {
        "parameters": LARGE,
        "actors": HOLDING,
        "learners": 64,
        "model (MB)": LARGE * 4 / 1e6,
        "driver (MB)": peaks[LARGE] / 1e6,
        "driver with a small network (MB)": peaks[24] / 1e6,
    }


LARGE = 10_000_000
HOLDING = 8
"""Actors of the measurement of memory: 64 would need more memory than a small machine has."""


def peak(parameters: int) -> None:
    """Print this process's peak of memory after a stream of 64 learners on a few actors."""
    with machines(1, HOLDING), tempfile.NamedTemporaryFile("w") as seconds:
        seconds.write("0.05")
        seconds.flush()
        simulator = sleepers(parameters, Path(seconds.name), 64, 128)
        wait_for_actors(simulator, HOLDING)
        simulator.run()
        simulator.close()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help="all, if none is named")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak is not None:
        peak(given.peak)
        return
    found: dict[str, Any] = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    for part in given.parts or PARTS:
        before = load()
        found |= {"machine": facts(), part: {"load before": before, **globals()[part](given.repeats)}}
        print(json.dumps({part: found[part]}, indent=2), flush=True)
        if given.out:
            given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

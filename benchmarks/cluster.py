"""Simulations on a Ray cluster on this machine, beside the same ones on local workers.

`python -m benchmarks.cluster [workloads sleeping losses memory]` prints ratios and, with --out FILE, stores them.

workloads: W1 and W3 on two one-core nodes against local workers, both after start-up, in turns.
sleeping: learners that sleep instead of computing, a million parameters, 2 to 64 actors: how well the driver keeps them
busy, and what a task costs it.
losses: an actor killed, an actor stopped, a node stopped, a node killed: how much longer a run takes.
memory: how much more the driver needs for ten million parameters than for a small network, in models.
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
STORE = 400_000_000
"""Bytes of each node's object store: the examples of W3 must fit into half of it."""


@contextmanager
def machines(nodes: int, cpus: int = 1) -> Iterator[Any]:
    """Start a cluster of this many nodes, whose head computes nothing."""
    for name, value in HEALTH.items():
        os.environ[f"RAY_health_check_{name}"] = value
    import ray
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        store = {"object_store_memory": STORE}
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
            found[name] = {
                "time over local workers": ratios,
                "median": statistics.median(ratios),
                "goal": "at most 1.25",
            }
    return found


# ------------------------------------------------------------------------------------------------------------ sleeping


class Sleeping(nn.Module):
    """A network of this many parameters whose training step sleeps; only four parameters have gradients to compute."""

    def __init__(self, parameters: int, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(max(1, parameters - 4)))
        self.head = nn.Linear(1, 2)
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            time.sleep(self.seconds)
        out: Tensor = self.head(x)
        return out


def sleepers(parameters: int, seconds: float, learners: int, commits: int, **settings: Any) -> Simulator:
    """Return a stream of learners that sleep, one step each, ready to run."""
    data = ap.data.from_arrays(torch.ones(4 * learners, 1).numpy(), torch.arange(4 * learners).remainder(2).numpy())
    simulator = prepare(
        ap.async_fedavg(batch=2, epochs=1),
        data.split(learners=learners, test=0.5),
        model=lambda: Sleeping(parameters, seconds),
        ending=ap.Ending(commits=commits),
        execution="workers",
        **settings,
    )
    simulator.begin()
    return simulator


ACTORS = (2, 4, 16, 64)
SLEEPS = (20, 50, 200)
"""Milliseconds that a task takes."""
TASKS = 10
"""Of each actor, in a measurement."""


def sleeping(repeats: int) -> dict[str, Any]:
    """Measure how busy actors are kept; predict it from what a task costs the driver."""
    found: dict[str, Any] = {}
    for actors in ACTORS:
        with machines(1, actors):
            for milliseconds in SLEEPS:
                found[f"{actors} actors, {milliseconds} ms"] = slept(actors, milliseconds / 1000)
    # where actors ask for more than the driver can do, its pace alone is seen
    cost = found[f"{max(ACTORS)} actors, {min(SLEEPS)} ms"]["seconds a task"]
    for one in found.values():
        one["predicted efficiency"] = min(1.0, one["seconds"] / (one["actors"] * cost))
    carried = {f"tasks of {seconds} s": int(seconds / (0.8 * cost)) for seconds in (1, 10, 60)}
    return {**found, "driver seconds a task": cost, "actors that one driver carries at 0.8": carried}


def slept(actors: int, seconds: float) -> dict[str, Any]:
    """Have actors sleep for this long in each task."""
    commits = TASKS * actors
    simulator = sleepers(1_000_000, seconds, actors, commits, cluster="auto")
    wait_for_actors(simulator, actors)
    processor = time.process_time()
    took = timed(simulator)
    processor = time.process_time() - processor
    simulator.close()
    return {
        "actors": actors,
        "seconds": seconds,
        "efficiency": TASKS * seconds / took,
        "seconds a task": took / commits,
        "driver's processor seconds a task": processor / commits,
    }


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
    for parameters in (24, 10_000_000):
        command = [sys.executable, "-m", "benchmarks.cluster", "--peak", str(parameters)]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks[parameters] = int(ran.stdout.splitlines()[-1])
    more = peaks[10_000_000] - peaks[24]
    return {"models above a small network": more / 40e6, "goal": "6 models and 300 MB", "megabytes": more / 1e6}


def peak(parameters: int) -> None:
    """Print this process's peak of memory after a stream of 64 learners on 8 actors."""
    with machines(1, 8):
        simulator = sleepers(parameters, 0.05, 64, 128, cluster="auto")
        wait_for_actors(simulator, 8)
        simulator.run()
        simulator.close()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=PARTS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak is not None:
        peak(given.peak)
        return
    found: dict[str, Any] = {"machine": facts(), "load before": load()}
    for part in given.parts:
        found[part] = globals()[part](given.repeats)
        print(json.dumps({part: found[part]}, indent=2), flush=True)
        if given.out:
            given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

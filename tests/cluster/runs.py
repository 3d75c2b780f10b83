"""Simulations that the tests of clusters share: small data, small networks, and the run that they must equal."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import archipel as ap
from archipel.core.algorithm import Algorithm
from archipel.runs.run import Run
from archipel.simulation.cluster.connection import Cluster
from archipel.simulation.cluster.executor import ClusterExecutor
from archipel.simulation.simulate import finished, prepare
from archipel.simulation.simulator import Simulator
from tests.waiting import until

LEARNERS = 6
OPEN: list[Simulator] = []
"""Simulators of the present test, which hold actors until they are closed."""


def data() -> ap.data.Islands:
    return ap.data.digits().split(learners=LEARNERS, sizes="powerlaw", classes=3)


def ready(algorithm: Algorithm, cluster: str | Cluster | None, **settings: Any) -> Simulator:
    """Return a simulation that has begun."""
    settings = {
        "ending": ap.Ending(commits=8),
        "fleet": ap.Fleet(fast=3, slow=3),
        "execution": "plain",
        "model": lambda: nn.Linear(64, 10),
        **settings,
    }
    islands = settings.pop("data", data)()
    simulator = prepare(algorithm, islands, cluster=cluster, **settings)
    OPEN.append(simulator)
    simulator.begin()
    return simulator


def whole(simulator: Simulator) -> Run:
    simulator.run()
    return finished(simulator)


def local(algorithm: Algorithm, **settings: Any) -> Run:
    return whole(ready(algorithm, None, **settings))


def same(one: Run, other: Run) -> None:
    assert torch.equal(one.model, other.model)
    assert one.records == other.records
    assert one.execution == other.execution


def executor_of(simulator: Simulator) -> ClusterExecutor:
    assert isinstance(simulator.executor, ClusterExecutor)
    return simulator.executor


def wait_for_actors(simulator: Simulator, count: int) -> None:
    """Wait until this many actors are ready."""
    pool = executor_of(simulator).pool

    def ready_now() -> bool:
        pool.tick()
        pool.wait(0.05)
        return len(pool.ready) == count

    until(ready_now, lambda: f"{count} actors; {len(pool.ready)} are ready")

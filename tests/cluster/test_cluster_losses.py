"""What is lost on a Ray cluster of real processes, and found out: actors and nodes, killed, stopped and new."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from contextlib import ExitStack

import pytest

import archipel as ap
from archipel.runs.run import Run
from archipel.simulation.cluster import actor_pool
from archipel.simulation.simulate import finished
from archipel.simulation.simulator import Simulator
from tests.cluster.conftest import SILENT, Machines
from tests.cluster.runs import executor_of, local, ready, same, wait_for_actors, whole
from tests.waiting import until

pytestmark = pytest.mark.slow


def lose(simulator: Simulator, loss: Callable[[], None], left: int) -> Run:
    """Run a little, lose something, see it noticed while the run stands still, and run to the end."""
    wait_for_actors(simulator, 2)
    simulator.run(events=8)
    assert simulator.stopped is None
    cluster = executor_of(simulator)
    loss()

    def noticed() -> bool:
        cluster.look()
        cluster.pool.wait(0.05)
        return cluster.losses > 0

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        until(noticed, "the loss of an actor")
        simulator.run()
    assert any("is lost; its work is done again" in str(warning.message) for warning in caught)
    assert len(cluster.pool.ready) >= left
    return finished(simulator)


def test_an_actor_that_is_killed(machines: Machines) -> None:
    simulator = ready(ap.async_dvw(), "auto")
    run = lose(simulator, lambda: os.kill(executor_of(simulator).pool.ready[0].process, signal.SIGKILL), left=1)
    same(run, local(ap.async_dvw()))


def test_a_node_that_is_killed(machines: Machines) -> None:
    simulator = ready(ap.fedavg(), "auto")
    same(lose(simulator, lambda: machines.kill(machines.nodes[0]), left=1), local(ap.fedavg()))


def test_a_node_that_joins_in_mid_run_gets_work(ray_cluster: Machines) -> None:
    ray_cluster.keep(1)
    simulator = ready(ap.fedavg(), "auto")
    wait_for_actors(simulator, 1)
    simulator.run(events=8)
    ray_cluster.add()
    wait_for_actors(simulator, 2)
    same(whole(simulator), local(ap.fedavg()))
    assert all(actor.learners for actor in executor_of(simulator).pool.ready)


def test_a_node_that_is_stopped_and_silent(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = ready(ap.fedavg(), "auto", execution="workers")
    with ExitStack() as stopped:

        def stop() -> None:
            stopped.enter_context(machines.stopped(machines.nodes[0]))
            monkeypatch.setattr(actor_pool, "SILENT", SILENT)

        run = lose(simulator, stop, left=0)  # on a busy machine the other one may be silent as long
    same(run, local(ap.fedavg(), execution="workers"))


def test_all_nodes_are_killed_and_the_driver_goes_on(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_pool, "STARTING", 0.0)
    simulator = ready(ap.async_fedavg(), "auto")
    same(lose(simulator, lambda: machines.keep(0), left=0), local(ap.async_fedavg()))

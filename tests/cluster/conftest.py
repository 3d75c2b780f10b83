"""A Ray cluster of one-core nodes on this machine, shared by all tests, which add and kill nodes.

An actor takes seconds to start, because it imports torch. One that a run leaves behind serves the next run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from archipel.simulation.cluster import actor_pool
from archipel.simulation.cluster.actor import WATCH, NodeActor, TrainingActor, answers, beside_work
from archipel.simulation.cluster.connection import Cluster
from archipel.simulation.cluster.head import Head
from archipel.simulation.cluster.requests import Blueprint
from archipel.study.cluster_runs import RunActor
from tests.cluster.runs import OPEN
from tests.waiting import LIMIT

SILENT = actor_pool.SILENT


class Machines:
    """A cluster whose head computes nothing, and its nodes."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        alone = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **alone})
        self.nodes: list[Any] = []

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self) -> Any:
        node = self.cluster.add_node(num_cpus=1)
        self.nodes.append(node)
        return node

    def kill(self, node: Any) -> None:
        self.nodes.remove(node)
        processes = family(node.all_processes["raylet"][0].process.pid)
        self.cluster.remove_node(node, allow_graceful=False)
        signal_all(processes, signal.SIGKILL)  # actors live for a moment longer

    @contextmanager
    def stopped(self, node: Any) -> Iterator[None]:
        """Stop all processes of a node, as a machine that hangs; kill them at the end."""
        processes = family(node.all_processes["raylet"][0].process.pid)
        signal_all(processes, signal.SIGSTOP)
        try:
            yield
        finally:
            signal_all(processes, signal.SIGKILL)
            self.kill(node)

    def keep(self, count: int) -> None:
        """Have exactly this many nodes."""
        while len(self.nodes) > count:
            self.kill(self.nodes[0])
        while len(self.nodes) < count:
            self.add()


def family(process: int) -> list[int]:
    """Return a process and all that it has started, and theirs."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [process, *(one for child in children for one in family(int(child)))]


def signal_all(processes: Sequence[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


class AnyActor(NodeActor):
    """An actor that becomes one of either kind at every start."""

    def start(self, *given: Any) -> list[str]:
        self.inner: Any = TrainingActor() if isinstance(given[0], Blueprint) else RunActor()
        started: list[str] = self.inner.start(*given)
        return started

    def mapping(self) -> str:
        """Return the line of this process's memory map where the examples are."""
        place = self.inner.context.x.data_ptr()
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            if first <= place < last:
                return line
        raise AssertionError("the examples are nowhere")

    @answers(2)
    def train(self, *given: Any) -> Any:
        return self.inner.train(*given)

    def score(self, *given: Any) -> Any:
        return self.inner.score(*given)

    def run(self, *given: Any) -> Any:
        return self.inner.run(*given)

    @beside_work
    def ping(self) -> Any:
        return self.inner.ping() if hasattr(self, "inner") else None

    @beside_work
    def stop(self) -> None:
        self.inner.stop()


class SharedHead(Head):
    """Takes up the actors of earlier runs, and leaves them to later ones."""

    idle: ClassVar[dict[tuple[float, float], list[Any]]] = {}
    """By the cores and GPUs of each."""

    def __init__(self, ray: Any, cluster: Cluster, start: Callable[[], Any]) -> None:
        asked = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus, "max_restarts": 0}
        any_actor = ray.remote(**asked, concurrency_groups={WATCH: 1})(AnyActor)
        self.mine = self.idle.setdefault((cluster.cpus, cluster.gpus), [])
        alive = [handle for handle in self.mine if _answers(ray, handle)]
        self.mine[:] = [handle for handle in self.mine if handle not in alive]  # one that is only slow holds its core
        for others in self.idle.values():
            for handle in others:
                ray.kill(handle)
            others.clear()
        super().__init__(ray, cluster, any_actor.remote, alive)

    def close(self, handles: Sequence[Any], seconds: float) -> None:
        super().close([], seconds)
        self.mine.extend([*handles, *self.started])


def _answers(ray: Any, handle: Any) -> bool:
    try:
        ray.get(handle.ping.remote(), timeout=2)
    except ray.exceptions.RayError:
        return False
    return True


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Machines]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    made = Machines()
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.cluster.shutdown()  # type: ignore[no-untyped-call]


@pytest.fixture
def machines(ray_cluster: Machines) -> Machines:
    """Return a cluster of two nodes."""
    ray_cluster.keep(2)
    return ray_cluster


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no actor for lost because the machine is busy."""
    monkeypatch.setattr(actor_pool, "SILENT", LIMIT)


@pytest.fixture(autouse=True)
def shared_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_pool, "Head", SharedHead)

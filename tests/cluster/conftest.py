"""A Ray cluster of one-core nodes on this machine, which tests start and stop node by node."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from archipel.simulation.cluster import actor_pool
from tests.waiting import LIMIT


class Machines:
    """A cluster whose head computes nothing, and its nodes."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
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
        self.cluster.remove_node(node, allow_graceful=False)

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
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(one for child in children for one in family(int(child)))]


def signal_all(processes: Sequence[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


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
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no actor for lost because the machine is busy."""
    monkeypatch.setattr(actor_pool, "SILENT", LIMIT)

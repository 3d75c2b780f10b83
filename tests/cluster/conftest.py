"""A Ray cluster of one-core nodes on this machine, which tests start and stop node by node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


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

    def keep(self, count: int) -> None:
        """Have exactly this many nodes."""
        while len(self.nodes) > count:
            self.kill(self.nodes[0])
        while len(self.nodes) < count:
            self.add()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Machines]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    made = Machines()
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.cluster.shutdown()


@pytest.fixture
def machines(ray_cluster: Machines) -> Machines:
    """Return a cluster of two nodes."""
    ray_cluster.keep(2)
    return ray_cluster

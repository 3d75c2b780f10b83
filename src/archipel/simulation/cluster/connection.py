"""Connect to a Ray cluster, or start one on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from archipel.core.checks import require

CONNECT_SECONDS = 10.0
"""How long an address may take to answer."""
HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""Settings of a cluster that Archipel starts; with Ray's own ones a silent node is noticed after about 20 seconds."""


class ClusterError(OSError):
    """The cluster cannot be used, for a reason that its message states."""


class ClusterLost(ClusterError):
    """The whole cluster has gone in the middle of a run; the run can be resumed."""


@dataclass(frozen=True)
class Cluster:
    """Where the jobs of a simulation are computed."""

    address: str
    """"local": a Ray of its own on this machine; "auto": the cluster that this machine belongs to or that RAY_ADDRESS
    names; else "host:port" or "ray://host:port"."""
    cpus: float = 1.0
    """Of each actor."""
    gpus: float = 0.0
    """Of each actor; 0.25 lets four actors share one."""
    mixed: bool = False
    """Allow nodes with other versions or processors, whose bits may differ."""
    folder: str | None = None
    """A folder that all nodes share, for examples that do not fit into their object stores."""

    def __post_init__(self) -> None:
        address = self.address.removeprefix("ray://")
        host, colon, port = address.rpartition(":")
        require(
            self.address in ("local", "auto") or (bool(colon) and host != "" and port.isdigit()),
            f'cluster: the address must be "local", "auto", "host:port" or "ray://host:port", got {self.address!r}.',
        )
        require(
            self.cpus > 0 and self.gpus >= 0,
            f"cluster: cpus must be above 0 and gpus at least 0, got cpus={self.cpus:g}, gpus={self.gpus:g}.",
        )

    @property
    def threads(self) -> int:
        """Return the threads that an actor computes with."""
        return max(1, int(self.cpus))


@dataclass(frozen=True)
class Node:
    """A machine of a cluster."""

    key: str
    """As Ray calls it."""
    name: str
    cpus: float
    gpus: float
    memory: int
    """Bytes that Ray may use."""
    object_store: int
    """Bytes of shared memory for models and data."""


def ray_module() -> Any:
    """Import Ray, which is an extra."""
    # Ray reports usage to its makers unless this is set before the import
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ClusterError(
            "A cluster needs Ray, which is not installed: pip install -c constraints.txt '.[ray]' in the source "
            "folder, on this machine and on every node."
        ) from None
    return ray


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect to a cluster for the time of a block; yield Ray's module.

    A connection that the program has opened itself is used and stays open.
    """
    ray = ray_module()
    if ray.is_initialized():
        yield ray
        return
    _connect(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    quiet = {"include_dashboard": False} if address == "local" else {}
    settings = {"_system_config": HEALTH_CHECKS} if address == "local" else {}
    check_listening(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", **quiet, **settings)
    except ConnectionError as error:
        raise ClusterError(
            f"cluster {address!r}: no Ray cluster was found ({_first_line(error)}). Start one with `ray start --head`, "
            "give its address, or use --cluster local."
        ) from None
    except Exception as error:  # Ray raises many kinds, among them plain exceptions
        raise ClusterError(f"cluster {address!r}: {_explained(error)}") from error


def _explained(error: Exception) -> str:
    text = str(error)
    if "auth" in text.lower() and "token" in text.lower():
        return (
            "the cluster refuses this machine's token. Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or "
            f"RAY_AUTH_TOKEN_PATH) to the cluster's own. Ray reports: {_first_line(error)}"
        )
    if "version mismatch" in text.lower():
        return (
            "its Ray or Python is of another version. Install the same versions here and on the nodes. Ray reports: "
            + " ".join(text.split())
        )
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def check_listening(address: str) -> None:
    """Refuse an address where nobody listens at once: Ray itself would try for minutes."""
    if address in ("local", "auto"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not listens(host, int(port), CONNECT_SECONDS):
        raise ClusterError(
            f"cluster {address!r}: nobody answers at this address within {CONNECT_SECONDS:.0f} s. Check host, port and "
            "firewall; `ray status` on the head node shows whether the cluster is up."
        )


def listens(host: str, port: int, seconds: float) -> bool:
    """Return whether a connection to an address can be opened within so many seconds."""
    try:
        with closing(socket.create_connection((host, port), timeout=seconds)):
            return True
    except OSError:
        return False


def head_listens(ray: Any, seconds: float = 1.0) -> bool:
    """Return whether the head of the cluster, without which Ray cannot go on, can be reached."""
    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    return listens(host.strip("[]"), int(port), seconds)


def nodes(ray: Any) -> list[Node]:
    """Return the nodes that are alive."""
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            found.append(
                Node(
                    node["NodeID"],
                    f"{node['NodeManagerHostname']} ({node['NodeID'][:6]})",
                    has.get("CPU", 0.0),
                    has.get("GPU", 0.0),
                    int(has.get("memory", 0)),
                    int(has.get("object_store_memory", 0)),
                )
            )
    return sorted(found, key=lambda node: node.name)

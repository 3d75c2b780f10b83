"""Connect to a Ray cluster, or start one on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from archipel.core.checks import require
from archipel.simulation.cluster.head_token import refuses_token

CONNECT_SECONDS = 10.0
"""How long an address may take to answer."""
ATTEMPTS = 3
"""Attempts to connect if the head cannot start a server for the driver, as happens at random in Ray 2.60."""
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
        _require_address(self.address, "cluster: the address")
        require(
            self.cpus > 0 and self.gpus >= 0,
            f"cluster: cpus must be above 0 and gpus at least 0, got cpus={self.cpus:g}, gpus={self.gpus:g}.",
        )

    @property
    def share(self) -> str:
        """Say what each actor gets of a node."""
        cores = f"{self.cpus:g} core{'' if self.cpus == 1 else 's'}"
        return cores + (f" and {self.gpus:g} GPU{'' if self.gpus == 1 else 's'}" if self.gpus else "")

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


def _require_address(address: str, name: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    require(
        address in ("local", "auto") or (host != "" and port.isdecimal() and int(port) < 1 << 16),
        f'{name} must be "local", "auto", "host:port" or "ray://host:port", got {address!r}.',
    )


@contextmanager
def reached(cluster: Cluster) -> Iterator[Any]:
    """Connect to a cluster for the time of a block, as `connected`; refuse actors that fit on no node."""
    with connected(cluster.address) as ray:
        require_room(ray, cluster)
        yield ray


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
    check_address(address)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error", **quiet, **settings)
            return
        except Exception as error:  # Ray raises many kinds, among them plain exceptions
            if attempt == ATTEMPTS or _NO_SERVER not in str(error):
                raise ClusterError(f"cluster {address!r}: {_explained(error)}") from None


def _explained(error: Exception) -> str:
    told = " ".join(_texts(error))
    if "AuthenticationError" in told or "InvalidAuthToken" in told:
        return _REFUSED_TOKEN
    if "version mismatch" in told.lower():
        return (
            "its Ray or Python is of another version. Install the same versions here and on the nodes. Ray reports: "
            + " ".join(str(error).split())
        )
    if isinstance(error, ImportError) or "grpcio" in told:
        return f"an address with ray:// needs gRPC: pip install -c constraints.txt grpcio. Ray reports: {error}"
    if _NO_SERVER in told:
        return (
            f"its head could not start a server for this driver in {ATTEMPTS} attempts. Look at ray_client_server.err "
            "in the head's folder of logs, or run on a node of the cluster with its host:port. Ray reports: "
            f"{str(error).strip().splitlines()[-1].strip()}"
        )
    if isinstance(error, ConnectionError):
        return (
            f"no Ray cluster was found ({_first_line(error)}). Start one with `ray start --head`, give its address, or "
            "use --cluster local."
        )
    return _first_line(error)


_NO_SERVER = "Initialization failure from server"
"""What Ray's client says if the proxy on the head could not start a server for the driver."""
_REFUSED_TOKEN = (
    "the cluster asks for a token, and this machine's is missing or another one. Set RAY_AUTH_MODE=token and "
    "RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH, to the cluster's own."
)


def _texts(error: BaseException | None) -> Iterator[str]:
    """Yield the names and texts of an error and of those that it came from."""
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        error = error.__cause__ or error.__context__


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def check_address(address: str) -> None:
    """Refuse an address at once where nobody listens, or where this machine's token is not accepted."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or "auto"
        _require_address(address, "cluster: RAY_ADDRESS")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:  # "local", or "auto" without an address
        return
    if trouble := connection_trouble(host, int(port), CONNECT_SECONDS):
        raise ClusterError(
            f"cluster {address!r}: nobody answers at this address ({trouble}). Check host, port and firewall; `ray "
            "status` on the head node shows whether the cluster is up."
        )
    if refuses_token(address):
        raise ClusterError(f"cluster {address!r}: {_REFUSED_TOKEN}")


def connection_trouble(host: str, port: int, seconds: float) -> str:
    """Return why no connection to an address can be opened within so many seconds; empty if one can."""
    try:
        with closing(socket.create_connection((host.strip("[]"), port), timeout=seconds)):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def head_listens(ray: Any, address: str, seconds: float = 1.0) -> bool:
    """Return whether the head of the cluster, without which Ray cannot go on, can be reached."""
    if not address.startswith("ray://"):
        address = str(ray.get_runtime_context().gcs_address)
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return not connection_trouble(host, int(port), seconds)


def require_room(ray: Any, cluster: Cluster) -> None:
    """Refuse actors that fit on no node."""
    found = nodes(ray)
    if not any(node.cpus >= cluster.cpus and node.gpus >= cluster.gpus for node in found):
        has = "; ".join(f"{node.name}: {node.cpus:g} cores, {node.gpus:g} GPUs" for node in found)
        raise ClusterError(
            f"cluster {cluster.address!r}: an actor takes {cluster.share} (--per-actor), and no node has as much. The "
            f"nodes have: {has}. Ask for less, or start nodes that have it."
        )


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

"""Inspect every node of a cluster: its resources, and whether it would compute the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archipel.simulation.cluster.connection import Cluster, Node, connected, nodes
from archipel.simulation.cluster.fingerprint import Fingerprint, fingerprint

SECONDS = 60.0
"""In which a node must answer: its first process imports torch."""


@dataclass(frozen=True)
class NodeReport:
    """What was found on a node."""

    node: Node
    actors: int
    """That fit on it."""
    versions: Fingerprint | None
    """What its bits depend on; None if it was not asked or did not answer."""
    trouble: str
    """Why it cannot be used as it is; empty if it can."""


def inspect_cluster(cluster: Cluster) -> list[NodeReport]:
    """Return a report on every node; each is asked by a task of its own."""
    with connected(cluster.address) as ray:
        alive = nodes(ray)
        asked = {node.key: _ask(ray, node) for node in alive if node.cpus >= 1}
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=SECONDS) if asked else None
        return [_report(ray, cluster, node, asked.get(node.key)) for node in alive]


def _report(ray: Any, cluster: Cluster, node: Node, reference: Any) -> NodeReport:
    found, trouble = (None, "") if reference is None else _answer(ray, reference)
    if found is not None:
        trouble = "; ".join(fingerprint().differences(found))
    fitting = int(node.cpus / cluster.cpus)
    if cluster.gpus:
        fitting = min(fitting, int(node.gpus / cluster.gpus))
    return NodeReport(node, fitting, found, trouble)


def _ask(ray: Any, node: Node) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node.key, soft=False)
    return ray.remote(num_cpus=1, max_retries=0)(_inspect).options(scheduling_strategy=there).remote()


def _inspect() -> Fingerprint:
    return fingerprint()


def _answer(ray: Any, reference: Any) -> tuple[Fingerprint | None, str]:
    """Return what a node says of itself, or why it does not."""
    try:
        return ray.get(reference, timeout=0.5), ""
    except ray.exceptions.GetTimeoutError:
        return None, f"it has not answered within {SECONDS:.0f} s; are its cores busy?"
    except ray.exceptions.RayTaskError as error:
        return None, f"Archipel cannot be imported there: {str(error).strip().splitlines()[-1]}"
    except ray.exceptions.RayError as error:
        return None, str(error).strip().splitlines()[0]

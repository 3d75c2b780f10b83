"""Open a cluster for one simulation: connect, place network and examples, and start the actors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from archipel.core.frozen_weights import frozen_parameters, taken_apart
from archipel.core.types import Plan
from archipel.executors.arithmetic import is_small
from archipel.executors.choice import Way
from archipel.executors.interface import Executor
from archipel.learner.learner import TrainingContext
from archipel.simulation.cluster.actor import TrainingActor
from archipel.simulation.cluster.actor_pool import ActorPool
from archipel.simulation.cluster.connection import Cluster, ClusterError, connected, nodes, require_room
from archipel.simulation.cluster.executor import ClusterExecutor
from archipel.simulation.cluster.fingerprint import installed_code, is_users
from archipel.simulation.cluster.requests import Blueprint

SHARE = 0.5
"""Of a node's object store that the examples may take."""


def open_cluster(cluster: Cluster, inner: Executor, way: Way, context: TrainingContext, plan: Plan) -> ClusterExecutor:
    """Return an executor that computes on a cluster what the inner one would compute here."""
    with ExitStack() as opened:
        ray = opened.enter_context(connected(cluster.address))
        require_room(ray, cluster)
        module, frozen = taken_apart(context.module.cpu())
        blueprint = Blueprint(
            context=_pickled(ray, module, context),
            code=installed_code(_defined_elsewhere(context)),
            frozen_shapes=[parameter.shape for parameter in frozen_parameters(context.module).values()],
            plan=plan,
            way=way,
            # on large networks sums depend on the number of threads
            threads=torch.get_num_threads() if way == "plain" else cluster.threads,
            scoring_threads=torch.get_num_threads(),
            device="cuda" if cluster.gpus else str(context.x.device),
        )
        placed = (ray.put(blueprint), *_placed(ray, cluster, context), *map(ray.put, frozen))
        return ClusterExecutor(
            inner,
            context,
            ActorPool(ray, cluster, TrainingActor, placed),
            one_by_one=way in ("plain", "workers"),
            scores=not is_small(context),
            disconnect=opened.pop_all().close,
        )
    raise AssertionError("unreachable")


def _pickled(ray: Any, module: nn.Module, context: TrainingContext) -> bytes:
    """Return network, loss and the like with the code that is not installed on the nodes, and without the examples."""
    nothing = torch.empty(0)
    with _by_value(ray):
        try:
            return bytes(ray.cloudpickle.dumps(replace(context, module=module, x=nothing, y=nothing)))
        except Exception as error:
            reason = str(error).rstrip(".")
            raise ClusterError(
                f"cluster: {type(module).__name__} cannot be sent to other machines: {reason}. Keep locks, open "
                "files and lambdas with such things out of the network and the loss."
            ) from None


def _defined_elsewhere(context: TrainingContext) -> list[object]:
    """Return what may be defined by installed packages: the network's parts, loss, augmentation and the like."""
    return [*context.module.modules(), *(getattr(context, field.name) for field in fields(context))]


@contextmanager
def _by_value(ray: Any) -> Iterator[None]:
    """Have the user's own modules pickled with their code: nodes do not have their files."""
    own = {module.__name__: module for module in list(sys.modules.values()) if is_users(module)}  # some have two names
    for module in own.values():
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own.values():
            ray.cloudpickle.unregister_pickle_by_value(module)


def _placed(ray: Any, cluster: Cluster, context: TrainingContext) -> tuple[Any, Any]:
    """Put the examples into the cluster once, or into the shared folder."""
    x, y = context.x.cpu(), context.y.cpu()
    if cluster.folder is not None:
        return _saved(Path(cluster.folder), "inputs", x), _saved(Path(cluster.folder), "targets", y)
    needed = x.nbytes + y.nbytes
    for node in nodes(ray):
        if needed > SHARE * node.object_store:
            raise ClusterError(
                f"cluster: the examples take {needed / 2**20:,.0f} MB, and the object store of node {node.name} has "
                f"{node.object_store / 2**20:,.0f} MB, of which they may take half. Start its Ray with a larger "
                "--object-store-memory, or name a folder that all nodes share with --cluster-folder."
            )
    return ray.put(x.numpy()), ray.put(y.numpy())


def _saved(folder: Path, name: str, examples: Tensor) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = (folder / f"{name}.npy").resolve()
    np.save(path, examples.numpy())
    return str(path)

"""What runs on a node: one actor, which trains and scores with the executor that the network calls for."""

from __future__ import annotations

import os
import socket
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.frozen_weights import put_together
from archipel.core.types import ScoreTable
from archipel.executors.choice import executor_of
from archipel.kernels.threads import threads
from archipel.learner.learner import Job, Learner, TrainingContext
from archipel.learner.probes import Parts, score_parts
from archipel.simulation.cluster.fingerprint import Fingerprint, code_differences, fingerprint
from archipel.simulation.cluster.out_of_memory import out_of_memory
from archipel.simulation.cluster.requests import (
    Blueprint,
    Failure,
    Fields,
    JobRequest,
    ModelAt,
    SentModel,
    TrainRequest,
    array_of,
    changes,
    learner_of,
    unpacked,
)

WATCH = "watch"
"""The concurrency group of methods that are answered during training."""
LARGE = 1 << 12
"""Bytes above which a tensor is sent separately from an answer."""


M = TypeVar("M", bound=Callable[..., Any])


def beside_work(method: M) -> M:
    """Have Ray answer a method in a thread of its own, as `ray.method` does, without importing Ray."""
    method.__ray_concurrency_group__ = WATCH  # type: ignore[attr-defined]
    return method


def answers(count: int) -> Callable[[M], M]:
    """Have Ray make this many references of a method's results."""

    def decorate(method: M) -> M:
        method.__ray_num_returns__ = count  # type: ignore[attr-defined]
        return method

    return decorate


class NodeActor:
    """The methods that every kind of actor answers besides its work."""

    def inspect(self) -> tuple[str, int, Fingerprint]:
        """Return the name of the node, the number of this process, and the fingerprint of its software."""
        return node_name(), os.getpid(), fingerprint()

    @beside_work
    def ping(self) -> Any:
        """Answer, so that the driver knows that this node is alive."""


class TrainingActor(NodeActor):
    """Answers requests one after the other; `ping` is answered beside them."""

    def start(
        self, blueprint: Blueprint, x: NDArray[Any] | str, y: NDArray[Any] | str, *frozen: NDArray[np.uint8]
    ) -> list[str]:
        """Build the network and the executor; return what is different from the driver's code.

        x, y: the examples, or paths of .npy files that all nodes can read. frozen: the bytes of the frozen weights,
        which all actors of a node share.
        """
        import ray.cloudpickle  # Ray's own serialisation, inside the user's own cluster

        device = blueprint.device
        if device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("a GPU was asked for (--per-actor), and torch finds no CUDA there")
        torch.set_num_threads(blueprint.threads)
        context: TrainingContext = ray.cloudpickle.loads(blueprint.context)
        put_together(context.module, blueprint.frozen_shapes, map(_shared, frozen))
        inputs, targets = _data(x).to(device), _data(y).to(device)
        self.context = replace(context, module=context.module.to(device), x=inputs, y=targets)
        self.blueprint = blueprint
        self.executor = executor_of(self.context, blueprint.plan, blueprint.way)
        self.learners: dict[int, Learner] = {}
        self.parts: dict[int, Parts] = {}
        return code_differences(blueprint.code)

    @answers(2)
    def train(self, request: TrainRequest, *models: SentModel) -> tuple[list[Fields] | Failure, list[NDArray[Any]]]:
        """Train stacks of jobs; return what has changed, and their models beside it, or how they failed."""
        torch.set_num_threads(self.blueprint.threads)
        if request.forget:
            self.learners.clear()
        self.learners.update({key: learner_of(sent) for key, sent in request.examples.items()})
        together: list[Job] = []
        try:
            vectors = [_shared(model).to(self.blueprint.device) for model in models]
            stacks = [[self._job(job, vectors) for job in stack] for stack in request.stacks]
            jobs = [job for stack in stacks for job in stack]
            before = [dict(vars(job)) for job in jobs]
            # processes of one actor share the jobs of a submission; one alone trains them as well one by one
            alone = self.blueprint.threads == 1 or any(len(stack) > 1 for stack in stacks)
            with self.executor.running():
                for together in stacks if alone else [jobs]:
                    self.executor.submit(together, request.epochs)
                    self.executor.wait()
            beside: list[NDArray[Any]] = []
            place = partial(_large, beside)
            return [changes(job, was, place) for job, was in zip(jobs, before, strict=True)], beside
        except Exception as error:
            return _failure(error, _whose(together)), []

    def _job(self, request: JobRequest, models: Sequence[Tensor]) -> Job:
        fields: dict[str, Any] = unpacked(request.fields, self.blueprint.device, models)
        return Job(self.learners[request.learner], **fields)

    def score(
        self,
        key: int,
        examples: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
        forget: bool,
        bins: int,
        model: SentModel,
    ) -> ScoreTable | Failure:
        """Score a model on the examples of several sites.

        examples: their indices and the sizes of the parts, or None if this actor has them. forget: all parts it has.
        """
        if forget:
            self.parts.clear()
        if examples is not None:
            self.parts[key] = Parts(torch.from_numpy(examples[0].copy()), examples[1])
        try:
            with threads(self.blueprint.scoring_threads):
                vector = _shared(model).to(self.blueprint.device)
                return score_parts(self.context, vector, self.parts[key], bins)
        except Exception as error:
            return _failure(error, "")


def _large(beside: list[NDArray[Any]], tensor: Tensor) -> ModelAt | None:
    """Place a large tensor beside the answer, which the driver reads as soon as it is there."""
    if tensor.nbytes < LARGE:
        return None
    beside.append(array_of(tensor))
    return ModelAt(len(beside) - 1)


def node_name() -> str:
    """Return the name of the machine, and the beginning of what Ray calls it."""
    import ray

    return f"{socket.gethostname()} ({ray.get_runtime_context().get_node_id()[:6]})"


def _failure(error: Exception, whose: str) -> Failure:
    return Failure(whose, out_of_memory(error), traceback.format_exc())


def _whose(jobs: Sequence[Job]) -> str:
    """Name the learners and tasks of jobs, the first three of many."""
    named = [f"learner {job.learner.name}, task {job.task}" for job in jobs[:3]]
    return "; ".join(named) + (f"; and {len(jobs) - 3} more" if len(jobs) > 3 else "")


def _data(source: NDArray[Any] | str) -> Tensor:
    return _shared(np.load(source, mmap_mode="r") if isinstance(source, str) else source)


def _shared(array: NDArray[Any]) -> Tensor:
    """Return an array as a tensor in the same memory, which is only read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that it could be written to
        return torch.from_numpy(array)

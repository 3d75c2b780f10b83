"""Work that is given to an actor, and done in this process if no actor answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.types import Score, ScoreTable
from archipel.executors.interface import Executor
from archipel.kernels.memory import empty
from archipel.learner.batches import epochs_of
from archipel.learner.learner import Job
from archipel.learner.probes import Parts
from archipel.simulation.cluster.actor_pool import PooledActor
from archipel.simulation.cluster.connection import ClusterError
from archipel.simulation.cluster.placed_models import PlacedModels
from archipel.simulation.cluster.requests import (
    Examples,
    Failure,
    Fields,
    ModelAt,
    TrainRequest,
    examples_of,
    request_of,
    tensor_of,
    unpacked,
)

LEARNERS_KEPT = 1 << 16
"""Learners whose examples an actor keeps; after that it forgets all of them."""
PARTS_KEPT = 256
"""Parts whose examples an actor keeps; after that it forgets all of them."""
_FREED: dict[int, Tensor] = {}
"""Memory of results that nobody needs any more."""


class Stage(Enum):
    """The stage of a task."""

    WAITING = auto()
    OUT = auto()
    """An actor has it."""
    ANSWERED = auto()
    """It is computed; what is too large for the answer is with the actor's node."""
    FETCHING = auto()
    FETCHED = auto()
    """That is in the memory of this machine's Ray."""
    DONE = auto()
    """Its results are in this process."""
    DROPPED = auto()
    """It is no longer needed."""


class ClusterTask(ABC):
    """Work for one actor at a time."""

    def __init__(self, placed: PlacedModels, inner: Executor, cost: float, size: int = 0) -> None:
        """cost: examples to compute, by which work is placed. size: parameters of the resulting models."""
        self.placed = placed
        self.inner = inner
        self.cost = cost
        self.size = size
        self.stage = Stage.WAITING
        self.actor: PooledActor | None = None
        self.beside: Any = None
        """Reference of what is too large for the answer itself,"""
        self.results: Any = None
        """and its value once it was fetched."""
        self.attempts = 0
        """Actors that were lost with it."""

    @abstractmethod
    def send(self, actor: PooledActor) -> Any:
        """Start it on an actor; return the reference of the answer."""

    @abstractmethod
    def receive(self, answer: Any) -> None:
        """Note the answer and the stage that it leads to; raise what went wrong in the computation."""

    @abstractmethod
    def collect(self) -> None:
        """Take over the results."""

    @abstractmethod
    def compute_here(self) -> None:
        """Do it in this process."""


class TrainStacks(ClusterTask):
    """Train stacks of jobs."""

    def __init__(
        self, placed: PlacedModels, inner: Executor, stacks: Sequence[Sequence[Job]], epochs: int | None
    ) -> None:
        self.jobs = [job for stack in stacks for job in stack]
        cost = sum(cost_of(stack, epochs) for stack in stacks)
        super().__init__(placed, inner, cost, placed.size * len(self.jobs))
        self.stacks = stacks
        self.epochs = epochs
        self._changes: Sequence[Fields] = ()

    def send(self, actor: PooledActor) -> Any:
        """Start it on an actor."""
        models: dict[int, tuple[ModelAt, Any]] = {}

        def place(tensor: Tensor) -> ModelAt | None:
            if not self.placed.is_model(tensor):
                return None
            if id(tensor) not in models:
                models[id(tensor)] = ModelAt(len(models)), self.placed.reference(tensor)
            return models[id(tensor)][0]

        examples, forget = self._unknown(actor)
        stacks = [[request_of(job, place) for job in stack] for stack in self.stacks]
        references = [reference for _, reference in models.values()]
        request = TrainRequest(stacks, self.epochs, examples, forget)
        answer, self.beside = actor.handle.train.remote(request, *references)
        return answer

    def _unknown(self, actor: PooledActor) -> tuple[dict[int, Examples], bool]:
        """Return the examples of learners that the actor does not have, and whether it forgets those that it has."""
        learners: dict[int, Any] = {id(job.learner): job.learner for job in self.jobs}
        unknown = learners.keys() - actor.learners.keys()
        forget = len(actor.learners) + len(unknown) > LEARNERS_KEPT
        if forget:
            actor.learners.clear()
            unknown = set(learners)
        actor.learners.update(learners)
        return {key: examples_of(learners[key]) for key in unknown}, forget

    def receive(self, answer: Any) -> None:
        """Note how the jobs ended; raise the error if one failed."""
        self._changes = _checked(answer, self.actor)
        self.stage = Stage.ANSWERED

    def collect(self) -> None:
        """Take over what has changed, and the trained models."""
        device = self.jobs[0].vector.device
        models = [_kept(array).to(device) for array in self.results]
        for job, changed in zip(self.jobs, self._changes, strict=True):
            vars(job).update(unpacked(changed, device, models))
        self._changes = ()

    def compute_here(self) -> None:
        """Train in this process."""
        for stack in self.stacks:
            self.inner.submit(stack, self.epochs)
        self.inner.wait()


class ScoreModel(ClusterTask):
    """Score a model on the examples of several sites."""

    def __init__(self, placed: PlacedModels, inner: Executor, model: Tensor, parts: Parts, probe: Score) -> None:
        super().__init__(placed, inner, len(parts.examples))
        self.model = model
        self.parts = parts
        self.probe = probe
        self.answer: ScoreTable | None = None

    def send(self, actor: PooledActor) -> Any:
        """Start it on an actor."""
        key, known = id(self.parts), id(self.parts) in actor.parts
        forget = not known and len(actor.parts) == PARTS_KEPT
        if forget:
            actor.parts.clear()
        actor.parts[key] = self.parts
        examples = None if known else (self.parts.examples.numpy(), self.parts.sizes)
        model = self.placed.reference(self.model)
        return actor.handle.score.remote(key, examples, forget, self.probe.bins, model)

    def receive(self, answer: Any) -> None:
        """Note the score; raise the error if it failed."""
        self.answer = _checked(answer, self.actor)
        self.stage = Stage.DONE

    def collect(self) -> None:
        """Do nothing: the score was small enough to come at once."""

    def compute_here(self) -> None:
        """Score in this process."""
        self.answer = self.inner.score(self.model, self.parts, self.probe, urgent=True).result()


def _kept(array: NDArray[Any]) -> Tensor:
    """Return a copy of a result, in the memory of one that was freed where there is one."""
    if array.dtype != np.float32 or array.ndim != 1:
        return tensor_of(array)
    vector = empty(array.size, _FREED)
    np.copyto(vector.numpy(), array)
    return vector


def cost_of(stack: Sequence[Job], epochs: int | None) -> float:
    """Return how many examples a stack has still to train on."""
    return float(sum(job.plan.batch * (_last_step(job, epochs) - job.steps) for job in stack))


def _last_step(job: Job, epochs: int | None) -> int:
    end = epochs_of(job.plan, job.examples)
    return job.steps_at(end if epochs is None else min(end, job.epochs + epochs))


def _checked(answer: Any, actor: PooledActor | None) -> Any:
    if not isinstance(answer, Failure):
        return answer
    node, whose = actor.node if actor else "unknown", f" of {answer.whose}" if answer.whose else ""
    if answer.out_of_memory:
        raise ClusterError(
            f"cluster: node {node} has too little memory for the computation{whose}: {answer.out_of_memory}"
        )
    raise ClusterError(f"cluster: the computation{whose} failed on node {node}:\n{answer.story}")

"""Work that is given to an actor, and done in this process if no actor answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from archipel.core.types import Score, ScoreTable
from archipel.executors.interface import Executor
from archipel.learner.batches import epochs_of
from archipel.learner.learner import Job
from archipel.learner.probes import Parts
from archipel.simulation.cluster.actor_pool import PooledActor
from archipel.simulation.cluster.connection import ClusterError
from archipel.simulation.cluster.requests import JobFailure, JobReply, JobRequest, as_tensors, request_of

MODELS_KEPT = 4
"""Models whose references are kept for further tasks: in a stream, several tasks carry the same version."""
PARTS_KEPT = 256
"""Parts whose examples an actor keeps; after that it forgets all of them."""
FETCH = 600.0
"""Seconds in which a model must arrive from the node that has it."""


class PlacedModels:
    """Models in the object store of the cluster, each put there once."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self._kept: OrderedDict[int, tuple[Tensor, Any]] = OrderedDict()

    def reference(self, model: Tensor) -> Any:
        """Return a reference to a model, by which every node reads the same copy."""
        kept = self._kept.pop(id(model), None) or (model, self.ray.put(model.cpu().numpy()))
        self._kept[id(model)] = kept
        while len(self._kept) > MODELS_KEPT:
            self._kept.popitem(last=False)
        return kept[1]


class ClusterTask(ABC):
    """Work for one actor at a time."""

    def __init__(self, placed: PlacedModels, inner: Executor, cost: float) -> None:
        """cost: examples to compute, by which work is placed."""
        self.placed = placed
        self.inner = inner
        self.cost = cost
        self.actor: PooledActor | None = None
        self.references: Sequence[Any] = ()
        """Of the answer: the first one is small, and says how it ended."""
        self.attempts = 0
        """Actors that were lost with it."""
        self.answered = False
        """An actor has computed it."""
        self.done = False
        """Its results are here."""

    @abstractmethod
    def send(self, actor: PooledActor) -> Sequence[Any]:
        """Start it on an actor; return the references of the answer."""

    @abstractmethod
    def check(self) -> None:
        """Read the first reference; raise what went wrong in the computation."""

    @abstractmethod
    def collect(self) -> None:
        """Take over the results."""

    @abstractmethod
    def compute_here(self) -> None:
        """Do it in this process."""

    def _get(self, position: int) -> Any:
        return self.placed.ray.get(self.references[position], timeout=FETCH)


class TrainStacks(ClusterTask):
    """Train stacks of jobs."""

    def __init__(
        self, placed: PlacedModels, inner: Executor, stacks: Sequence[Sequence[Job]], epochs: int | None
    ) -> None:
        super().__init__(placed, inner, sum(cost_of(stack, epochs) for stack in stacks))
        self.stacks = stacks
        self.epochs = epochs
        self.jobs = [job for stack in stacks for job in stack]
        self._replies: Sequence[JobReply] = ()

    def send(self, actor: PooledActor) -> Sequence[Any]:
        """Start it on an actor."""
        models: dict[int, tuple[int, Any]] = {}
        requests = [[self._request(job, actor, models) for job in stack] for stack in self.stacks]
        references = [reference for _, reference in models.values()]
        train = actor.handle.train.options(num_returns=2)
        return list(train.remote(requests, self.epochs, *references))

    def _request(self, job: Job, actor: PooledActor, models: dict[int, tuple[int, Any]]) -> JobRequest:
        def position(model: Tensor) -> int:
            if id(model) not in models:
                models[id(model)] = len(models), self.placed.reference(model)
            return models[id(model)][0]

        known = id(job.learner) in actor.learners
        actor.learners[id(job.learner)] = job.learner
        return request_of(job, position, known=known)

    def check(self) -> None:
        """Read how the jobs ended; raise the error if one failed."""
        self._replies = _checked(self._get(0))

    def collect(self) -> None:
        """Take over the trained models."""
        models = self._get(1)
        for job, reply, model in zip(self.jobs, self._replies, models, strict=True):
            job.epochs, job.losses, job.validation = reply.epochs, reply.losses, reply.validation
            job.memory, job.kept = as_tensors(reply.memory), as_tensors(reply.kept)
            job.vector = torch.from_numpy(model.copy()).to(job.vector.device)

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

    def send(self, actor: PooledActor) -> Sequence[Any]:
        """Start it on an actor."""
        key, known = id(self.parts), id(self.parts) in actor.parts
        forget = not known and len(actor.parts) == PARTS_KEPT
        if forget:
            actor.parts.clear()
        actor.parts[key] = self.parts
        examples = None if known else (self.parts.examples.numpy(), self.parts.sizes)
        model = self.placed.reference(self.model)
        return [actor.handle.score.remote(key, examples, forget, self.probe.bins, model)]

    def check(self) -> None:
        """Read the score; raise the error if it failed."""
        self.answer = _checked(self._get(0))

    def collect(self) -> None:
        """Do nothing: the score was small enough to come at once."""

    def compute_here(self) -> None:
        """Score in this process."""
        self.answer = self.inner.score(self.model, self.parts, self.probe, urgent=True).result()


def cost_of(stack: Sequence[Job], epochs: int | None) -> float:
    """Return how many examples a stack has still to train on."""
    return float(sum(job.plan.batch * (_last_step(job, epochs) - job.steps) for job in stack))


def _last_step(job: Job, epochs: int | None) -> int:
    end = epochs_of(job.plan, job.examples)
    return job.steps_at(end if epochs is None else min(end, job.epochs + epochs))


def _checked(answer: Any) -> Any:
    if not isinstance(answer, JobFailure):
        return answer
    first, more = answer.learners[:3], len(answer.learners) - 3
    whom = f" of learner {', '.join(first)}" + (f" and {more} others" if more > 0 else "") if first else ""
    raise ClusterError(f"cluster: the computation{whom} failed on node {answer.node}:\n{answer.story}")

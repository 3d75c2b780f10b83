"""What travels between the driver and an actor: plain data and numpy arrays.

Models travel as arguments of their own, which Ray keeps once per node and hands out without a copy; a request names
them by their position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.layout import Layout
from archipel.core.types import Plan, Scored
from archipel.executors.choice import Way
from archipel.learner.example_budget import StepNoise
from archipel.learner.learner import Job, Learner

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Blueprint:
    """What an actor needs to compute, beside the examples."""

    network: bytes
    """Module without its frozen weights, loss and augmentation, pickled with their code."""
    frozen_shapes: list[torch.Size]
    layout: Layout
    classes: int | None
    plan: Plan
    way: Way
    threads: int
    """Of torch, in training."""
    scoring_threads: int
    """Of torch, in scoring: sums depend on them."""
    device: str
    rows: int
    """Examples that are tried at a time."""


@dataclass(frozen=True)
class Examples:
    """A learner's examples, sent to an actor once."""

    name: str
    train: NDArray[np.int64]
    validation: NDArray[np.int64]


@dataclass(frozen=True)
class JobRequest:
    """A job as far as it has got."""

    learner: int
    """Key of the learner's examples."""
    examples: Examples | None
    """None if the actor has them."""
    plan: Plan
    key: int
    """Seed of the task's own randomness."""
    noise: StepNoise | None
    """What its gradients are noised with: the key of this task, never the learner's."""
    model: int
    anchor: int | None
    shift: int | None
    epochs: int
    losses: list[float]
    memory: dict[str, Any]
    kept: dict[str, Any]
    plain: bool


@dataclass(frozen=True)
class JobReply:
    """What training has changed, beside the model."""

    epochs: int
    losses: list[float]
    memory: dict[str, Any]
    kept: dict[str, Any]
    validation: Scored | None


@dataclass(frozen=True)
class JobFailure:
    """An exception in the training of a stack."""

    node: str
    learners: tuple[str, ...]
    story: str
    """The traceback."""


def request_of(job: Job, position: Callable[[Tensor], int], *, known: bool) -> JobRequest:
    """Return a job as plain data; position: of a vector among the models; known: the actor has the examples."""
    learner = job.learner
    examples = None if known else Examples(learner.name, learner.train.numpy(), learner.validation.numpy())
    memory = as_arrays(job.memory)
    model, anchor, shift = (
        None if vector is None else position(vector) for vector in (job.vector, job.anchor, job.shift)
    )
    assert model is not None
    progress = (job.epochs, job.losses, memory, as_arrays(job.kept), job.plain)
    return JobRequest(id(learner), examples, job.plan, job.key, job.noise, model, anchor, shift, *progress)


def job_of(request: JobRequest, learner: Learner, models: Sequence[Tensor]) -> Job:
    """Return the job that a request describes."""
    anchor, shift = (None if place is None else models[place] for place in (request.anchor, request.shift))
    model, losses, memory = models[request.model], list(request.losses), as_tensors(request.memory)
    kept = as_tensors(request.kept)
    own: dict[str, Any] = {"shift": shift, "noise": request.noise, "kept": kept, "plain": request.plain}
    return Job(learner, request.plan, model, anchor, request.key, request.epochs, losses, memory, **own)


def learner_of(examples: Examples) -> Learner:
    """Return a learner with the examples it trains on."""
    nothing = torch.empty(0, dtype=torch.int64)
    return Learner(examples.name, _tensor(examples.train), _tensor(examples.validation), nothing)


def as_arrays(value: Any) -> Any:
    """Replace tensors inside dictionaries by arrays."""
    if isinstance(value, Tensor):
        return value.cpu().numpy()
    return {key: as_arrays(item) for key, item in value.items()} if isinstance(value, dict) else value


def as_tensors(value: Any) -> Any:
    """Replace arrays inside dictionaries by tensors of their own."""
    if isinstance(value, np.ndarray):
        return _tensor(value)
    return {key: as_tensors(item) for key, item in value.items()} if isinstance(value, dict) else value


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.copy())  # what Ray hands out is read-only, and gone with its owner

"""What travels between the driver and an actor: plain data and numpy arrays.

Models travel as arguments of their own, which Ray keeps once per node and hands out without a copy; a job names them by
their position. Every field of a job travels, whatever it is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.types import Plan
from archipel.executors.choice import Way
from archipel.learner.learner import Job, Learner

SentModel: TypeAlias = NDArray[np.float32]
Fields: TypeAlias = dict[str, Any]
"""Some fields of a job, packed."""
FIELDS = tuple(field.name for field in fields(Job) if field.init and field.name != "learner")


@dataclass(frozen=True)
class Blueprint:
    """What an actor needs to compute, beside the examples."""

    context: bytes
    """Network without its frozen weights, loss and the like, pickled with the code that the nodes lack."""
    code: Mapping[str, str]
    """Hashes of the installed modules that it needs, as the driver has them."""
    frozen_shapes: list[torch.Size]
    plan: Plan
    way: Way
    threads: int
    """Of torch, in training."""
    scoring_threads: int
    """Of torch, in scoring: sums depend on them."""
    device: str


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
    """Key of the learner's examples, which the actor has or gets with the task."""
    fields: Fields


@dataclass(frozen=True)
class TrainRequest:
    """Stacks of jobs for one actor."""

    stacks: list[list[JobRequest]]
    epochs: int | None
    """How many to train; None: to the end."""
    examples: dict[int, Examples]
    """Those of learners that the actor does not have."""
    forget: bool
    """It forgets all learners that it has."""


@dataclass(frozen=True)
class Failure:
    """An exception in a computation."""

    whose: str
    """The learner and the task that it belongs to, if there is one."""
    out_of_memory: str
    """What was asked for and what the node has; empty if this is not the reason."""
    story: str
    """The traceback."""


@dataclass(frozen=True)
class ModelAt:
    """A model, or another large tensor, that travels beside the fields."""

    position: int


Placing: TypeAlias = Callable[[Tensor], ModelAt | None]
"""Give a tensor a place among the models; None: it is not one."""


def packed(value: Any, place: Placing = lambda tensor: None) -> Any:
    """Replace tensors, also inside dictionaries and lists, by the places of models or by arrays."""
    if isinstance(value, Tensor):
        # NumPy has no bfloat16; such a tensor is pickled
        return value if value.dtype is torch.bfloat16 else place(value) or array_of(value)
    if isinstance(value, dict):
        return {key: packed(item, place) for key, item in value.items()}
    return [packed(item, place) for item in value] if isinstance(value, list) else value


def unpacked(value: Any, device: str | torch.device, models: Sequence[Tensor] = ()) -> Any:
    """Replace what `packed` put in the place of tensors by tensors: those of models, or new ones."""
    if isinstance(value, ModelAt):
        return models[value.position]
    if isinstance(value, np.ndarray):
        return tensor_of(value).to(device)
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: unpacked(item, device, models) for key, item in value.items()}
    return [unpacked(item, device, models) for item in value] if isinstance(value, list) else value


def request_of(job: Job, place: Placing) -> JobRequest:
    """Return a job as plain data."""
    return JobRequest(id(job.learner), {name: packed(getattr(job, name), place) for name in FIELDS})


def changes(job: Job, before: Mapping[str, Any], place: Placing) -> Fields:
    """Return the fields that are not as they were, and those that may have changed inside."""
    now = ((name, getattr(job, name)) for name in FIELDS)
    return {
        name: packed(value, place)
        for name, value in now
        if value is not before[name] or isinstance(value, (dict, list))
    }


def examples_of(learner: Learner) -> Examples:
    """Return a learner's examples as plain data."""
    return Examples(learner.name, learner.train.numpy(), learner.validation.numpy())


def learner_of(examples: Examples) -> Learner:
    """Return a learner with the examples it trains on."""
    nothing = torch.empty(0, dtype=torch.int64)
    return Learner(examples.name, tensor_of(examples.train), tensor_of(examples.validation), nothing)


def array_of(tensor: Tensor) -> NDArray[Any]:
    """Return the numbers of a tensor, without a copy if they are in this process's memory."""
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def tensor_of(array: NDArray[Any]) -> Tensor:
    """Return a copy: what Ray hands out is read-only, and gone with its owner."""
    return torch.from_numpy(array.copy())

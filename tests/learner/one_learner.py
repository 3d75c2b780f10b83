"""One learner with a few examples, and networks small enough to follow with a pencil."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from archipel.core.layout import Layout
from archipel.core.types import Plan
from archipel.learner.learner import Job, Learner, Loss, TrainingContext
from archipel.learner.training import advance


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean()


def at(*indices: int) -> Tensor:
    return torch.tensor(indices, dtype=torch.int64)


def work_of(
    module: nn.Module, x: Tensor, y: Tensor, *, classes: int | None = None, loss: Loss = nn.functional.cross_entropy
) -> TrainingContext:
    return TrainingContext(module, Layout.of(module, x[:1]), loss, x, y, classes)


def slope(x: Sequence[float], y: Sequence[float]) -> TrainingContext:
    """One parameter: w x against y, by squared error. The gradient of an example is 2 x (w x - y)."""
    columns = (torch.tensor(values).reshape(-1, 1) for values in (x, y))
    return work_of(nn.Linear(1, 1, bias=False), *columns, loss=squared_error)


def learner(train: Tensor, validation: Tensor | None = None) -> Learner:
    return Learner("a", train, at() if validation is None else validation, at())


def trained(work: TrainingContext, carried: Tensor, plan: Plan, who: Learner | None = None, key: int = 0) -> Job:
    """The job of this plan, carried to its end."""
    job = Job.begin(who or learner(torch.arange(len(work.x))), work.layout, carried, plan, key)
    advance(work, job)
    return job


def clouds(n: int = 60, features: int = 5, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Examples of several classes, each around a centre of its own."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(n) % classes
    centres = torch.randn(classes, features, generator=draw)
    return centres[y] + torch.randn(n, features, generator=draw), y

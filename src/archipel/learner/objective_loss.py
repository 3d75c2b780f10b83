"""The loss that a learner minimises: the task's own, or that of an objective."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from archipel.core.binding import Binding
from archipel.core.parts.objective import TrainingBatch
from archipel.learner.learner import Learner, TrainingContext


def training_loss(
    work: TrainingContext, learner: Learner, received: Tensor | None
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of the bound network on a mini-batch; received: the model that the task carried, if needed."""
    module, plain, objective = work.module, work.loss, work.objective
    if objective is None:
        return lambda x, y: plain(module(x), y)
    classes = class_counts(work, learner)
    before = None if received is None or not objective.needs_received else outputs_of(work, received)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        batch = TrainingBatch(module(x), y, classes, None if before is None else before(x))
        return objective.loss(batch, plain)

    return loss


def class_counts(work: TrainingContext, learner: Learner) -> Tensor:
    """Return the learner's training examples of each class; empty for tasks without classes."""
    if work.classes is None:
        return torch.empty(0, dtype=torch.int64)
    return torch.bincount(work.y[learner.train], minlength=work.classes)


def outputs_of(work: TrainingContext, vector: Tensor) -> Callable[[Tensor], Tensor]:
    """Return what computes the outputs of a model, in a network of its own that does not train."""
    placed = {entry.name for layer in work.layout.layers for entry in layer.entries}.union(work.layout.tied)
    frozen = {id(parameter): parameter for name, parameter in work.module.named_parameters() if name not in placed}
    module = copy.deepcopy(work.module, frozen).eval()  # frozen weights are shared
    Binding(work.layout, module).bind(vector.clone())

    def outputs(x: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = module(x)
        return found

    return outputs

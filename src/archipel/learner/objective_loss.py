"""The loss that a learner minimises: the task's own, or that of an objective."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from archipel.core.binding import Binding
from archipel.core.parts.objective import Objective, TrainingBatch
from archipel.learner.learner import Job, Learner, TrainingContext


def training_loss(work: TrainingContext, job: Job) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of the bound network on a mini-batch."""
    module, plain, objective = work.module, work.loss, work.objective
    if objective is None:
        return lambda x, y: plain(module(x), y)
    classes, local = class_counts(work, job.learner), _Outputs(module, _compared(work, objective))
    received = _compared_outputs(work, objective, job.anchor if objective.needs_received else None)
    previous = _compared_outputs(work, objective, job.kept.get(objective.keeps_model))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        outputs, features = local(x)
        there, there_features = received(x)
        _, past = previous(x) if objective.keeps_model in job.kept else (None, there_features)
        return objective.loss(TrainingBatch(outputs, y, classes, there, features, there_features, past), plain)

    return loss


def class_counts(work: TrainingContext, learner: Learner) -> Tensor:
    """Return the learner's training examples of each class; empty for tasks without classes."""
    if work.classes is None:
        return torch.empty(0, dtype=torch.int64)
    return torch.bincount(work.y[learner.train], minlength=work.classes)


class _Outputs:
    """Runs a network and records the inputs of one of its layers."""

    def __init__(self, module: nn.Module, layer: str | None) -> None:
        """layer: the path of the layer's module, or None."""
        self.module, self.layer = module, None if layer is None else module.get_submodule(layer)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the outputs on some examples, and the layer's inputs, a row for each example."""
        if self.layer is None:
            return self.module(x), None
        inputs: list[Tensor] = []

        def note(_: nn.Module, given: tuple[Any, ...]) -> None:
            inputs.append(given[0])

        hook = self.layer.register_forward_pre_hook(note)
        try:
            outputs = self.module(x)
        finally:
            hook.remove()
        return outputs, inputs[-1].flatten(1)


def _compared(work: TrainingContext, objective: Objective) -> str | None:
    """Return the path of the module whose inputs an objective compares."""
    if not objective.compares:
        return None
    first, *_ = work.layout.select(type(objective).__name__, objective.compares)
    return work.layout.layers[work.layout.index(first)].module


def outputs_of(work: TrainingContext, vector: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that computes a model's outputs in a separate network in evaluation mode."""
    module = _copy_of(work, vector)

    def outputs(x: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = module(x)
        return found

    return outputs


def _compared_outputs(
    work: TrainingContext, objective: Objective, vector: Tensor | None
) -> Callable[[Tensor], tuple[Tensor | None, Tensor | None]]:
    """Return a function for a model's outputs and the inputs of the layer that an objective compares."""
    if vector is None:
        return lambda x: (None, None)
    run = _Outputs(_copy_of(work, vector), _compared(work, objective))

    def outputs(x: Tensor) -> tuple[Tensor, Tensor | None]:
        with torch.no_grad():
            return run(x)

    return outputs


def _copy_of(work: TrainingContext, vector: Tensor) -> nn.Module:
    """Return a separate network with this model in evaluation mode."""
    placed = {entry.name for layer in work.layout.layers for entry in layer.entries}.union(work.layout.tied)
    frozen = {id(parameter): parameter for name, parameter in work.module.named_parameters() if name not in placed}
    module = copy.deepcopy(work.module, frozen).eval()  # frozen weights are shared
    Binding(work.layout, module).bind(vector.to(work.x.device, copy=True))
    return module

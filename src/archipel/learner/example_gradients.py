"""Gradients of single examples, by the fastest method that agrees with one example at a time.

    mapped    torch.func's `vmap` over `grad`
    hooked    Opacus' hooks on layers, for networks that cannot be mapped; an extra, `opacus`
    single    one example at a time: the reference, and the fallback

The first method that agrees with the reference on some examples is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from archipel.core.parts.objective import TrainingBatch
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.objective_loss import outputs_of

TRIED = 3
"""Number of examples that the methods are compared on."""
TOLERANCE = 1e-3
"""Tolerance of gradients, relative to the largest."""
ROOM = 4_000_000
"""Most numbers of gradients that are in memory at a time."""

Gradients: TypeAlias = Callable[[Tensor, Tensor], list[Tensor]]
"""(inputs, targets) -> for each trainable parameter, the stacked gradients of the examples."""


class ExampleLoss:
    """The loss of one example, and of a batch as the mean of its examples' losses."""

    def __init__(self, work: TrainingContext, job: Job) -> None:
        self._work = work
        objective = work.objective
        needed = objective is not None and objective.needs_received and job.anchor is not None
        self._received = outputs_of(work, job.anchor) if needed and job.anchor is not None else None

    def __call__(self, outputs: Tensor, x: Tensor, y: Tensor) -> Tensor:
        work = self._work
        if work.objective is None:
            return work.loss(outputs, y)
        nothing = torch.empty(0, dtype=torch.int64)  # class counts would depend on other examples
        received = None if self._received is None else self._received(x)
        return work.objective.loss(TrainingBatch(outputs, y, nothing, received), work.loss)


def example_gradients(work: TrainingContext, job: Job, parameters: Sequence[nn.Parameter]) -> Gradients:
    """Return a function for the gradients of single examples of the bound network."""
    loss = ExampleLoss(work, job)
    ways: dict[str, Gradients] = {
        "mapped": _mapped(work, loss, parameters),
        "hooked": _hooked(work, loss, parameters),
        "single": _single(work, loss, parameters),
    }
    names = {id(parameter): name for name, parameter in work.module.named_parameters()}
    trained = tuple(names[id(parameter)] for parameter in parameters)
    if trained not in work.gradient_ways:
        work.gradient_ways[trained] = _choose(work, ways, job.learner.train[:TRIED])
    return ways[work.gradient_ways[trained]]


def _choose(work: TrainingContext, ways: dict[str, Gradients], examples: Tensor) -> str:
    x, y = work.x[examples], work.y[examples]
    without_dropout(work.module)
    wanted = torch.cat([gradient.flatten(1) for gradient in ways["single"](x, y)], 1)
    for name in ("mapped", "hooked"):
        try:
            with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
                warnings.simplefilter("ignore")
                without_dropout(work.module)
                found = torch.cat([gradient.flatten(1) for gradient in ways[name](x, y)], 1)
                work.module.train()
                ways[name](x, y)  # it has to work with dropout too
        except Exception:  # a network can raise anything under torch.func or Opacus
            continue
        if float((found - wanted).abs().max()) <= TOLERANCE * float(wanted.abs().max()):
            return name
    return "single"


def without_dropout(module: nn.Module) -> None:
    """Put a network into training mode without dropout; Opacus requires training mode."""
    module.train()
    for inner in module.modules():
        if isinstance(inner, nn.modules.dropout._DropoutNd):
            inner.eval()


def _mapped(work: TrainingContext, loss: ExampleLoss, parameters: Sequence[nn.Parameter]) -> Gradients:
    ours = {id(parameter) for parameter in parameters}

    def gradients(x: Tensor, y: Tensor) -> list[Tensor]:
        trained = {name: p.detach() for name, p in work.module.named_parameters() if id(p) in ours}

        def of_one(values: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
            row, aim = one[None], target[None]
            return loss(functional_call(work.module, values, (row,)), row, aim)

        found = vmap(grad(of_one), in_dims=(None, 0, 0), randomness="different")(trained, x, y)
        return [found[name] for name in trained]

    return gradients


def _hooked(work: TrainingContext, loss: ExampleLoss, parameters: Sequence[nn.Parameter]) -> Gradients:
    def gradients(x: Tensor, y: Tensor) -> list[Tensor]:
        from opacus.grad_sample import GradSampleModule  # imported late: it is an extra, and takes seconds

        wrapped: Any = GradSampleModule(work.module, batch_first=True, loss_reduction="mean")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Opacus' hook on the first layer, whose input needs no gradient, warns
                loss(work.module(x), x, y).backward()
            return [parameter.grad_sample for parameter in parameters]  # type: ignore[attr-defined]
        finally:
            wrapped.to_standard_module()
            for parameter in parameters:
                parameter.grad = None

    return gradients


def _single(work: TrainingContext, loss: ExampleLoss, parameters: Sequence[nn.Parameter]) -> Gradients:
    def gradients(x: Tensor, y: Tensor) -> list[Tensor]:
        rows = []
        for i in range(len(x)):
            one, target = x[i : i + 1], y[i : i + 1]
            value = loss(work.module(one), one, target)
            found = torch.autograd.grad(value, list(parameters), allow_unused=True)
            rows.append([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)])
        return [torch.stack(column) for column in zip(*rows, strict=True)]

    return gradients

"""Training of one learner in plain PyTorch: the reference that faster executors have to agree with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from archipel.core.types import AUC_BINS, Metrics, Plan
from archipel.learner.batches import batches, steps_after
from archipel.learner.learner import Job, TrainingContext, optimiser
from archipel.learner.noised_gradient import NoisedGradient
from archipel.learner.objective_loss import class_counts, training_loss
from archipel.learner.probes import loss_moments, mean_loss, score, squared_gradient_norm
from archipel.learner.tokens import targets_of
from archipel.learner.training_point import LocalPoint

UNSAVED = "unsaved buffers"
"""What a job's memory calls the buffers that a network changes and does not save."""


def advance(work: TrainingContext, job: Job, epochs: int | None = None) -> None:
    """Advance a job by this many epochs, or until it is done."""
    if (work.local_noise is None) != (job.noise is None):
        raise RuntimeError(f"A task of {job.learner.name!r} has noise={job.noise}, and the study {work.local_noise}.")
    job.vector = job.vector.clone()
    work.binding.bind(job.vector)
    if job.watches and not job.losses:
        job.losses.append(mean_loss(work, job.learner.validation))
    last = math.inf if epochs is None else job.epochs + epochs
    while not job.done and job.epochs < last:
        plan, end, of = job.plan.phase(job.epochs) if job.plan.phases else (job.plan, math.inf, "")
        if of:
            _advance_kept(work, job, plan, of, min(last, end), end)
        else:
            _advance_phase(work, job, plan, min(last, end), end)
    work.binding.collect(job.vector)


def _advance_kept(work: TrainingContext, job: Job, plan: Plan, name: str, last: float, end: float) -> None:
    """Train a vector that the learner keeps instead of the task's model."""
    work.binding.collect(job.vector)
    model, watched = job.vector, job.losses[-1:]
    begin = job.kept.get(name, job.anchor)
    assert begin is not None
    job.vector = begin.to(model.device).clone()
    work.binding.bind(job.vector)
    _advance_phase(work, job, plan, last, end, of=name)
    work.binding.collect(job.vector)
    job.kept = {**job.kept, name: job.vector}
    job.vector = model
    work.binding.bind(model)
    job.losses += watched * (job.epochs + 1 - len(job.losses)) if watched else []


def _advance_phase(work: TrainingContext, job: Job, plan: Plan, last: float, end: float, of: str = "") -> None:
    """Advance a job to the end of its phase, or to this epoch if that is earlier."""
    unsaved = work.binding.unsaved
    unsaved.reset()
    with _trainable(work.module, work, plan.trains) as parameters:
        steps = _Steps(work, job, plan, parameters, of) if parameters else None
        unsaved.reset(job.memory.get(UNSAVED))
        while not job.done and job.epochs < last:
            if steps is not None:
                _epoch(work, job, plan, steps)
            job.epochs += 1
            if job.watches and not of:
                work.binding.collect(job.vector)
                job.losses.append(mean_loss(work, job.learner.validation))
        if steps is not None and steps.point is not None:
            work.binding.collect(job.vector)
            job.kept = steps.point.collected(work.layout, job.vector)
        if steps is not None and not job.done:
            changed = unsaved.changed()
            kept = {UNSAVED: changed} if changed else {}
            job.memory = steps.memory() | kept if job.epochs < end else {}


def report(work: TrainingContext, job: Job, vector: Tensor, epochs: int) -> Metrics:
    """Return the learner's report after this many epochs."""
    asked, learner = job.plan.reports, job.learner
    validation = norm = None
    classes: tuple[int, ...] = ()
    if "validation" in asked and job.validation is not None and epochs == job.epochs:
        validation = job.validation
    elif "validation" in asked or "validation scores" in asked:
        validation = score(work, vector, learner.validation, AUC_BINS if "validation scores" in asked else 0)
    if "gradient norm per sample" in asked:
        norm = squared_gradient_norm(work, vector, learner.train, None)
    elif "gradient norm per batch" in asked:
        norm = squared_gradient_norm(work, vector, learner.train, job.plan.batch)
    if "class counts" in asked and work.classes is not None:
        classes = tuple(class_counts(work, learner).tolist())
    metrics = replace(job.metrics(epochs, validation, norm), classes=classes)
    if job.received is None:
        return metrics
    mean, squared = loss_moments(work, job.received, learner.train)
    return replace(metrics, training_loss=mean, squared_loss=squared)


class _Steps:
    """Makes the steps of one phase."""

    def __init__(
        self, work: TrainingContext, job: Job, plan: Plan, parameters: list[nn.Parameter], of: str = ""
    ) -> None:
        """of: the kept vector to train; empty: the task's model."""
        self.optimiser = optimiser(plan, parameters)
        if job.memory:
            _remember(self.optimiser, job.memory)
        self.parameters, self.proximal = parameters, plan.proximal
        self.accumulate, self.per_token = plan.accumulate, work.per_token
        self.anchors = _pieces(work, job.anchor if plan.proximal else None, parameters)
        self.shifts = _pieces(work, job.shift if plan.shift else None, parameters)
        apart = job.plain or bool(of)
        self.loss = (lambda x, y: work.loss(work.module(x), y)) if apart else training_loss(work, job)
        self.descent = None if apart else work.descent
        self.noised = None if job.noise is None else NoisedGradient(work, job, plan, parameters)
        self.point: LocalPoint | None = None
        if self.descent is not None:
            before, pieces = job.steps, partial(_pieces, work, parameters=parameters)
            self.point = LocalPoint(parameters, pieces, self._backward, self.loss, job.kept, plan.rate, before)
            if before == 0:
                self.descent.begin(self.point)

    def step(self, x: Tensor, y: Tensor, number: int) -> None:
        """Make one step on a mini-batch; number: the step's number in its task."""
        self.optimiser.zero_grad()
        if self.noised is not None:
            self.noised.write(x, y, number)
        elif self.descent is not None and self.point is not None:
            direction = self.descent.direction(self.point, x, y)
            for parameter, gradient in zip(self.parameters, direction, strict=True):
                parameter.grad = gradient
            self.point.step += 1
        else:
            self._backward(x, y)
        for parameter, shift in zip(self.parameters, self.shifts, strict=False):
            if parameter.grad is not None:
                parameter.grad.add_(shift)
        for parameter, anchor in zip(self.parameters, self.anchors, strict=False):
            # the gradient of (mu / 2) ||w - w'||^2
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - anchor, alpha=self.proximal)
        self.optimiser.step()

    def _backward(self, x: Tensor, y: Tensor) -> None:
        """Write the gradient on a mini-batch to the parameters."""
        for piece, share in _batch_pieces(y, self.accumulate, self.per_token):
            loss = self.loss(x[piece], y[piece])
            (loss if share == 1 else share * loss).backward()

    def memory(self) -> dict[str, Any]:
        """Return the optimiser's state."""
        return {str(i): dict(state) for i, state in self.optimiser.state_dict()["state"].items()}


def _epoch(work: TrainingContext, job: Job, plan: Plan, steps: _Steps) -> None:
    augment = work.augment
    _training_mode(work, plan.trains)
    draws = None if augment is None else augment.draws(job.key, job.epochs, job.examples)
    seed = job.key + job.epochs if job.noise is None else job.noise.randomness(job.epochs)
    with _randomness(work.x.device, seed):
        # counted over the whole task: no two steps may draw the same noise
        before = steps_after(job.plan, job.examples, job.epochs)
        for number, positions in enumerate(_batches(work, job, plan), before):
            chosen = job.learner.train[positions]
            x = work.x[chosen]
            if augment is not None and draws is not None:
                x = augment.apply(x, draws[positions])
            steps.step(x, work.y[chosen], number)


def _batches(work: TrainingContext, job: Job, plan: Plan) -> list[Tensor]:
    if work.local_noise is None or job.noise is None:
        return batches(plan, job.key, job.examples, job.epochs)
    return job.noise.batches(work.local_noise, plan, job.key, job.examples, job.epochs)


def _batch_pieces(y: Tensor, count: int, per_token: bool) -> list[tuple[Tensor | slice, float]]:
    """Return `count` pieces of a mini-batch, each with its weight in the batch's mean loss."""
    if count == 1:
        return [(slice(None), 1.0)]
    weights = targets_of(y).clamp(min=1) if per_token else torch.ones(len(y))
    pieces = torch.arange(len(y)).chunk(count)
    return [(piece, float(weights[piece].sum() / weights.sum())) for piece in pieces]


@contextmanager
def _randomness(device: torch.device, key: int) -> Iterator[None]:
    """Seed torch by the task's key within a block, for dropout, and restore the generator afterwards."""
    on_cpu = device.type == "cpu"
    with torch.random.fork_rng(devices=[] if on_cpu else [device], device_type="cuda" if on_cpu else device.type):
        # torch.manual_seed visits every backend, which costs more than a small epoch
        (torch.default_generator.manual_seed if on_cpu else torch.manual_seed)(key)
        yield


def _training_mode(work: TrainingContext, layers: tuple[str, ...] | None) -> None:
    """Switch to training mode, except frozen layers: their batch norm uses its running statistics unchanged."""
    work.module.train()
    for layer in work.layout.layers:
        if layer.buffers and layers is not None and layer.name not in layers:
            work.module.get_submodule(layer.module).eval()


def _pieces(work: TrainingContext, vector: Tensor | None, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return views of a vector for these parameters; an empty list without a vector."""
    if vector is None:
        return []
    places = {id(parameter): name for name, parameter in work.module.named_parameters()}
    tensors = work.layout.tensors(vector)
    return [tensors[places[id(parameter)]] for parameter in parameters]


def _remember(steps: torch.optim.Optimizer, memory: dict[str, dict[str, Tensor]]) -> None:
    saved = steps.state_dict()
    saved["state"] = {int(i): dict(state) for i, state in memory.items() if i != UNSAVED}
    steps.load_state_dict(saved)


@contextmanager
def _trainable(
    module: nn.Module, work: TrainingContext, layers: tuple[str, ...] | None
) -> Iterator[list[nn.Parameter]]:
    """Freeze the other layers within a block."""
    owned = {
        entry.name for layer in work.layout.layers if layers is None or layer.name in layers for entry in layer.entries
    }
    named = list(module.named_parameters())
    before = [parameter.requires_grad for _, parameter in named]
    try:
        for name, parameter in named:
            parameter.requires_grad_(parameter.requires_grad and name in owned)
        yield [parameter for _, parameter in named if parameter.requires_grad]
    finally:
        for (_, parameter), flag in zip(named, before, strict=True):
            parameter.requires_grad_(flag)
            parameter.grad = None

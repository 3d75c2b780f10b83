"""Native execution: perceptrons, one learner at a time, in C, on the library's own threads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from archipel.core.checks import require
from archipel.core.sparse_counts import MANY_CLASSES, SparseCounts
from archipel.core.types import Plan, Score, ScoreTable
from archipel.executors.interface import KnownResult, PendingResult
from archipel.executors.stacked_networks import classifier_parts
from archipel.kernels.native.library import library
from archipel.kernels.native.perceptron import Linear, NativeNetwork, NativeTraining, NativeTrial, SgdOptions
from archipel.kernels.threads import threads
from archipel.learner.batches import epochs_of, shuffled
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.probes import Parts, score_parts

OWN = 1 << 17
"""Most parts of learners that are cached in the form that C reads; beyond that the cache is cleared."""


class Native:
    """Trains and scores perceptrons on the library's threads while this one continues."""

    name = "native"
    reason = ""
    ahead = 0

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        found, layers = library(), linear_layers(context)
        assert found is not None
        assert layers is not None
        found.archipel_pool_resize(torch.get_num_threads())
        self._library, self._layers = found, layers
        self._layer_of = {entry.start: layer.name for layer in context.layout.layers for entry in layer.entries}
        self._network = lru_cache(maxsize=8)(self._made)
        self._scoring = self._made((), SgdOptions())
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        """Examples of learners by identity: as given, and in the form that C reads."""
        self._parts = lru_cache(maxsize=256)(self._part_examples)
        self._out: dict[Job, tuple[NativeTraining, int]] = {}
        """Jobs in training, and their number of epochs when done."""

    def running(self) -> AbstractContextManager[None]:
        """Let torch use one thread, since it has little left to compute."""
        return threads(1)

    def divide(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Return the jobs one by one."""
        return [[job] for job in jobs]

    def submit(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        """Start training jobs for this many epochs, or until they are done."""
        self.wait()
        jobs = [job for job in jobs if not job.done]
        for job in jobs:
            if not job.watches:
                end = epochs_of(job.plan, job.examples)
                self._begin(job, end if epochs is None else min(end, job.epochs + epochs))
        watching = [job for job in jobs if job.watches]
        self._watch([job for job in watching if not job.losses])
        while watching and epochs != 0:
            for job in watching:
                self._begin(job, job.epochs + 1)
            for job in watching:
                self.wait(job)
            self._watch(watching)
            watching = [job for job in watching if not job.done]
            epochs = None if epochs is None else epochs - 1

    def wait(self, job: Job | None = None) -> None:
        """Wait until this job, or all jobs, have been trained."""
        for one in list(self._out) if job is None else [job]:
            if one in self._out:
                training, epochs = self._out[one]
                training.wait()
                del self._out[one]
                one.vector, one.epochs = training.model, epochs
                if training.momentum is not None:
                    one.memory = {"momentum": training.momentum}
                if training.then is not None:
                    (one.validation,) = score_table(training.then)

    def drop(self, job: Job) -> None:
        """Do nothing: a submitted job cannot be stopped."""

    def score(self, model: Tensor, parts: Parts, probe: Score, *, urgent: bool = False) -> PendingResult[ScoreTable]:
        """Score a model in C, even if urgent, since its rounding differs from torch's; torch computes histograms."""
        if probe.bins:
            return KnownResult(score_parts(self.context, model, parts, probe.bins))
        return NativeScore(self._trial(model, self._parts(parts), parts.sizes))

    def close(self) -> None:
        """Stop all open training; the library's threads are joined when the process exits."""
        for training, _ in self._out.values():
            training.cancel()
        self._out.clear()

    def _trial(self, model: Tensor, examples: Tensor, sizes: NDArray[np.int64]) -> NativeTrial:
        trial = NativeTrial(self._scoring, model, examples, sizes)
        trial.begin()
        return trial

    def _begin(self, job: Job, end: int) -> None:
        plan, learner = job.plan, job.learner
        steps = job.steps_at(end) - job.steps
        made = self._network(plan.trains, _descent(plan))
        momentum = self._momentum(job) if plan.momentum else None
        orders = [shuffled(job.key, job.examples, epoch) for epoch in range(job.epochs, end)]
        order = orders[0] if len(orders) == 1 else np.concatenate(orders)
        model, then = job.vector.clone(), None
        if "validation" in plan.reports and end == epochs_of(plan, job.examples) and plan.cycle is None:
            then = NativeTrial(
                self._scoring, model, self._examples(learner.validation), np.array([len(learner.validation)])
            )
        own = self._examples(learner.train)
        training = NativeTraining(made, model, own, order, plan.batch, steps, job.anchor, job.shift, momentum, then)
        self._out[job] = (training, end)
        training.begin()

    def _watch(self, jobs: Sequence[Job]) -> None:
        """Append each job's mean loss on its validation part."""
        sizes = [len(job.learner.validation) for job in jobs]
        trials = [
            self._trial(job.vector, self._examples(job.learner.validation), np.array([size]))
            for job, size in zip(jobs, sizes, strict=True)
        ]
        for job, size, trial in zip(jobs, sizes, trials, strict=True):
            trial.wait()
            job.losses.append(float(trial.losses[0]) / size if size else float("nan"))

    def _made(self, trains: tuple[str, ...] | None, descent: SgdOptions) -> NativeNetwork:
        context = self.context
        layers = [
            layer._replace(trained=trains is None or self._layer_of[layer.weight] in trains) for layer in self._layers
        ]
        return NativeNetwork(self._library, context.x, context.y, layers, descent)

    def _momentum(self, job: Job) -> Tensor:
        kept = job.memory.get("momentum")
        return torch.zeros_like(job.vector) if kept is None else kept.clone()

    def _examples(self, examples: Tensor) -> Tensor:
        """Return a learner's examples in the form that C reads; cached from task to task."""
        known = self._own.get(id(examples))
        if known is None:
            if len(self._own) >= OWN:
                self._own.clear()
            known = self._own[id(examples)] = (examples, self._readable(examples))
        return known[1]

    def _part_examples(self, parts: Parts) -> Tensor:
        return self._readable(parts.examples)

    def _readable(self, examples: Tensor) -> Tensor:
        """Return contiguous indices of examples; refuse invalid ones, which C would follow into any memory."""
        count = len(self.context.x)
        require(
            len(examples) == 0 or 0 <= int(examples.min()) <= int(examples.max()) < count,
            f"Native: a learner has invalid examples: indices must be from 0 to {count - 1}.",
        )
        return examples.contiguous()


@dataclass(frozen=True)
class NativeScore:
    """A score that the library computes."""

    trial: NativeTrial

    def result(self) -> ScoreTable:
        """Wait for the score."""
        self.trial.wait()
        return score_table(self.trial)


def _descent(plan: Plan) -> SgdOptions:
    decay = float(plan.options.get("weight_decay", 0.0))  # type: ignore[arg-type]
    return SgdOptions(plan.rate, plan.momentum, plan.proximal, decay, bool(plan.options.get("nesterov")))


def score_table(trial: NativeTrial) -> ScoreTable:
    """Return a trial's counts as a table."""
    many = trial.confusion.shape[-1] >= MANY_CLASSES
    confusion = SparseCounts.of(trial.confusion) if many else trial.confusion
    return ScoreTable(trial.sizes, trial.losses, confusion, None)


def linear_layers(context: TrainingContext) -> list[Linear] | None:
    """Return the layers of a perceptron that the library can train on these examples, or None."""
    if library() is None or context.x.device.type != "cpu" or context.x.dtype != torch.float32:
        return None
    parts = classifier_parts(context)
    if parts is None:
        return None
    begins = {entry.name: entry.start for layer in context.layout.layers for entry in layer.entries}
    layers: list[Linear] = []
    for part, weight, bias in parts:
        if isinstance(part, nn.Linear):
            layers.append(Linear(part.in_features, part.out_features, begins[weight], begins.get(bias, -1), False))
        elif isinstance(part, nn.ReLU) and layers:
            layers[-1] = layers[-1]._replace(rectified=True)
        elif not isinstance(part, nn.Flatten | nn.Identity):
            return None
    fits = (
        context.x.is_contiguous()
        and context.y.is_contiguous()
        and context.x[0].numel() == layers[0].inputs
        and (context.x.dim() == 2 or any(isinstance(part, nn.Flatten) for part, *_ in parts))
        and context.classes == layers[-1].outputs
        and 0 <= int(context.y.min()) <= int(context.y.max()) < context.classes
    )
    return layers if fits else None

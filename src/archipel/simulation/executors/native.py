"""Native execution: perceptrons, learner by learner, in C, on threads that Python knows nothing of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from archipel.core.checks import require
from archipel.core.types import Plan, Score, Tallies
from archipel.kernels.native.library import library
from archipel.kernels.native.perceptron import Descent, Linear, Network, Training, Trial
from archipel.learner.batches import epochs_of, shuffled
from archipel.learner.learner import Job, Work
from archipel.simulation.executors.stacked_networks import Classifier, network


class Native:
    """Trains perceptrons, and tries them."""

    name = "native"
    threads: int | None = 1  # of torch: what is left to it is small

    def __init__(self, work: Work) -> None:
        self.work = work
        found, layers = library(), linear_layers(work)
        assert found is not None
        assert layers is not None
        found.archipel_pool_resize(torch.get_num_threads())
        self._library, self._layers = found, layers
        self._layer_of = {entry.start: layer.name for layer in work.layout.layers for entry in layer.entries}
        self._network = lru_cache(maxsize=8)(self._made)
        self._tried = self._made((), Descent())
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        """Learners' examples by identity, and the same once they were checked."""
        self._out: dict[Job, tuple[Training, int]] = {}
        """Jobs that are being trained, and how many epochs they will have then."""

    def advance(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        """Carry all jobs on by so many epochs, or to their ends; `settle` before a job is looked at."""
        self.settle()
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
                self.settle(job)
            self._watch(watching)
            watching = [job for job in watching if not job.done]
            epochs = None if epochs is None else epochs - 1

    def settle(self, job: Job | None = None) -> None:
        """Have this job, or all, at hand."""
        for mine in list(self._out) if job is None else [job]:
            if mine in self._out:
                training, epochs = self._out[mine]
                training.wait()
                del self._out[mine]
                mine.vector, mine.epochs = training.model, epochs
                if training.momentum is not None:
                    mine.memory = {"momentum": training.momentum}
                if training.then is not None:
                    (mine.validation,) = tallies(training.then)

    def trial(self, vector: Tensor, examples: Tensor, sizes: NDArray[np.int64]) -> Trial:
        """Begin to try a model on the examples, `checked`, of parts of these sizes, one after the other."""
        trial = Trial(self._tried, vector, examples, sizes)
        trial.begin()
        return trial

    def _begin(self, job: Job, end: int) -> None:
        plan, learner = job.plan, job.learner
        steps = job.steps_at(end) - job.steps
        made = self._network(plan.trains, _descent(plan))
        momentum = self._momentum(job) if plan.momentum else None
        orders = [shuffled(plan, job.examples, epoch) for epoch in range(job.epochs, end)]
        order = orders[0] if len(orders) == 1 else np.concatenate(orders)
        model, then = job.vector.clone(), None
        if "validation" in plan.reports and end == epochs_of(plan, job.examples) and plan.cycle is None:
            then = Trial(self._tried, model, self._checked(learner.validation), np.array([len(learner.validation)]))
        own = self._checked(learner.train)
        training = Training(made, model, own, order, plan.batch, steps, job.anchor, momentum, then)
        self._out[job] = (training, end)
        training.begin()

    def _watch(self, jobs: Sequence[Job]) -> None:
        """Note every job's mean loss on its validation part."""
        sizes = [len(job.learner.validation) for job in jobs]
        trials = [
            self.trial(job.vector, self._checked(job.learner.validation), np.array([size]))
            for job, size in zip(jobs, sizes, strict=True)
        ]
        for job, size, trial in zip(jobs, sizes, trials, strict=True):
            trial.wait()
            job.losses.append(float(trial.losses[0]) / size if size else float("nan"))

    def _made(self, trains: tuple[str, ...] | None, descent: Descent) -> Network:
        work = self.work
        layers = [
            layer._replace(trained=trains is None or self._layer_of[layer.weight] in trains) for layer in self._layers
        ]
        return Network(self._library, work.x, work.y, layers, descent)

    def _momentum(self, job: Job) -> Tensor:
        kept = job.memory.get("momentum")
        return torch.zeros_like(job.vector) if kept is None else kept.clone()

    def checked(self, examples: Tensor) -> Tensor:
        """These examples, in one piece, once it is sure that there are such: C would read whatever lies there."""
        there = len(self.work.x)
        require(
            len(examples) == 0 or 0 <= int(examples.min()) <= int(examples.max()) < there,
            f"Native: a learner has examples that do not exist: their numbers should be from 0 to {there - 1}.",
        )
        return examples.contiguous()

    def _checked(self, examples: Tensor) -> Tensor:
        """A learner's own, which stay the same from task to task."""
        known = self._own.get(id(examples))
        if known is None:
            known = self._own[id(examples)] = (examples, self.checked(examples))
        return known[1]


class Trials:
    """Tries models on the library's threads while this one goes on; answers are fetched when they are needed."""

    def __init__(self, native: Native, examples: Callable[[str, Score], Tensor]) -> None:
        """examples: what a site tries a model on."""
        self._native, self._examples = native, examples
        self._parts = lru_cache(maxsize=256)(self._together)
        self._out: dict[int, Trial] = {}

    def begin(self, number: int, vector: Tensor, sites: Sequence[str], probe: Score) -> None:
        """Have the model tried by these sites, under this number."""
        self._out[number] = self._native.trial(vector, *self._parts(sites, probe))

    def result(self, number: int) -> Tallies:
        trial = self._out[number]
        trial.wait()
        del self._out[number]
        return tallies(trial)

    def _together(self, sites: Sequence[str], probe: Score) -> tuple[Tensor, NDArray[np.int64]]:
        """The examples of all these sites, one site after the other, and how many each has."""
        parts = [self._examples(name, probe) for name in sites]
        return self._native.checked(torch.cat(parts)), np.array([len(part) for part in parts], dtype=np.int64)


def _descent(plan: Plan) -> Descent:
    decay = float(plan.options.get("weight_decay", 0.0))  # type: ignore[arg-type]
    return Descent(plan.rate, plan.momentum, plan.proximal, decay, bool(plan.options.get("nesterov")))


def tallies(trial: Trial) -> Tallies:
    return Tallies(trial.sizes, trial.losses, trial.confusion, None)


def linear_layers(work: Work) -> list[Linear] | None:
    """The layers of a perceptron that the library can train on these examples, or None."""
    found = network(work.module, work.loss, work.y)
    if library() is None or not isinstance(found, Classifier) or work.x.device.type != "cpu":
        return None
    begins = {entry.name: entry.start for layer in work.layout.layers for entry in layer.entries}
    layers: list[Linear] = []
    for part, weight, bias in found.parts:
        if isinstance(part, nn.Linear):
            layers.append(Linear(part.in_features, part.out_features, begins[weight], begins.get(bias, -1), False))
        elif isinstance(part, nn.ReLU) and layers:
            layers[-1] = layers[-1]._replace(rectified=True)
        elif not isinstance(part, nn.Flatten | nn.Identity):
            return None
    fits = (
        work.x.dtype == torch.float32
        and work.x.is_contiguous()
        and work.y.is_contiguous()
        and work.x[0].numel() == layers[0].inputs
        and (work.x.dim() == 2 or any(isinstance(part, nn.Flatten) for part, *_ in found.parts))
        and work.classes == layers[-1].outputs
        and 0 <= int(work.y.min()) <= int(work.y.max()) < work.classes
    )
    return layers if fits else None

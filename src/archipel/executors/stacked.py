"""Stacked execution: many learners are trained at once.

A step has one batched product for each linear layer of all learners in the stack (`stacked_networks.py`). Learners may
differ in the number of examples, batches and epochs: they are sorted by steps, so that those with steps left are always
the first ones, and a short last batch is padded with examples of weight zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.types import Plan, Score, ScoreTable
from archipel.executors.arithmetic import multiplications
from archipel.executors.fork_pool import ForkPool
from archipel.executors.fork_scorer import ForkScorer
from archipel.executors.interface import PendingResult
from archipel.executors.stacked_networks import Classifier, Step, TrainedParts, network
from archipel.executors.stacked_steps import Places, StackedOptimiser, StackedSgd, StackedTorch, by_hand
from archipel.kernels.threads import threads
from archipel.learner.batches import epochs_of, shuffled, steps_of_epoch
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.probes import Parts, Tally, mean_loss
from archipel.learner.training import advance

NUMBERS = 1 << 26
"""Most parameters of a stack."""
WORTH_A_PROCESS = 1_500_000
"""Multiplications in a step's forward pass from which jobs form a separate stack, for another process."""
LEARNERS = 5
"""Fewest learners in a stack: with fewer, the overhead of operations dominates."""
KEPT = 1 << 20
"""Most parameters of a stack whose memory is kept for the next one; preparing it takes as long as a step."""


@dataclass
class Stack:
    """The stacked models of some jobs."""

    models: Places
    optimiser: StackedOptimiser
    prepared: dict[int, PreparedStep] = field(default_factory=dict)
    """Prepared steps by the number of learners still in training and the width of their batches."""


@dataclass(frozen=True)
class PreparedStep:
    """A step of a number of learners on a number of examples each."""

    learners: int
    inputs: Tensor
    """Memory for the examples."""
    targets: Tensor
    """Memory for their targets."""
    step: Step


class Stacked:
    """Trains many learners as one stack."""

    name = "stacked"
    reason = ""
    ahead = 0

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        self.network = network(context)
        count = torch.get_num_threads() if context.x.device.type == "cpu" else 1
        self.pool = ForkPool(count, max(NUMBERS, context.layout.size))
        self.scorer = ForkScorer(context)
        self._products = max(context.layout.size, multiplications(context))
        self._last: tuple[object, Stack | None] = (None, None)
        """The key of the last stack, and the stack, if its memory is kept."""

    def running(self) -> AbstractContextManager[None]:
        """Let torch use one thread: the products are too small to gain from more."""
        return threads(1)

    def divide(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Divide jobs into stacks that can be stepped as one."""
        groups: dict[object, list[Job]] = {}
        for job in jobs:
            groups.setdefault((_shared(job), self.network.whole and job.examples), []).append(job)
        return [stack for group in groups.values() for stack in self._divided(group)]

    def submit(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        """Start training jobs for this many epochs, or until they are done."""
        self.pool.submit(self.divide(jobs), epochs, self._advance)

    def wait(self, job: Job | None = None) -> None:
        """Wait until this job, or all jobs, have been trained."""
        self.pool.wait(self._advance, job)

    def drop(self, job: Job) -> None:
        """Do nothing: a job cannot be removed from its stack."""

    def score(self, model: Tensor, parts: Parts, probe: Score, *, urgent: bool = False) -> PendingResult[ScoreTable]:
        """Score a model, in another process if that is worth it."""
        return self.scorer.score(model, parts, probe, urgent=urgent)

    def close(self) -> None:
        """Stop all processes."""
        self.pool.close()
        self.scorer.close()

    def _divided(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Return stacks that are each worth a process and fit into memory, with jobs of similar length together.

        The division depends on the jobs alone and not on the number of processes, so that the results do not either.
        The number of stacks is a power of two, to keep 2, 4, … processes equally busy.
        """
        fitting = max(1, NUMBERS // self.context.layout.size)
        worth = len(jobs) * self._products * max(job.plan.batch for job in jobs) // WORTH_A_PROCESS
        even = 1 << max(0, worth.bit_length() - 1)
        least = 1 if isinstance(self.network, Classifier) else LEARNERS
        count = min(len(jobs), max(min(even, max(1, len(jobs) // least)), -(-len(jobs) // fitting)))
        ordered = sorted(jobs, key=lambda job: -job.examples)
        bounds = [len(jobs) * i // count for i in range(count + 1)]
        return [ordered[start:stop] for start, stop in pairwise(bounds)]

    def _advance(self, jobs: Sequence[Job], epochs: int | None) -> None:
        if self.network.norms:  # torch refuses batch statistics of one example, or takes them over its positions
            for job in jobs:
                if _has_batch_of_one(job):
                    advance(self.context, job, epochs)
            jobs = [job for job in jobs if not _has_batch_of_one(job)]
        by_epoch = any(job.watches for job in jobs)
        left = epochs
        while active := [job for job in jobs if not job.done]:
            if left == 0:
                return
            ahead = 1 if by_epoch else max(epochs_of(job.plan, job.examples) - job.epochs for job in active)
            ahead = ahead if left is None else min(ahead, left)
            self._train(active, ahead)
            left = None if left is None else left - ahead

    def _train(self, jobs: Sequence[Job], epochs: int) -> None:
        """Train these jobs for this many epochs, or as many as are left."""
        ends = {job: min(job.epochs + epochs, epochs_of(job.plan, job.examples)) for job in jobs}
        ahead = {job: job.steps_at(end) - job.steps for job, end in ends.items()}
        jobs = sorted(jobs, key=lambda job: -ahead[job])
        fresh = [job for job in jobs if not job.losses]
        if jobs[0].watches and fresh:
            self._watch(fresh)
        trained = self._trained(jobs[0].plan)
        stack = self._stack(jobs, trained)
        if trained.parameters:
            going_on = [job for job in jobs if ends[job] < epochs_of(job.plan, job.examples)]
            self._steps(jobs, [ahead[job] for job in jobs], stack, trained, going_on)
        for job, vector in zip(jobs, stack.models.vectors(), strict=True):
            job.vector, job.epochs = vector, ends[job]
        if jobs[0].watches:
            self._watch(jobs)
        if "validation" in jobs[0].plan.reports and all(job.done for job in jobs) and not self.network.whole:
            self._score(jobs, stack.models.tensors)

    def _trained(self, plan: Plan) -> TrainedParts:
        """Return the parts that a plan trains, with parameters in the order in which torch's optimisers number them."""
        layers = self.context.layout.layers
        trained = [layer for layer in layers if plan.trains is None or layer.name in plan.trains]
        names = {entry.name for layer in trained if not layer.buffers for entry in layer.entries}
        parameters = self.context.module.named_parameters()
        return TrainedParts(
            tuple(name for name, parameter in parameters if parameter.requires_grad and name in names),
            tuple(layer.module for layer in layers if layer.buffers and layer not in trained),
        )

    def _stack(self, jobs: Sequence[Job], trained: TrainedParts) -> Stack:
        """Stack the models of these jobs, reusing the last stack's memory if it was small and of the same shape."""
        plan, alike = jobs[0].plan, (len(jobs), *_shared(jobs[0]))
        alike_before, stack = self._last
        if alike != alike_before or stack is None or not by_hand(plan):
            models = self._places(jobs)
            anchors, shifts, momenta = (
                self._places(jobs) if needed else None
                for needed in (plan.proximal, jobs[0].shift is not None, plan.momentum)
            )
            stack = Stack(models, StackedSgd(plan, models, anchors, shifts, momenta))
            if by_hand(plan):
                self._last = (alike, stack if len(jobs) * self.context.layout.size <= KEPT else None)
            elif trained.parameters:
                memories = [job.memory for job in jobs]
                stack.optimiser = StackedTorch(plan, models, anchors, shifts, trained.parameters, memories)
        stack.models.fill([job.vector for job in jobs])
        optimiser = stack.optimiser
        if optimiser.anchors is not None:
            optimiser.anchors.fill([job.anchor for job in jobs if job.anchor is not None])
        if optimiser.shifts is not None:
            optimiser.shifts.fill([job.shift for job in jobs if job.shift is not None])
        if isinstance(optimiser, StackedSgd) and optimiser.momenta is not None:
            optimiser.momenta.fill([job.memory.get("momentum", torch.zeros_like(job.vector)) for job in jobs])
        return stack

    def _places(self, jobs: Sequence[Job]) -> Places:
        return Places(self.context.layout, len(jobs), jobs[0].vector)

    def _steps(
        self,
        jobs: Sequence[Job],
        steps: Sequence[int],
        stack: Stack,
        trained: TrainedParts,
        going_on: Sequence[Job],
    ) -> None:
        """Make `steps` steps for each of the jobs, which are sorted by them, most first.

        going_on: jobs whose optimisers' memory is needed later.
        """
        context, optimiser = self.context, stack.optimiser
        batches = [min(job.plan.batch, job.examples) for job in jobs]
        examples = torch.from_numpy(_table(jobs, steps, batches)).to(context.x.device)
        weights = _weights(tuple(job.examples for job in jobs), tuple(batches), steps[0])
        present = np.count_nonzero(weights.numpy(), axis=2)
        shares = weights.to(context.x.device)
        widths = present[:, 0] if self.network.whole else np.full(len(present), max(batches))
        with torch.inference_mode(isinstance(optimiser, StackedSgd)), torch.no_grad():  # torch's own change parameters
            for k, start, stop in _phases(steps):
                for number in range(start, stop):
                    width = int(widths[number])
                    prepared = self._prepared(stack, k, width, trained)
                    places = examples[number, :k, :width].flatten()
                    torch.index_select(context.x, 0, places, out=prepared.inputs)
                    torch.index_select(context.y, 0, places, out=prepared.targets)
                    if self.network.draws is not None:
                        self._seed(jobs[:k], batches, number, present[number])
                    prepared.step(shares[number, :k, :width], bool((present[number, :k] < width).any()))
                for i, job in enumerate(jobs[:k]):
                    if steps[i] == stop and job in going_on:
                        job.memory = optimiser.memory(i)

    def _seed(self, jobs: Sequence[Job], batches: Sequence[int], step: int, present: NDArray[np.int64]) -> None:
        """Seed learners that begin an epoch as if they were trained alone."""
        draws = self.network.draws
        assert draws is not None
        draws.present = present.tolist()
        for i, (job, batch) in enumerate(zip(jobs, batches, strict=False)):
            epoch, within = divmod(step, steps_of_epoch(job.examples, batch))
            if within == 0:
                draws.seed(i, job.key + job.epochs + epoch)

    def _prepared(self, stack: Stack, k: int, width: int, trained: TrainedParts) -> PreparedStep:
        """Return the step of the first k learners, those not done."""
        prepared = stack.prepared.get(width)
        if prepared is None or prepared.learners != k:
            if any(other.learners != k for other in stack.prepared.values()):
                stack.prepared.clear()
            active = stack.optimiser.narrow(k)
            x, y = (data.new_empty(k, width, *data.shape[1:]) for data in (self.context.x, self.context.y))
            step = self.network.step(active, trained, stack.optimiser, x, y)
            prepared = stack.prepared[width] = PreparedStep(k, x.flatten(0, 1), y.flatten(0, 1), step)
        return prepared

    def _watch(self, jobs: Sequence[Job]) -> None:
        """Append each job's mean loss on its validation part."""
        if self.network.whole:
            for job in jobs:
                self.context.binding.bind(job.vector)
                job.losses.append(mean_loss(self.context, job.learner.validation))
            return
        context, models = self.context, self._places(jobs)
        models.fill([job.vector for job in jobs])
        examples, there = _validation(jobs)
        weights = there / there.sum(dim=1, keepdim=True).clamp(min=1)
        self.network.eval()
        with torch.no_grad():
            losses = self.network.losses(self.network.outputs(models.tensors, context.x[examples]), context.y[examples])
            means = (losses * weights.to(losses.device)).sum(dim=1)
        for i, job in enumerate(jobs):
            job.losses.append(float(means[i]) if len(job.learner.validation) else float("nan"))

    def _score(self, jobs: Sequence[Job], tensors: Mapping[str, Tensor]) -> None:
        """Score all jobs' models on their validation parts in one pass."""
        context = self.context
        examples, there = _validation(jobs)
        self.network.eval()
        with torch.no_grad():
            outputs = self.network.outputs(tensors, context.x[examples])[there]
        tally = Tally(np.array([len(job.learner.validation) for job in jobs]), context.classes)
        tally.add(context, outputs, context.y[examples[there]], there.nonzero()[:, 0])
        for job, scored in zip(jobs, tally.table(), strict=True):
            job.validation = scored


def _shared(job: Job) -> tuple[object, ...]:
    """Return the key that jobs of one stack must share."""
    plan = job.plan
    steps = 0 if by_hand(plan) else job.steps  # torch's optimisers count them
    settings = (plan.optimiser, plan.rate, plan.momentum, plan.proximal, tuple(plan.options.items()), plan.trains)
    return *settings, job.shift is not None, job.watches, steps


def _has_batch_of_one(job: Job) -> bool:
    return min(job.plan.batch, job.examples) == 1 or job.examples % job.plan.batch == 1


def _validation(jobs: Sequence[Job]) -> tuple[Tensor, Tensor]:
    """Return indices of the examples of validation parts, [learner, position], and a mask without the padding."""
    parts = [job.learner.validation.numpy() for job in jobs]
    sizes = [len(part) for part in parts]
    examples = np.empty((len(jobs), max(1, *sizes)), dtype=np.int64)
    for mine, job, part, size in zip(examples, jobs, parts, sizes, strict=True):
        mine[:size] = part
        mine[size:] = part[0] if size else int(job.learner.train[0])  # pad with the learner's own examples
    there = np.arange(examples.shape[1]) < np.array(sizes)[:, None]
    return torch.from_numpy(examples), torch.from_numpy(there)


def _phases(steps: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (first step, end, number of learners in training) for learners sorted by steps, most first."""
    start = 0
    for stop in sorted({*steps}):
        if stop:
            yield sum(mine >= stop for mine in steps), start, stop
        start = stop


def _table(jobs: Sequence[Job], steps: Sequence[int], batches: Sequence[int]) -> NDArray[np.int64]:
    """Return indices of the examples of the next mini-batches: [step, learner, position].

    Padding repeats the learner's own examples with weight zero: another learner's could be NaN, and 0 x NaN is NaN.
    """
    longest, widest = steps[0], max(batches)
    table = np.empty((longest, len(jobs), widest), dtype=np.int64)
    for i, (job, batch) in enumerate(zip(jobs, batches, strict=True)):
        n, own, per_epoch = job.examples, job.learner.train.numpy(), steps_of_epoch(job.examples, batch)
        if batch < widest:
            table[:, i, batch:] = own[0]
        for start in range(0, steps[i], per_epoch):
            order = own[shuffled(job.key, n, job.epochs + start // per_epoch)]
            if n < per_epoch * batch:
                order = np.append(order, np.repeat(own[0], per_epoch * batch - n))
            table[start : start + per_epoch, i, :batch] = order.reshape(-1, batch)[: longest - start]
    return table


@lru_cache(maxsize=1)
def _weights(examples: Sequence[int], batches: Sequence[int], longest: int) -> Tensor:
    """Return weights of the examples in their batch's mean, [step, learner, position], the same in every round."""
    weights = np.zeros((longest, len(batches), max(batches)), dtype=np.float32)
    for i, (n, batch) in enumerate(zip(examples, batches, strict=True)):
        weights[:, i, :batch] = 1 / batch
        per_epoch = steps_of_epoch(n, batch)
        short = n - (per_epoch - 1) * batch
        if short < batch:
            weights[per_epoch - 1 :: per_epoch, i, :batch] = np.repeat((1 / short, 0), (short, batch - short))
    return torch.from_numpy(weights)

"""Stacked execution: many learners trained at once.

A step is one batched product for each linear layer of all learners in the stack (`stacked_networks.py`). Learners may
differ in the number of examples, batches and epochs: they are sorted by steps, so that those with steps left are always
the first ones, and a short last batch is padded with examples of weight zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.layout import Layout
from archipel.core.types import Plan, Score, ScoreTable
from archipel.kernels.threads import threads
from archipel.learner.batches import epochs_of, shuffled, steps_of_epoch
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.probes import Parts, empty_table, tally
from archipel.simulation.executors.fork_pool import ForkPool
from archipel.simulation.executors.fork_scorer import ForkScorer
from archipel.simulation.executors.interface import Pending
from archipel.simulation.executors.stacked_networks import Classifier, Step, network

NUMBERS = 1 << 26
"""Parameters of a stack at most."""
WORTH_A_PROCESS = 2_000_000
"""Multiplications of a step's forward pass that make a stack of its own, which another process may train."""
KEPT = 1 << 20
"""Parameters of a stack at most whose place is kept for the next one: to make it ready takes as long as a step."""

Ready: TypeAlias = tuple[Tensor, Tensor, Step]
"""Where the inputs and the targets of a step's examples go, one after the other, and the step."""


class Stacked:
    """Steps many learners as one."""

    name = "stacked"

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        self.network = network(context.module, context.loss, context.y)
        count = torch.get_num_threads() if context.x.device.type == "cpu" else 1
        self.pool = ForkPool(count, max(NUMBERS, context.layout.size))
        self.scorer = ForkScorer(context)
        self._last: tuple[object, Descent | None] = (None, None)
        """What the jobs of the last stack had in common, and its place if it is kept."""
        self._layer_of = {entry.name: layer.name for layer in context.layout.layers for entry in layer.entries}

    def running(self) -> AbstractContextManager[None]:
        """Let torch use one thread: the products are small, and a second thread would cost more than it gains."""
        return threads(1)

    def divide(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Return stacks of jobs that have enough in common to be stepped as one."""
        groups: dict[object, list[Job]] = {}
        for job in jobs:
            groups.setdefault(_shared(job), []).append(job)
        return [stack for group in groups.values() for stack in self._divided(group)]

    def submit(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        """Start to train jobs for this many epochs, or to their ends."""
        self.pool.submit(self.divide(jobs), epochs, self._advance)

    def wait(self, job: Job | None = None) -> None:
        """Return when this job, or all, have been trained."""
        self.pool.wait(self._advance, job)

    def score(self, model: Tensor, parts: Parts, probe: Score, *, urgent: bool = False) -> Pending[ScoreTable]:
        """Score a model, in another process where that is worth it."""
        return self.scorer.score(model, parts, probe, urgent=urgent)

    def close(self) -> None:
        """Stop all processes."""
        self.pool.close()
        self.scorer.close()

    def _divided(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Stacks that are each worth a process and fit into memory; jobs of like length come together.

        It looks at the jobs alone, not at the processes there are, so that the bits depend on nothing else.
        """
        size, fitting = self.context.layout.size, max(1, NUMBERS // self.context.layout.size)
        products = len(jobs) * size * max(job.plan.batch for job in jobs)
        count = min(len(jobs), max(1, products // WORTH_A_PROCESS, -(-len(jobs) // fitting)))
        ordered = sorted(jobs, key=lambda job: -job.examples)
        bounds = [len(jobs) * i // count for i in range(count + 1)]
        return [ordered[start:stop] for start, stop in pairwise(bounds)]

    def _advance(self, jobs: Sequence[Job], epochs: int | None) -> None:
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
        """So many epochs, or what is left of them, for each of these jobs."""
        ends = {job: min(job.epochs + epochs, epochs_of(job.plan, job.examples)) for job in jobs}
        ahead = {job: job.steps_at(end) - job.steps for job, end in ends.items()}
        jobs = sorted(jobs, key=lambda job: -ahead[job])
        fresh = [job for job in jobs if not job.losses]
        if jobs[0].watches and fresh:
            self._watch(fresh)
        descent = self._descent(jobs)
        self._steps(jobs, [ahead[job] for job in jobs], descent)
        momenta = descent.momenta.vectors() if descent.momenta else None
        for i, (job, vector) in enumerate(zip(jobs, descent.models.vectors(), strict=True)):
            job.vector, job.epochs = vector, ends[job]
            if momenta is not None:
                job.memory = {"momentum": momenta[i]}
        if jobs[0].watches:
            self._watch(jobs)
        if "validation" in jobs[0].plan.reports and all(job.done for job in jobs):
            self._score(jobs, descent.models.tensors)

    def _descent(self, jobs: Sequence[Job]) -> Descent:
        """Stack the models of these jobs, in the memory of the last stack if that was small and alike."""
        plan, alike = jobs[0].plan, (len(jobs), *_shared(jobs[0]))
        alike_before, descent = self._last
        if alike != alike_before or descent is None:
            models, anchors, momenta = (
                self._places(jobs) if needed else None for needed in (True, plan.proximal, plan.momentum)
            )
            assert models is not None
            descent = Descent(plan, models, anchors, momenta)
            self._last = (alike, descent if len(jobs) * self.context.layout.size <= KEPT else None)
        descent.models.fill([job.vector for job in jobs])
        if descent.anchors is not None:
            descent.anchors.fill([job.anchor for job in jobs if job.anchor is not None])
        if descent.momenta is not None:
            descent.momenta.fill([self._momentum(job) for job in jobs])
        return descent

    def _places(self, jobs: Sequence[Job]) -> Places:
        return Places(self.context.layout, len(jobs), jobs[0].vector)

    def _steps(self, jobs: Sequence[Job], steps: Sequence[int], descent: Descent) -> None:
        """So many steps for each of the jobs, which come sorted: those with most of them first."""
        context, trains = self.context, descent.plan.trains
        trained = [name for name, layer in self._layer_of.items() if trains is None or layer in trains]
        if not trained:
            return
        written_out = isinstance(self.network, Classifier)
        if not written_out:
            context.module.train()
        batches = [min(job.plan.batch, job.examples) for job in jobs]
        examples = torch.from_numpy(_table(jobs, steps, batches)).to(context.x.device)
        weights = _weights(tuple(job.examples for job in jobs), tuple(batches), steps[0]).to(context.x.device)
        with torch.inference_mode(written_out):  # others need their gradients worked out
            for k, start, stop in _phases(steps):
                inputs, targets, step = self._ready(descent, k, max(batches), trained)
                chosen, shares = examples[start:stop, :k].flatten(1), weights[start:stop, :k]
                for places, own in zip(chosen.unbind(), shares.unbind(), strict=True):
                    torch.index_select(context.x, 0, places, out=inputs)
                    torch.index_select(context.y, 0, places, out=targets)
                    step(own)

    def _ready(self, descent: Descent, k: int, width: int, trained: Sequence[str]) -> Ready:
        """Make steps of the first k learners; those that are done come last."""
        if descent.ready is None or (k, width) != (descent.k, descent.width):
            descent.narrow(k, width)
            x, y = (data.new_empty(k, width, *data.shape[1:]) for data in (self.context.x, self.context.y))
            step = self.network.step(descent.active, trained, descent, x, y)
            descent.ready = (x.flatten(0, 1), y.flatten(0, 1), step)
        return descent.ready

    def _momentum(self, job: Job) -> Tensor:
        kept = job.memory.get("momentum")
        return torch.zeros_like(job.vector) if kept is None else kept

    def _watch(self, jobs: Sequence[Job]) -> None:
        """Note every job's mean loss on its validation part."""
        context, models = self.context, self._places(jobs)
        models.fill([job.vector for job in jobs])
        examples, there = _validation(jobs)
        weights = there / there.sum(dim=1, keepdim=True).clamp(min=1)
        context.module.eval()
        with torch.no_grad():
            losses = self.network.losses(models.tensors, context.x[examples], context.y[examples])
            means = (losses * weights.to(losses.device)).sum(dim=1)
        for i, job in enumerate(jobs):
            job.losses.append(float(means[i]) if len(job.learner.validation) else float("nan"))

    def _score(self, jobs: Sequence[Job], tensors: Mapping[str, Tensor]) -> None:
        """Note how every job's model does on its validation part: in one pass, it is cheaper by far."""
        context = self.context
        examples, there = _validation(jobs)
        if context.module.training:  # to say so takes as long as a layer
            context.module.eval()
        with torch.no_grad():
            outputs = self.network.outputs(tensors, context.x[examples])[there]
        table = empty_table(np.array([len(job.learner.validation) for job in jobs]), context.classes)
        tally(table, context, outputs, context.y[examples[there]], there.nonzero()[:, 0])
        for job, scored in zip(jobs, table, strict=True):
            job.validation = scored


class Places:
    """Room for vectors as named tensors, [learner, …], each in one piece of memory: batched products want it so."""

    def __init__(self, layout: Layout, count: int, like: Tensor) -> None:
        entries = [entry for layer in layout.layers for entry in layer.entries]
        self.tensors = {entry.name: like.new_empty(count, *entry.shape) for entry in entries}
        self._pieces = [tensor.view(count, -1) for tensor in self.tensors.values()]
        self._sizes = [entry.stop - entry.start for entry in entries]

    def fill(self, vectors: Sequence[Tensor]) -> None:
        """One vector a learner; in a round they begin with the same one."""
        alike = all(vector is vectors[0] for vector in vectors)
        rows = vectors[0].unsqueeze(0) if alike else torch.stack([*vectors])
        for place, piece in zip(self._pieces, rows.split_with_sizes(self._sizes, 1), strict=True):
            place.copy_(piece)

    def vectors(self) -> list[Tensor]:
        """Return the results, each in memory of its own, since some are needed longer than others."""
        return [row.clone() for row in torch.cat(self._pieces, dim=1).unbind()]


class Descent:
    """SGD as torch.optim writes it, for all learners of a stack: proximal term, weight decay, momentum, Nesterov."""

    def __init__(self, plan: Plan, models: Places, anchors: Places | None, momenta: Places | None) -> None:
        self.plan = plan
        self.models, self.anchors, self.momenta = models, anchors, momenta
        self.ready: Ready | None = None
        """The last steps that were made ready."""
        self.narrow(len(next(iter(models.tensors.values()))), 0)

    def narrow(self, k: int, width: int) -> None:
        """Only the first k learners are still at context, on so many examples a step."""
        self.k, self.width = k, width
        self.active = {name: tensor[:k] for name, tensor in self.models.tensors.items()}

    def by_product(self, name: str, left: Tensor, right: Tensor) -> Callable[[], object]:
        """Descends along left @ right; where nothing is added to it, the product adds itself to its tensor."""
        tensor, rate, gamma = self.active[name], self.plan.rate, self.plan.momentum
        if self.anchors or self.plan.options:
            change = self.by_gradient(name)
            return lambda: change(torch.bmm(left, right))
        if not self.momenta:
            return partial(tensor.baddbmm_, left, right, alpha=-rate)
        momentum = self.momenta.tensors[name][: self.k]
        return lambda: tensor.sub_(momentum.baddbmm_(left, right, beta=gamma), alpha=rate)

    def by_gradient(self, name: str) -> Callable[[Tensor], object]:
        tensor, plan = self.active[name], self.plan
        anchor = self.anchors.tensors[name][: self.k] if self.anchors else None
        momentum = self.momenta.tensors[name][: self.k] if self.momenta else None
        decay = float(plan.options.get("weight_decay", 0.0))  # type: ignore[arg-type]
        nesterov = bool(plan.options.get("nesterov"))
        if anchor is None and momentum is None and not decay:
            return partial(tensor.sub_, alpha=plan.rate)

        def change(gradient: Tensor) -> None:
            if anchor is not None:
                gradient = gradient.add(tensor - anchor, alpha=plan.proximal)
            if decay:
                gradient = gradient.add(tensor, alpha=decay)
            if momentum is not None:
                momentum.mul_(plan.momentum).add_(gradient)
                gradient = gradient.add(momentum, alpha=plan.momentum) if nesterov else momentum
            tensor.sub_(gradient, alpha=plan.rate)

        return change


def _shared(job: Job) -> tuple[object, ...]:
    """Return what the jobs of one stack must have in common."""
    plan = job.plan
    return plan.rate, plan.momentum, plan.proximal, tuple(plan.options.items()), plan.trains, job.watches


def _validation(jobs: Sequence[Job]) -> tuple[Tensor, Tensor]:
    """[learner, place] indices of the examples of validation parts, and where there is one: what fills up is none."""
    parts = [job.learner.validation.numpy() for job in jobs]
    sizes = [len(part) for part in parts]
    examples = np.empty((len(jobs), max(1, *sizes)), dtype=np.int64)
    for mine, job, part, size in zip(examples, jobs, parts, sizes, strict=True):
        mine[:size] = part
        mine[size:] = part[0] if size else int(job.learner.train[0])  # padding is the learner's own too
    there = np.arange(examples.shape[1]) < np.array(sizes)[:, None]
    return torch.from_numpy(examples), torch.from_numpy(there)


def _phases(steps: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """How many are still at work from one step to another, where those with most steps come first."""
    start = 0
    for stop in sorted({*steps}):
        if stop:
            yield sum(mine >= stop for mine in steps), start, stop
        start = stop


def _table(jobs: Sequence[Job], steps: Sequence[int], batches: Sequence[int]) -> NDArray[np.int64]:
    """[step, learner, place] indices of the examples of the next mini-batches.

    What fills a short batch up is its learner's own and has weight zero: 0 x NaN of another learner is NaN.
    """
    longest, widest = steps[0], max(batches)
    table = np.empty((longest, len(jobs), widest), dtype=np.int64)
    for i, (job, batch) in enumerate(zip(jobs, batches, strict=True)):
        n, own, per_epoch = job.examples, job.learner.train.numpy(), steps_of_epoch(job.examples, batch)
        if batch < widest:
            table[:, i, batch:] = own[0]
        for start in range(0, steps[i], per_epoch):
            order = own[shuffled(job.plan, n, job.epochs + start // per_epoch)]
            if n < per_epoch * batch:
                order = np.append(order, np.repeat(own[0], per_epoch * batch - n))
            table[start : start + per_epoch, i, :batch] = order.reshape(-1, batch)[: longest - start]
    return table


@lru_cache(maxsize=1)
def _weights(examples: Sequence[int], batches: Sequence[int], longest: int) -> Tensor:
    """[step, learner, place]: weights of the examples in their batch's mean. They are the same round after round."""
    weights = np.zeros((longest, len(batches), max(batches)), dtype=np.float32)
    for i, (n, batch) in enumerate(zip(examples, batches, strict=True)):
        weights[:, i, :batch] = 1 / batch
        per_epoch = steps_of_epoch(n, batch)
        short = n - (per_epoch - 1) * batch
        if short < batch:
            weights[per_epoch - 1 :: per_epoch, i, :batch] = np.repeat((1 / short, 0), (short, batch - short))
    return torch.from_numpy(weights)

"""Stacked execution: many learners trained at once.

A step is one batched product for each linear layer of all learners in the stack (`network.py`). Learners may differ in
the number of examples, batches and epochs: they are sorted by steps, so that those still at work are always the first
ones, and a short last batch is padded with examples of weight zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from archipel.engines.hands import Hands
from archipel.engines.network import Classifier, Step, network
from archipel.learner.batches import epochs_of, shuffled, steps_of_epoch
from archipel.learner.learner import Job, Work
from archipel.learner.probes import no_tallies, tally
from archipel.types import Plan

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
    threads: int | None = 1  # the products are small: a second thread costs more in waiting than it brings

    def __init__(self, work: Work) -> None:
        self.work = work
        self.network = network(work.module, work.loss, work.y)
        self.hands = Hands(
            torch.get_num_threads() if work.x.device.type == "cpu" else 1, max(NUMBERS, work.layout.size)
        )
        self._last: tuple[object, Descent | None] = (None, None)
        """What the jobs of the last stack had in common, and its place if it is kept."""
        self._layer_of = {entry.name: layer.name for layer in work.layout.layers for entry in layer.entries}

    def advance(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        """Carry all jobs on by so many epochs, or to their ends."""
        groups: dict[object, list[Job]] = {}
        for job in jobs:
            groups.setdefault(_shared(job), []).append(job)
        stacks = [stack for group in groups.values() for stack in self._divided(group)]
        self.hands.advance(stacks, epochs, self._advance)

    def settle(self, job: Job | None = None) -> None:
        """Have this job, or all, at hand."""
        self.hands.settle(self._advance, job)

    def _divided(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Stacks that are each worth a process and fit into memory; jobs of like length come together.

        It looks at the jobs alone, not at the processes there are, so that the bits depend on nothing else.
        """
        size, fitting = self.work.layout.size, max(1, NUMBERS // self.work.layout.size)
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
        steps = {job: _steps_ahead(job, epochs) for job in jobs}
        jobs = sorted(jobs, key=lambda job: -steps[job])
        rows = torch.stack([job.vector for job in jobs])
        fresh = [i for i, job in enumerate(jobs) if not job.losses]
        if jobs[0].watches and fresh:
            self._watch([jobs[i] for i in fresh], rows[fresh])
        descent = self._descent(jobs, rows)
        self._steps(jobs, [steps[job] for job in jobs], descent)
        rows, remembered = _joined(descent.tensors), _joined(descent.momenta) if descent.momenta else None
        for i, job in enumerate(jobs):
            job.vector.copy_(rows[i])
            job.epochs = min(job.epochs + epochs, epochs_of(job.plan, job.examples))
            if remembered is not None:
                job.memory = {"momentum": remembered[i].clone()}
        if jobs[0].watches:
            self._watch(jobs, rows)
        if "validation" in jobs[0].plan.reports and all(job.done for job in jobs):
            self._score(jobs, descent.tensors)

    def _descent(self, jobs: Sequence[Job], rows: Tensor) -> Descent:
        """The models of these jobs, ready to descend: in the place of the last stack, if that was small and alike."""
        plan, alike = jobs[0].plan, (len(jobs), *_shared(jobs[0]))
        alike_before, descent = self._last
        if alike != alike_before or descent is None:
            tensors, anchors, momenta = (
                self._places(rows) if needed else {} for needed in (True, plan.proximal, plan.momentum)
            )
            descent = Descent(plan, tensors, anchors, momenta)
            self._last = (alike, descent if rows.numel() <= KEPT else None)
        _laid(rows, descent.tensors)
        if plan.proximal:
            _laid(torch.stack([job.anchor for job in jobs if job.anchor is not None]), descent.anchors)
        if plan.momentum:
            _laid(torch.stack([self._momentum(job) for job in jobs]), descent.momenta)
        return descent

    def _places(self, rows: Tensor) -> dict[str, Tensor]:
        """Room for rows as named tensors, [learner, …], each in one piece of memory: batched products want it so."""
        return {
            entry.name: rows.new_empty(len(rows), *entry.shape)
            for layer in self.work.layout.layers
            for entry in layer.entries
        }

    def _steps(self, jobs: Sequence[Job], steps: Sequence[int], descent: Descent) -> None:
        """So many steps for each of the jobs, which come sorted: those with most of them first."""
        work, trains = self.work, descent.plan.trains
        trained = [name for name, layer in self._layer_of.items() if trains is None or layer in trains]
        if not trained:
            return
        written_out = isinstance(self.network, Classifier)
        if not written_out:
            work.module.train()
        examples, weights = _table(jobs, steps, work.x.device)
        with torch.inference_mode(written_out):  # others need their gradients worked out
            for k, numbers in groupby(range(steps[0]), lambda number: sum(mine > number for mine in steps)):
                inputs, targets, step = self._ready(descent, k, weights.shape[2], trained)
                now = [*numbers]
                chosen, shares = examples[now[0] : now[-1] + 1, :k].flatten(1), weights[now[0] : now[-1] + 1, :k]
                for places, own in zip(chosen.unbind(), shares.unbind(), strict=True):
                    torch.index_select(work.x, 0, places, out=inputs)
                    torch.index_select(work.y, 0, places, out=targets)
                    step(own)

    def _ready(self, descent: Descent, k: int, width: int, trained: Sequence[str]) -> Ready:
        """Steps of the first k learners; those who are done stand behind."""
        if descent.ready is None or (k, width) != (descent.k, descent.width):
            descent.narrow(k, width)
            x, y = (data.new_empty(k, width, *data.shape[1:]) for data in (self.work.x, self.work.y))
            step = self.network.step(descent.active, trained, descent, x, y)
            descent.ready = (x.flatten(0, 1), y.flatten(0, 1), step)
        return descent.ready

    def _momentum(self, job: Job) -> Tensor:
        kept = job.memory.get("momentum")
        return torch.zeros_like(job.vector) if kept is None else kept

    def _watch(self, jobs: Sequence[Job], rows: Tensor) -> None:
        """Note every job's mean loss on its validation part."""
        work = self.work
        examples, there = _validation(jobs)
        weights = there / there.sum(dim=1, keepdim=True).clamp(min=1)
        work.module.eval()
        with torch.no_grad():
            losses = self.network.losses(_laid(rows, self._places(rows)), work.x[examples], work.y[examples])
            means = (losses * weights.to(losses.device)).sum(dim=1)
        for i, job in enumerate(jobs):
            job.losses.append(float(means[i]) if len(job.learner.validation) else float("nan"))

    def _score(self, jobs: Sequence[Job], tensors: Mapping[str, Tensor]) -> None:
        """Note how every job's model does on its validation part: in one pass, it is cheaper by far."""
        work = self.work
        examples, there = _validation(jobs)
        work.module.eval()
        with torch.no_grad():
            outputs = self.network.outputs(tensors, work.x[examples])[there]
        tallies = no_tallies([len(job.learner.validation) for job in jobs], work.classes)
        tally(tallies, work, outputs, work.y[examples[there]], there.nonzero()[:, 0])
        for job, scored in zip(jobs, tallies, strict=True):
            job.validation = scored


class Descent:
    """SGD as torch.optim writes it, for all learners of a stack: proximal term, weight decay, momentum, Nesterov."""

    def __init__(
        self, plan: Plan, tensors: Mapping[str, Tensor], anchors: Mapping[str, Tensor], momenta: Mapping[str, Tensor]
    ) -> None:
        self.plan = plan
        self.tensors, self.anchors, self.momenta = tensors, anchors, momenta
        self.ready: Ready | None = None
        """The last steps that were made ready."""
        self.narrow(len(next(iter(tensors.values()))), 0)

    def narrow(self, k: int, width: int) -> None:
        """Only the first k learners are still at work, on so many examples a step."""
        self.k, self.width = k, width
        self.active = {name: tensor[:k] for name, tensor in self.tensors.items()}

    def by_product(self, name: str, left: Tensor, right: Tensor) -> Callable[[], object]:
        """Descends along left @ right; where nothing is added to it, the product adds itself to its tensor."""
        tensor, rate, gamma = self.active[name], self.plan.rate, self.plan.momentum
        if self.anchors or self.plan.options:
            change = self.by_gradient(name)
            return lambda: change(torch.bmm(left, right))
        if not self.momenta:
            return partial(tensor.baddbmm_, left, right, alpha=-rate)
        momentum = self.momenta[name][: self.k]
        return lambda: tensor.sub_(momentum.baddbmm_(left, right, beta=gamma), alpha=rate)

    def by_gradient(self, name: str) -> Callable[[Tensor], object]:
        tensor, plan = self.active[name], self.plan
        anchor = self.anchors[name][: self.k] if self.anchors else None
        momentum = self.momenta[name][: self.k] if self.momenta else None
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
    """What jobs of one stack have to have in common."""
    plan = job.plan
    return plan.rate, plan.momentum, plan.proximal, tuple(plan.options.items()), plan.trains, job.watches


def _laid(rows: Tensor, places: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The rows in their places, as named tensors."""
    sizes = [place[0].numel() for place in places.values()]
    for place, piece in zip(places.values(), rows.split(sizes, 1), strict=True):
        place.copy_(piece.view_as(place))
    return places


def _joined(tensors: Mapping[str, Tensor]) -> Tensor:
    """Named tensors as rows again."""
    return torch.cat([tensor.flatten(1) for tensor in tensors.values()], dim=1)


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


def _steps_ahead(job: Job, epochs: int) -> int:
    """Steps of the next so many epochs, or of what is left of them."""
    last = min(job.epochs + epochs, epochs_of(job.plan, job.examples))
    return job.steps_at(last) - job.steps


def _table(jobs: Sequence[Job], steps: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """[step, learner, place] indices of the examples of the next mini-batches, and their weights in their batch's mean.

    What fills a short batch up is its learner's own and has weight zero: 0 x NaN of another learner is NaN.
    """
    longest, widest = steps[0], max(min(job.plan.batch, job.examples) for job in jobs)
    table = np.empty((longest, len(jobs), widest), dtype=np.int64)
    weights = np.zeros(table.shape, dtype=np.float32)
    for i, job in enumerate(jobs):
        plan, n = job.plan, job.examples
        own, batch, per_epoch = job.learner.train.numpy(), min(plan.batch, n), steps_of_epoch(n, plan.batch)
        table[:, i, batch:] = own[0]
        order = np.empty(per_epoch * batch, dtype=np.int64)
        order[n:] = own[0]
        for start in range(0, steps[i], per_epoch):
            np.take(own, shuffled(plan, n, job.epochs + start // per_epoch), out=order[:n])
            table[start : start + per_epoch, i, :batch] = order.reshape(-1, batch)[: longest - start]
        weights[:, i, :batch] = 1 / batch
        short = n - (per_epoch - 1) * batch
        if short < batch:
            weights[per_epoch - 1 :: per_epoch, i, :batch] = np.repeat((1 / short, 0), (short, batch - short))
    return torch.from_numpy(table).to(device), torch.from_numpy(weights).to(device)

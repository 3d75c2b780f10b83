"""Stacked execution: many learners trained at once.

A step is one batched product for each linear layer of all learners in the stack (`network.py`). Learners may differ in
the number of examples, batches and epochs: they are sorted by steps, so that those still at work are always the first
ones, and a short last batch is padded with examples of weight zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from archipel.engines.network import network
from archipel.learner.batches import epochs_of, shuffled, steps_after, steps_of_epoch
from archipel.learner.learner import Job, Work
from archipel.types import Plan

NUMBERS = 1 << 26
"""Parameters trained at a time: larger cohorts are stacked in several goes."""


class Stacked:
    """Steps many learners as one."""

    name = "stacked"
    threads: int | None = 1  # the products are small: a second thread costs more in waiting than it brings

    def __init__(self, work: Work) -> None:
        self.work = work
        self.network = network(work.module, work.loss)
        self._layer_of = {entry.name: layer.name for layer in work.layout.layers for entry in layer.entries}

    def advance(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        """Carry all jobs on by so many epochs, or to their ends."""
        groups: dict[object, list[Job]] = {}
        for job in jobs:
            # jobs that differ in nothing but their examples and their key share a stack
            groups.setdefault(repr(replace(job.plan, key=0, cycle=None)), []).append(job)
        room = max(1, NUMBERS // self.work.layout.size)
        for group in groups.values():
            for start in range(0, len(group), room):
                self._advance(group[start : start + room], epochs)

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
        work, plan = self.work, jobs[0].plan
        schedule = [_schedule(job, epochs) for job in jobs]
        order = sorted(range(len(jobs)), key=lambda i: (-len(schedule[i][0]), i))
        jobs, schedule = [jobs[i] for i in order], [schedule[i] for i in order]
        rows = torch.stack([job.vector for job in jobs])
        fresh = [i for i, job in enumerate(jobs) if not job.losses]
        if jobs[0].watches and fresh:
            self._watch([jobs[i] for i in fresh], rows[fresh])
        received = [job.anchor for job in jobs if job.anchor is not None]
        anchors = self._pieces(torch.stack(received)) if plan.proximal else {}
        momenta = self._pieces(torch.stack([self._momentum(job) for job in jobs])) if plan.momentum else {}
        tensors = self._pieces(rows)
        trained = [name for name, layer in self._layer_of.items() if plan.trains is None or layer in plan.trains]
        examples, weights = _table(schedule, work.x.device)
        lengths = [len(steps) for steps, _ in schedule]
        k = len(jobs)
        work.module.train()
        for step in range(lengths[0] if trained else 0):
            while lengths[k - 1] <= step:  # those who are done stand behind
                k -= 1
            chosen = examples[:k, step]
            active = {name: tensor[:k] for name, tensor in tensors.items()}
            found = self.network.gradients(active, trained, work.x[chosen], work.y[chosen], weights[:k, step])
            for name, gradient in zip(trained, found, strict=True):
                anchor, momentum = anchors.get(name), momenta.get(name)
                _step(
                    plan,
                    active[name],
                    gradient,
                    None if anchor is None else anchor[:k],
                    None if momentum is None else momentum[:k],
                )
        rows, remembered = _joined(tensors), _joined(momenta) if momenta else None
        for i, job in enumerate(jobs):
            job.vector = rows[i].clone()  # a row alone must not keep its whole cohort alive
            job.epochs = min(job.epochs + epochs, epochs_of(job.plan, job.examples))
            if remembered is not None:
                job.memory = {"momentum": remembered[i].clone()}
        if jobs[0].watches:
            self._watch(jobs, rows)

    def _pieces(self, rows: Tensor) -> dict[str, Tensor]:
        """The rows as named tensors, [learner, …], each in one piece of memory: batched products want it so."""
        return {
            entry.name: rows[:, entry.start : entry.stop].unflatten(1, entry.shape).contiguous()
            for layer in self.work.layout.layers
            for entry in layer.entries
        }

    def _momentum(self, job: Job) -> Tensor:
        kept = job.memory.get("momentum")
        return torch.zeros_like(job.vector) if kept is None else kept

    def _watch(self, jobs: Sequence[Job], rows: Tensor) -> None:
        """Note every job's mean loss on its validation part."""
        work = self.work
        longest = max(1, *(len(job.learner.validation) for job in jobs))
        examples = torch.zeros(len(jobs), longest, dtype=torch.int64)
        weights = torch.zeros(len(jobs), longest)
        for i, job in enumerate(jobs):
            own = job.learner.validation
            examples[i] = own[0] if len(own) else job.learner.train[0]  # padding is the learner's own too
            examples[i, : len(own)] = own
            weights[i, : len(own)] = 1 / len(own) if len(own) else 0
        work.module.eval()
        with torch.no_grad():
            losses = self.network.losses(self._pieces(rows), work.x[examples], work.y[examples])
            means = (losses * weights.to(losses.device)).sum(dim=1)
        for i, job in enumerate(jobs):
            job.losses.append(float(means[i]) if len(job.learner.validation) else float("nan"))


def _step(plan: Plan, tensor: Tensor, gradient: Tensor, anchor: Tensor | None, momentum: Tensor | None) -> None:
    """SGD as torch.optim writes it: proximal term, weight decay, momentum, Nesterov."""
    if anchor is not None:
        gradient = gradient.add(tensor - anchor, alpha=plan.proximal)
    decay = float(plan.options.get("weight_decay", 0.0))  # type: ignore[arg-type]
    if decay:
        gradient = gradient.add(tensor, alpha=decay)
    if momentum is not None:
        momentum.mul_(plan.momentum).add_(gradient)
        gradient = gradient.add(momentum, alpha=plan.momentum) if plan.options.get("nesterov") else momentum
    tensor.sub_(gradient, alpha=plan.rate)


def _joined(tensors: dict[str, Tensor]) -> Tensor:
    """Named tensors as rows again."""
    return torch.cat([tensor.flatten(1) for tensor in tensors.values()], dim=1)


def _schedule(job: Job, epochs: int) -> tuple[Tensor, Tensor]:
    """[step, place] indices of the examples of the next epochs' mini-batches, and their weights in their batch's mean.

    A short last batch is filled up with its own first example, at weight zero: 0 x NaN of another learner is NaN.
    """
    plan, n = job.plan, job.examples
    batch, steps = min(plan.batch, n), steps_of_epoch(n, plan.batch)
    short = n - (steps - 1) * batch
    weights = torch.full((steps, batch), 1 / batch)
    weights[-1] = 0.0
    weights[-1, :short] = 1 / short
    last = min(job.epochs + epochs, epochs_of(plan, n))
    orders = []
    for epoch in range(job.epochs, last):
        order = job.learner.train[shuffled(plan, n, epoch)]
        filling = order[n - short].expand(batch - short)
        orders.append(torch.cat((order, filling)).view(steps, batch))
    made = steps_after(plan, n, last) - steps_after(plan, n, job.epochs)
    return torch.cat(orders)[:made], weights.repeat(len(orders), 1)[:made]


def _table(schedule: Sequence[tuple[Tensor, Tensor]], device: torch.device) -> tuple[Tensor, Tensor]:
    """[learner, step, place] of all schedules, the longest first; what is missing has weight zero."""
    longest, widest = len(schedule[0][0]), max(examples.shape[1] for examples, _ in schedule)
    table = torch.zeros(len(schedule), longest, widest, dtype=torch.int64)
    shares = torch.zeros(table.shape)
    for i, (examples, weights) in enumerate(schedule):
        steps, width = examples.shape
        table[i, :steps] = examples[:, :1]
        table[i, :steps, :width] = examples
        shares[i, :steps, :width] = weights
    return table, shares.to(device)

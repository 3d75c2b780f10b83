"""Stacked execution: many learners trained at once, one row of a matrix each.

Parameters of all learners in the stack are views into one [learners, M] matrix; a step is one batched product for each
linear layer. Learners may differ in the number of examples, batches and epochs: they are sorted by steps, so that those
still at work are always the first rows, and a short last batch is padded with examples of weight zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from archipel.layout import Entry
from archipel.learner.batches import batches, epochs_of
from archipel.learner.learner import Job, Loss, Work

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Softplus, nn.Identity)
STACKABLE = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Flatten, nn.Sequential, *ELEMENTWISE)
PER_EXAMPLE: tuple[Loss, ...] = (
    nn.functional.cross_entropy,
    nn.functional.nll_loss,
    nn.functional.mse_loss,
    nn.functional.l1_loss,
    nn.functional.smooth_l1_loss,
    nn.functional.binary_cross_entropy_with_logits,
)
"""Losses whose mean over a batch is the mean of single examples' losses, so that examples can have weights."""

NUMBERS = 1 << 26
"""Parameters trained at a time: larger cohorts are stacked in several goes."""

Forward = Callable[[dict[str, Tensor], Tensor], Tensor]


class Stacked:
    """Steps many learners as one."""

    name = "stacked"
    threads: int | None = 1  # the products are small: a second thread costs more in waiting than it brings

    def __init__(self, work: Work) -> None:
        self.work = work
        self._forward = _forward(work.module)

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
        order = sorted(range(len(jobs)), key=lambda i: (-len(schedule[i]), i))
        jobs, schedule = [jobs[i] for i in order], [schedule[i] for i in order]
        rows = torch.stack([job.vector for job in jobs])
        fresh = [i for i, job in enumerate(jobs) if not job.losses]
        if jobs[0].watches and fresh:
            self._watch([jobs[i] for i in fresh], rows[fresh])
        anchors = torch.stack([job.anchor for job in jobs if job.anchor is not None]) if plan.proximal else None
        momentum = torch.stack([self._momentum(job) for job in jobs]) if plan.momentum else None
        examples, weights = _table(schedule, plan.batch, work.x.device)
        names = [
            entry
            for layer in work.layout.layers
            if plan.trains is None or layer.name in plan.trains
            for entry in layer.entries
        ]
        frozen = {e.name: e for layer in work.layout.layers for e in layer.entries if e not in names}
        work.module.train()
        for step in range(len(schedule[0]) if names else 0):
            k = sum(len(batches_) > step for batches_ in schedule)
            leaves = {e.name: _view(rows[:k], e).detach().requires_grad_() for e in names}
            fixed = {name: _view(rows[:k], e) for name, e in frozen.items()}
            chosen = examples[:k, step]
            outputs = self._forward({**leaves, **fixed}, work.x[chosen])
            losses = _each(work.loss, outputs, work.y[chosen])
            gradients = torch.autograd.grad((losses * weights[:k, step]).sum(), list(leaves.values()))
            for entry, gradient in zip(names, gradients, strict=True):
                piece = slice(entry.start, entry.stop)
                self._step(
                    rows[:k, piece],
                    gradient.reshape(k, -1),
                    None if anchors is None else anchors[:k, piece],
                    None if momentum is None else momentum[:k, piece],
                    jobs[0],
                )
        for i, job in enumerate(jobs):
            job.vector = rows[i].clone()  # a row alone must not keep its whole cohort alive
            job.epochs = min(job.epochs + epochs, epochs_of(job.plan, job.examples))
            if momentum is not None:
                job.memory = {"momentum": momentum[i].clone()}
        if jobs[0].watches:
            self._watch(jobs, rows)

    @staticmethod
    def _step(rows: Tensor, gradient: Tensor, anchor: Tensor | None, momentum: Tensor | None, job: Job) -> None:
        """SGD as torch.optim writes it: weight decay, momentum, Nesterov."""
        plan = job.plan
        if anchor is not None:
            gradient = gradient.add(rows - anchor, alpha=plan.proximal)
        decay = float(plan.options.get("weight_decay", 0.0))  # type: ignore[arg-type]
        if decay:
            gradient = gradient.add(rows, alpha=decay)
        if momentum is not None:
            momentum.mul_(plan.momentum).add_(gradient)
            gradient = gradient.add(momentum, alpha=plan.momentum) if plan.options.get("nesterov") else momentum
        rows.sub_(gradient, alpha=plan.rate)

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
        entries = [entry for layer in work.layout.layers for entry in layer.entries]
        with torch.no_grad():
            outputs = self._forward({e.name: _view(rows, e) for e in entries}, work.x[examples])
            means = (_each(work.loss, outputs, work.y[examples]) * weights.to(outputs.device)).sum(dim=1)
        for i, job in enumerate(jobs):
            job.losses.append(float(means[i]) if len(job.learner.validation) else float("nan"))


def can_stack(module: nn.Module, loss: Loss) -> bool:
    """Only layers that stack well, each with weights of its own, and a loss that is a mean over examples."""
    tied = len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.parameters()))
    return (
        loss in PER_EXAMPLE
        and all(_stacks_well(part) for part in module.modules() if part is not module)
        and not tied
        and next(module.buffers(), None) is None
        and all(parameter.requires_grad for parameter in module.parameters())
    )


def _stacks_well(part: nn.Module) -> bool:
    if type(part) not in STACKABLE:  # a subclass may have a forward of its own
        return False
    return not isinstance(part, nn.Embedding) or (
        part.padding_idx is None and part.max_norm is None and not part.scale_grad_by_freq and not part.sparse
    )


def _forward(module: nn.Module) -> Forward:
    """The stacked forward pass: batched products where the module is a plain sequence, else torch.func.vmap."""
    names = {part: name for name, part in module.named_modules()}
    sequence = _flattened(module)
    if sequence is None:
        mapped: Forward = vmap(lambda tensors, x: functional_call(module, tensors, (x,)))
        return mapped

    def forward(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        for part in sequence:
            if isinstance(part, nn.Linear):
                weight, bias = (tensors.get(f"{names[part]}.{kind}".lstrip(".")) for kind in ("weight", "bias"))
                assert weight is not None
                rows = x.flatten(1, -2)
                turned = weight.transpose(1, 2)
                product = torch.bmm(rows, turned) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, turned)
                x = product.unflatten(1, x.shape[1:-1])
            elif isinstance(part, nn.Flatten):
                x = x.flatten(2)
            else:
                x = part(x)
        return x

    return forward


def _flattened(module: nn.Module) -> list[nn.Module] | None:
    """The parts of a plain sequence of linear layers and activations, or None."""
    if type(module) is nn.Sequential:
        parts: list[nn.Module] = []
        for child in module:
            inner = _flattened(child)
            if inner is None:
                return None
            parts += inner
        return parts
    plain = type(module) in (nn.Linear, *ELEMENTWISE)
    flat = type(module) is nn.Flatten and module.start_dim == 1 and module.end_dim == -1
    return [module] if plain or flat else None


def _view(rows: Tensor, entry: Entry) -> Tensor:
    view: Tensor = rows[:, entry.start : entry.stop].unflatten(1, entry.shape)
    return view


def _schedule(job: Job, epochs: int) -> list[Tensor]:
    """The mini-batches of the next epochs, as indices of examples."""
    last = min(job.epochs + epochs, epochs_of(job.plan, job.examples))
    return [
        job.learner.train[positions]
        for epoch in range(job.epochs, last)
        for positions in batches(job.plan, job.examples, epoch)
    ]


def _table(schedule: Sequence[Sequence[Tensor]], batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """[learner, step, place] indices of examples and their weights in the mean of their batch."""
    widest = max(len(chosen) for batches_ in schedule for chosen in batches_)
    examples = torch.zeros(len(schedule), len(schedule[0]), min(batch, widest), dtype=torch.int64)
    weights = torch.zeros(examples.shape)
    for i, batches_ in enumerate(schedule):
        for step, chosen in enumerate(batches_):
            examples[i, step] = chosen[0]  # padding from the batch itself: 0 x NaN of another learner is NaN
            examples[i, step, : len(chosen)] = chosen
            weights[i, step, : len(chosen)] = 1 / len(chosen)
    return examples, weights.to(device)


def _each(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Losses of single examples: [learner, place]."""
    flat = loss(outputs.flatten(0, 1), targets.flatten(0, 1), reduction="none")  # type: ignore[call-arg]
    return flat.reshape(*targets.shape[:2], -1).mean(dim=2)

"""How learners are executed in one process: one by one, on workers, stacked, or in C.

The way is chosen from the model's arithmetic, never by timing or free memory, so that the same seed gives the same
bits; it is recorded with the run.
"""

from __future__ import annotations

import copy
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from archipel.core.checks import one_of, require
from archipel.core.types import Plan
from archipel.learner.learner import Job, Work, optimiser
from archipel.learner.training import advance
from archipel.simulation.executors.native import Native, linear_layers
from archipel.simulation.executors.shortcuts import with_shortcuts
from archipel.simulation.executors.stacked import Stacked
from archipel.simulation.executors.stacked_networks import can_stack, network

Way: TypeAlias = Literal["plain", "workers", "stacked", "native"]

SMALL = 2_000_000
"""Multiplications of one example's forward pass above which one learner alone keeps the cores busy."""


class Execution(Protocol):
    name: str
    threads: int | None
    """Threads of every torch operation in the run; None: as many as torch takes."""

    def advance(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        """Carry all jobs on by so many epochs, or to their ends; other processes may be at them until `settle`."""

    def settle(self, job: Job | None = None) -> None:
        """Have this job, or all, at hand."""


class Plain:
    """One learner after the other, in this thread: the reference."""

    name = "plain"

    def __init__(self, work: Work) -> None:
        self.work = work
        self.threads = 1 if _multiplications(work) <= SMALL else None

    def advance(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        for job in jobs:
            advance(self.work, job, epochs)

    def settle(self, job: Job | None = None) -> None:
        """Everything is done here."""


class Workers:
    """Learner by learner on one-thread workers, each with a copy of the network; the data are shared.

    There are as many as torch has threads; results do not depend on their number.
    """

    name = "workers"
    threads: int | None = None

    def __init__(self, work: Work, count: int | None = None) -> None:
        self.count = count or torch.get_num_threads()
        self._benches: queue.SimpleQueue[Work] = queue.SimpleQueue()
        for _ in range(self.count):
            self._benches.put(replace(work, module=with_shortcuts(copy.deepcopy(work.module))))

    def advance(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        # the largest first, so that nobody waits for it at the end; results do not depend on the order
        ordered = sorted(jobs, key=lambda job: -job.examples)
        # the fork is around all workers: those inside overlap, and would restore one another's state
        with torch.random.fork_rng(devices=[]), threads(1), ThreadPoolExecutor(self.count) as pool:
            for _ in pool.map(lambda job: self._one(job, epochs), ordered):
                pass

    def settle(self, job: Job | None = None) -> None:
        """Everything is done in this process, and waited for."""

    def _one(self, job: Job, epochs: int | None) -> None:
        torch.set_num_threads(1)
        bench = self._benches.get()
        try:
            advance(bench, job, epochs)
        finally:
            self._benches.put(bench)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Have torch work with so many threads for a while; None: leave it as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose(work: Work, plan: Plan) -> Way:
    """Stack what is small and linear, or leave it to C; run on workers what is not; one by one what draws itself."""
    if _stackable(work, plan) and _multiplications(work) <= SMALL:
        return "stacked" if linear_layers(work) is None else "native"
    return "plain" if _draws(work) else "workers"


def execution(work: Work, plan: Plan, way: Way | None = None) -> Execution:
    """The execution for this work, chosen or as asked for."""
    asked, way = way, way or choose(work, plan)
    one_of("execution", "way", way, ("plain", "workers", "stacked", "native"))
    if way in ("plain", "workers") or plan.options:  # torch's optimisers take a second to load; the others need none
        optimiser(plan, [nn.Parameter(torch.zeros(1))])  # settings it does not take show before the run
    require(
        asked != "stacked" or _stackable(work, plan),
        f"execution: {type(work.module).__name__} with {plan.optimiser} cannot be stacked: only linear layers, "
        "layer norm, embeddings and activations, a loss that is a mean over examples, and SGD can. "
        "Use execution='workers'.",
    )
    require(
        asked != "workers" or not _draws(work),
        f"execution: {type(work.module).__name__} draws random numbers in training (dropout), which workers would "
        "take from one another. Use execution='plain'.",
    )
    require(
        asked != "native" or (_stackable(work, plan) and linear_layers(work) is not None),
        f"execution: {type(work.module).__name__} with {plan.optimiser} cannot be trained natively: only linear layers "
        "and ReLU in a row that end in class scores under cross entropy, trained by SGD on a CPU, can, and only if a "
        "C compiler was there when Archipel was installed. Use execution='stacked' or 'workers'.",
    )
    ways: dict[Way, type[Plain] | type[Workers] | type[Stacked] | type[Native]]
    ways = {"plain": Plain, "workers": Workers, "stacked": Stacked, "native": Native}
    return ways[way](work)


def _stackable(work: Work, plan: Plan) -> bool:
    known = set(plan.options) <= {"weight_decay", "nesterov"}
    return (
        plan.optimiser == "SGD"
        and known
        and can_stack(work.module, work.loss)
        and not _draws(work)
        and _examples_stand_alone(work)
    )


@threads(1)
def _examples_stand_alone(work: Work) -> bool:
    """Can the network be mapped over learners, and does an example's output not depend on its neighbours in a batch?"""
    module, x = copy.deepcopy(work.module).eval(), work.x[:2]
    tensors = {name: parameter.detach().expand(2, *parameter.shape) for name, parameter in module.named_parameters()}
    with torch.no_grad():
        together = module(x)
        alone = torch.cat([module(example[None]) for example in x])
        try:
            stacked = network(module, work.loss, work.y).outputs(tensors, x.expand(2, *x.shape))[0]
        except RuntimeError:  # its forward looks at its numbers
            return False
    return all(torch.allclose(together, other, atol=1e-5, equal_nan=True) for other in (alone, stacked))


@threads(1)
def _multiplications(work: Work) -> int:
    """Multiplications of one example's forward pass."""
    counted = 0

    def count(part: nn.Module, _: object, output: object) -> None:
        nonlocal counted
        uses = 1
        if isinstance(part, nn.modules.conv._ConvNd) and isinstance(output, Tensor):
            uses = output[0, 0].numel()  # every weight serves every place of the output
        counted += uses * sum(parameter.numel() for parameter in part.parameters(recurse=False))

    probe = copy.deepcopy(work.module).eval()
    for part in probe.modules():
        part.register_forward_hook(count)
    with torch.no_grad():
        probe(work.x[:1])
    return counted


@threads(1)
def _draws(work: Work) -> bool:
    """Does a training step take numbers from the global generator?"""
    probe = copy.deepcopy(work.module).train()
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        with torch.no_grad():
            probe(work.x[:2])
        return not torch.equal(before, torch.get_rng_state())

"""Perceptrons for tests of native execution."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from archipel.core.layout import Layout
from archipel.core.types import Plan, Score, ScoreTable
from archipel.executors.native import Native
from archipel.kernels.native.library import library
from archipel.learner.learner import Job, Learner, TrainingContext
from archipel.learner.probes import Parts
from tests.simulation.engine_cases import (
    PLAN,
    jobs,
)
from tests.waiting import LIMIT

MORE = replace(PLAN, momentum=0.9, proximal=0.5, options={"weight_decay": 0.1, "nesterov": True})
"""Everything that can be added to a gradient."""


def perceptron(*widths: int, bias: bool = True, rectified: bool = True) -> nn.Sequential:
    parts: list[nn.Module] = []
    for ins, outs in pairwise(widths):
        parts += [nn.Linear(ins, outs, bias=bias), *([nn.ReLU()] if rectified else [])]
    return nn.Sequential(*(parts[:-1] if rectified else parts))


def case(
    *widths: int, examples: int = 200, bias: bool = True, rectified: bool = True, seed: int = 0
) -> TrainingContext:
    """A perceptron of these widths, and noise for it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = perceptron(*widths, bias=bias, rectified=rectified)
    x = torch.randn(examples, widths[0], generator=generator)
    y = torch.randint(0, widths[-1], (examples,), generator=generator)
    return TrainingContext(module, Layout.of(module, x[:2]), nn.functional.cross_entropy, x, y, widths[-1])


def trained(way: Native, who: Sequence[Learner], plans: Sequence[Plan]) -> list[Job]:
    made = jobs(way.context, who, plans)
    way.submit(made)
    way.wait()
    return made


def vectors(made: Sequence[Job]) -> Tensor:
    return torch.stack([job.vector for job in made])


def on_threads(count: int, way: Native) -> Native:
    """Resize the pool of threads, which has as many as torch at first, and return the execution."""
    found = library()
    assert found is not None
    found.archipel_pool_resize(count)
    return way


def threads_there() -> int:
    return len(os.listdir("/proc/self/task"))


def in_a_fork(call: Callable[[], Any]) -> Any:
    """What a call gives in a process that is forked from this one, where none of the library's threads are."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: theirs.send_bytes(pickle.dumps(call())))
    process.start()
    theirs.close()
    try:
        assert ours.poll(LIMIT), f"nothing was heard for {LIMIT:g} s"
        return pickle.loads(ours.recv_bytes())
    finally:
        process.kill()
        process.join()


def tried(at_hand: TrainingContext, parts: Sequence[Tensor], vector: Tensor | None = None) -> ScoreTable:
    """A model on these parts, as a simulation tries it."""
    model = at_hand.layout.vector(at_hand.module) if vector is None else vector
    return Native(at_hand).score(model, Parts.of(parts), Score("test")).result()

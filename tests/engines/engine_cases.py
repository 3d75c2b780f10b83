"""What the tests of the engines share: small data, small networks, and jobs made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import archipel as ap
from archipel.data import Islands, Source
from archipel.engines.simulator import Simulator
from archipel.experiment import prepare
from archipel.layout import Layout
from archipel.learner.learner import Job, Learner, Loss, Work
from archipel.types import Plan

cross_entropy = nn.functional.cross_entropy


# ------------------------------------------------------------------------------------------------ whole simulations


@cache
def digits() -> Source:
    return ap.data.digits()


@cache
def _split(settings: tuple[tuple[str, Any], ...]) -> Islands:
    return digits().split(**dict(settings))


def islands(learners: int = 4, **how: Any) -> Islands:
    """Handwritten digits over so many learners."""
    return _split((("learners", learners), *sorted(how.items())))


def small_islands(learners: int = 4, each: int = 40, **how: Any) -> Islands:
    """The same with few examples each, where only the course of events counts."""
    return islands(learners, sizes=(each,) * learners, **how)


def images(data: Islands) -> Islands:
    """The digits as pictures of one channel."""
    return replace(data, x=data.x.reshape(-1, 1, 8, 8))


def regression(learners: int = 4, examples: int = 200) -> Islands:
    """y = x w + .1, without noise."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(examples, 5, generator=generator)
    y = x @ torch.randn(5, 1, generator=generator) + 0.1
    return Source(x, y, None, "line").split(learners)


def begun(algorithm: ap.Algorithm, data: Islands, **settings: Any) -> Simulator:
    """A simulator whose learners have been told to join."""
    simulator = prepare(algorithm, data, **settings)
    simulator.begin()
    return simulator


# --------------------------------------------------------------------------------------------------- jobs by hand


def work(module: nn.Module, x: Tensor, y: Tensor, loss: Loss = cross_entropy) -> Work:
    classes = None if y.is_floating_point() else int(y.max()) + 1
    return Work(module, Layout.of(module, x[:2]), loss, x, y, classes)


def learners(x: Tensor, sizes: Sequence[int], validation: Sequence[int] | None = None) -> list[Learner]:
    """Learners that hold the examples one after the other; the first example is the last learner's."""
    order = torch.arange(len(x)).flip(0)
    reserved = [0] * len(sizes) if validation is None else validation
    made, place = [], 0
    for number, (size, apart) in enumerate(zip(sizes, reserved, strict=True)):
        mine = order[place : place + size + apart]
        assert len(mine) == size + apart, "the data are too few for these sizes"
        made.append(Learner(f"{number:02}", mine[:size], mine[size:], torch.empty(0, dtype=torch.int64)))
        place += size + apart
    return made


def jobs(work: Work, who: Sequence[Learner], plans: Sequence[Plan]) -> list[Job]:
    """One job each, all from different models, so that a row in the wrong place shows."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for number, (learner, plan) in enumerate(zip(who, plans, strict=True)):
        carried = work.layout.vector(work.module)
        for layer in work.layout.layers:
            if not layer.buffers:
                carried[layer.start : layer.stop] += 0.01 * torch.randn(layer.size, generator=generator)
        made.append(Job.begin(learner, work.layout, carried, replace(plan, key=1000 + number)))
    return made

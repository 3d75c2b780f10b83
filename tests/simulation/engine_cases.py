"""What the tests of the engines share: small data, small networks, and jobs made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel.core.layout import Layout
from archipel.core.types import Plan
from archipel.data import Islands, Source
from archipel.executors.native import Native
from archipel.executors.plain import Plain
from archipel.executors.stacked import Stacked
from archipel.learner.learner import Job, Learner, Loss, TrainingContext
from archipel.simulation.simulate import prepare
from archipel.simulation.simulator import Simulator

cross_entropy = nn.functional.cross_entropy


# ------------------------------------------------------------------------------------------------ whole simulations


@cache
def digits() -> Source:
    return ap.data.digits()


@cache
def _split(settings: tuple[tuple[str, Any], ...]) -> Islands:
    return digits().split(**dict(settings))


def islands(learners: int = 4, **how: Any) -> Islands:
    """Return handwritten digits split over learners."""
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
    """Return a simulator whose learners have joined."""
    simulator = prepare(algorithm, data, **settings)
    simulator.begin()
    return simulator


# --------------------------------------------------------------------------------------------------- jobs by hand


SIZES = (33, 1, 16, 7, 40, 8)
"""With batches of 8: a last batch of one, a single example, no short batch, less than a batch, and exactly one."""
PLAN = Plan(epochs=2, batch=8, rate=0.1)
PLANS = (
    replace(PLAN, batch=1, epochs=1),
    replace(PLAN, batch=1000, epochs=5),
    replace(PLAN, steps=7),
    replace(PLAN, steps=1),
    replace(PLAN, steps=13, momentum=0.9),
    replace(PLAN, momentum=0.9),
    replace(PLAN, options={"weight_decay": 0.1}),
    replace(PLAN, momentum=0.9, options={"nesterov": True}),
    replace(PLAN, momentum=0.9, options={"nesterov": True, "weight_decay": 0.1}, proximal=1.0),
    replace(PLAN, proximal=1.0),
    replace(PLAN, shift="shift"),
    replace(PLAN, trains=("fc1",)),
)
"""What every executor of small networks trains by, which have layers "fc1" and "head"."""


def named(plan: Plan) -> str:
    """What is special about a plan."""
    said = [f"{f.name}={getattr(plan, f.name)}" for f in fields(plan) if getattr(plan, f.name) != getattr(PLAN, f.name)]
    return ", ".join(said) or "plain"


def work(module: nn.Module, x: Tensor, y: Tensor, loss: Loss = cross_entropy) -> TrainingContext:
    classes = None if y.is_floating_point() else int(y.max()) + 1
    return TrainingContext(module, Layout.of(module, x[:2]), loss, x, y, classes)


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


def jobs(work: TrainingContext, who: Sequence[Learner], plans: Sequence[Plan]) -> list[Job]:
    """One job each, all from different models, so that a row in the wrong place shows."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for number, (learner, plan) in enumerate(zip(who, plans, strict=True)):
        carried = work.layout.vector(work.module)
        for layer in work.layout.layers:
            if not layer.buffers:
                carried[layer.start : layer.stop] += 0.01 * torch.randn(layer.size, generator=generator)
        shift = None if plan.shift is None else 0.1 * torch.randn(work.layout.size, generator=generator)
        made.append(Job.begin(learner, work.layout, carried, plan, 1000 + number, shift))
    return made


def against_plain(
    way: Stacked | Native, who: Sequence[Learner], plans: Sequence[Plan], epochs: int | None = None
) -> list[tuple[Job, Job]]:
    """Jobs of this execution and of plain PyTorch, which have to agree; what agrees is checked here."""
    mine, theirs = jobs(way.context, who, plans), jobs(way.context, who, plans)
    before = [job.vector.clone() for job in mine]
    way.submit(mine, epochs)
    way.wait()
    Plain(way.context).submit(theirs, epochs)
    for a, b, begin in zip(mine, theirs, before, strict=True):
        agree(a, b)
        assert not torch.equal(a.vector, begin), "nothing was trained"
    return list(zip(mine, theirs, strict=True))


def agree(mine: Job, theirs: Job) -> None:
    """As far as the order of sums allows."""
    assert (mine.epochs, mine.steps) == (theirs.epochs, theirs.steps)
    torch.testing.assert_close(mine.vector, theirs.vector, atol=2e-5, rtol=1e-4)
    assert mine.losses == pytest.approx(theirs.losses, rel=1e-4, abs=1e-6, nan_ok=True)

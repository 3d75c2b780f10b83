"""Native training means the same as one learner after the other; plain PyTorch is the reference."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import archipel as ap
from archipel import models
from archipel.core.types import Cycle, Plan
from archipel.executors.choice import choose
from archipel.executors.native import Native
from archipel.executors.plain import Plain
from archipel.learner.batches import batches
from archipel.learner.probes import score
from archipel.learner.training import report
from archipel.simulation.simulate import finished, prepare
from tests.simulation.engine_cases import (
    PLAN,
    PLANS,
    SIZES,
    against_plain,
    agree,
    jobs,
    learners,
    named,
    small_islands,
    work,
)
from tests.simulation.perceptrons import MORE, case, in_a_fork, on_threads, threads_there, trained, tried, vectors
from tests.ways import needs_library

pytestmark = needs_library


# ------------------------------------------------------------------------------------------------ it means the same


@pytest.mark.slow
@pytest.mark.parametrize("plan", [PLAN, MORE], ids=["plain", "with more"])
@pytest.mark.parametrize(
    "widths",
    [
        (12, 3),
        (1, 2),
        (65, 17),
        (16, 16),
        (64, 62),
        (5, 1, 2),
        (17, 17, 7),
        (64, 64, 64, 10),
        (12, 65, 1, 17),
        (3, 33, 16, 15, 62),
        (20, 100, 2, 129, 7),
        (784, 30, 10),
    ],
    ids=lambda widths: "-".join(map(str, widths)),
)
def test_every_shape(widths: tuple[int, ...], plan: Plan) -> None:
    """Rows of a tile, lanes and pairs of lanes that are full, short by one or hold one number only."""
    at_hand = case(*widths)
    against_plain(Native(at_hand), learners(at_hand.x, SIZES), [plan] * len(SIZES))


@pytest.mark.parametrize(("bias", "rectified"), [(False, True), (True, False), (False, False)])
def test_without_biases_and_without_rectifying(bias: bool, rectified: bool) -> None:
    for widths in ((12, 3), (12, 17, 7), (7, 33, 5, 16)):
        at_hand = case(*widths, bias=bias, rectified=rectified)
        against_plain(Native(at_hand), learners(at_hand.x, SIZES), [MORE] * len(SIZES))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(12, 3),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3)),
        lambda: nn.Sequential(nn.Sequential(nn.Linear(12, 8), nn.ReLU()), nn.Identity(), nn.Linear(8, 3, bias=False)),
        lambda: nn.Sequential(nn.Linear(12, 9, bias=False), nn.Linear(9, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)),
        lambda: models.mlp(12, 3),
        lambda: models.small_mlp(12, 3),
    ],
    ids=["one layer that is the module", "flat", "sequences in sequences", "some of each", "mlp", "small_mlp"],
)
def test_every_way_to_write_a_perceptron(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    at_hand = work(make(), case(12, 3).x, case(12, 3).y)
    assert choose(at_hand, MORE)[0] == "native"
    against_plain(Native(at_hand), learners(at_hand.x, SIZES), [MORE] * len(SIZES))


def test_images() -> None:
    x = torch.randn(200, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    at_hand = work(models.mnist_mlp(), x, torch.arange(200) % 10)
    assert choose(at_hand, PLAN)[0] == "native"
    against_plain(Native(at_hand), learners(x, (33, 7)), [PLAN] * 2)


def test_layers_that_are_called_in_another_order_than_they_are_made() -> None:
    head, inner = nn.Linear(8, 3), nn.Linear(12, 8)
    at_hand = work(nn.Sequential(inner, nn.ReLU(), head), case(12, 3).x, case(12, 3).y)
    against_plain(Native(at_hand), learners(at_hand.x, SIZES), [MORE] * len(SIZES))


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        *PLANS,
        replace(PLAN, batch=7, epochs=4),
        replace(PLAN, shift="shift", proximal=0.5, momentum=0.9, options={"weight_decay": 0.1}, trains=("fc1", "head")),
        replace(PLAN, trains=("fc2",)),
        replace(PLAN, trains=("head",)),
        replace(PLAN, trains=("fc1", "head"), momentum=0.9, proximal=0.5, options={"weight_decay": 0.1}),
    ],
    ids=named,
)
def test_every_plan(plan: Plan) -> None:
    at_hand = work(models.mlp(12, 7, hidden=(33, 18)), case(12, 7).x, case(12, 7).y)
    against_plain(Native(at_hand), learners(at_hand.x, SIZES), [plan] * len(SIZES))


@pytest.mark.slow
@settings(max_examples=60)
@given(
    inner=st.lists(st.integers(1, 70), max_size=3),
    ends=st.tuples(st.integers(1, 70), st.integers(2, 40)),
    examples=st.integers(1, 60),
    bias=st.booleans(),
    rectified=st.booleans(),
    batch=st.integers(1, 70),
    epochs=st.integers(1, 3),
    steps=st.none() | st.integers(1, 9),
    momentum=st.sampled_from((0.0, 0.5)),
    proximal=st.sampled_from((0.0, 0.3)),
    decay=st.sampled_from((0.0, 0.1)),
    frozen=st.sets(st.integers(0, 3)),
)
def test_any_perceptron_under_any_plan(
    inner: list[int],
    ends: tuple[int, int],
    examples: int,
    bias: bool,
    rectified: bool,
    batch: int,
    epochs: int,
    steps: int | None,
    momentum: float,
    proximal: float,
    decay: float,
    frozen: set[int],
) -> None:
    at_hand = case(ends[0], *inner, ends[1], examples=examples, bias=bias, rectified=rectified)
    trains = tuple(name for place, name in enumerate(at_hand.layout.names) if place not in frozen)
    plan = Plan(epochs, steps, batch, 0.05, momentum, options={"weight_decay": decay}, trains=trains, proximal=proximal)
    (mine,) = trained(Native(at_hand), learners(at_hand.x, [examples]), [plan])
    (theirs,) = jobs(at_hand, learners(at_hand.x, [examples]), [plan])
    Plain(at_hand).submit([theirs])
    agree(mine, theirs)


def test_rounding_is_no_coarser_than_torchs() -> None:
    """Both against the same steps in double precision."""
    at_hand = case(64, 64, 64, 10)
    plan, who = replace(PLAN, epochs=3, momentum=0.5), learners(at_hand.x, (200,))
    (mine,), (theirs,) = trained(Native(at_hand), who, [plan]), jobs(at_hand, who, [plan])
    at_hand.binding.bind(theirs.vector)
    exact = copy.deepcopy(at_hand.module).double()
    steps = torch.optim.SGD(exact.parameters(), lr=plan.rate, momentum=plan.momentum)
    for epoch in range(plan.epochs):
        for positions in batches(mine.plan, mine.key, mine.examples, epoch):
            chosen = who[0].train[positions]
            steps.zero_grad()
            nn.functional.cross_entropy(exact(at_hand.x[chosen].double()), at_hand.y[chosen]).backward()
            steps.step()
    Plain(at_hand).submit([theirs])
    truth = torch.cat([parameter.detach().flatten() for parameter in exact.parameters()])
    mine_off, theirs_off = (float((job.vector - truth).norm() / truth.norm()) for job in (mine, theirs))
    assert theirs_off < 1e-6
    assert 0 < mine_off < 2 * theirs_off


def test_learners_of_very_different_sizes_and_plans_in_one_go() -> None:
    at_hand = case(12, 17, 7, examples=3000)
    who = learners(at_hand.x, (1, 2500, 3, 400, 17))
    plans = [PLAN, replace(PLAN, epochs=1, batch=64), replace(PLAN, epochs=9), MORE, replace(PLAN, steps=4, batch=5)]
    against_plain(Native(at_hand), who, plans)


def test_frozen_layers_keep_every_bit() -> None:
    at_hand = case(12, 17, 18, 7)
    before = vectors(jobs(at_hand, learners(at_hand.x, SIZES), [PLAN] * len(SIZES)))
    for trains in ((), ("0",), ("2",), ("4",), ("0", "4")):
        after = vectors(trained(Native(at_hand), learners(at_hand.x, SIZES), [replace(MORE, trains=trains)] * 6))
        for layer in at_hand.layout.layers:
            piece = slice(layer.start, layer.stop)
            for mine, begin in zip(after, before, strict=True):
                assert torch.equal(mine[piece], begin[piece]) == (layer.name not in trains), (trains, layer.name)


@pytest.mark.parametrize("plan", [PLAN, MORE, replace(MORE, steps=11), replace(MORE, reports=("losses",))], ids=named)
def test_epoch_by_epoch_is_all_at_once(plan: Plan) -> None:
    """To the bit: what a learner remembers is all there is."""
    at_hand = case(12, 17, 7)
    who = learners(at_hand.x, (33, 1, 16, 7), validation=(10, 0, 3, 1))
    plan = plan if plan.steps else replace(plan, epochs=4)
    together, by_epoch = trained(Native(at_hand), who, [plan] * 4), jobs(at_hand, who, [plan] * 4)
    for epoch in range(1, 12):
        way = Native(at_hand)  # nothing is left in the execution itself
        way.submit(by_epoch, 1)
        way.wait()
        if epoch == 2:
            assert [job.epochs for job in by_epoch] == [2] * 4
    for a, b in zip(together, by_epoch, strict=True):
        assert a.done
        assert (a.epochs, a.steps, repr(a.losses)) == (b.epochs, b.steps, repr(b.losses))
        assert torch.equal(a.vector, b.vector)


def test_jobs_can_be_settled_one_by_one() -> None:
    at_hand = case(12, 17, 7)
    who = learners(at_hand.x, SIZES)
    way, made = Native(at_hand), jobs(at_hand, who, [PLAN] * 6)
    way.submit(made)
    for job in reversed(made):
        way.wait(job)
        assert job.done
    assert torch.equal(vectors(made), vectors(trained(Native(at_hand), who, [PLAN] * 6)))


# ------------------------------------------------------------------------------------------------ validation losses


def test_validation_losses_of_every_epoch() -> None:
    at_hand = case(12, 17, 7)
    who = learners(at_hand.x, (33, 1, 16, 7), validation=(10, 0, 3, 1))
    plan = replace(PLAN, epochs=3, reports=("losses",))
    for learner, (mine, _) in zip(who, against_plain(Native(at_hand), who, [plan] * 4), strict=True):
        assert len(mine.losses) == 4
        assert any(loss != loss for loss in mine.losses) == (len(learner.validation) == 0)


def test_validation_cycles_end_where_they_end_in_plain_pytorch() -> None:
    at_hand = case(12, 64, 64, 3)
    who = learners(at_hand.x, (33, 1, 16, 7, 20), validation=(10, 0, 3, 1, 6))
    plan = replace(PLAN, rate=0.3, momentum=0.5, reports=("losses",))
    cycles = (Cycle(), Cycle(tombstones=1), Cycle(loss=5), Cycle(at_most=3), Cycle(tombstones=4, at_most=7))
    plans = [*(replace(plan, cycle=cycle) for cycle in cycles[:-1]), replace(plan, cycle=cycles[-1])]
    pairs = against_plain(Native(at_hand), who, plans)
    assert len({mine.epochs for mine, _ in pairs}) > 2, "they should end at different epochs"
    assert all(len(mine.losses) == mine.epochs + 1 for mine, _ in pairs)


def test_a_learner_that_begins_later_does_not_disturb_the_others_losses() -> None:
    at_hand = case(12, 17, 7)
    early, late, unwatched = learners(at_hand.x, (33, 16, 20), validation=(10, 3, 5))
    plan = replace(PLAN, cycle=Cycle(tombstones=100, at_most=4), reports=("losses",))
    done = []
    for way in (Native(at_hand), Plain(at_hand)):
        made = jobs(at_hand, [early, late, unwatched], [plan, plan, replace(PLAN, epochs=4)])
        way.submit(made[:1], 1)
        way.submit(made, 2)
        way.wait()
        done.append(made)
    for mine, theirs in zip(*done, strict=True):
        agree(mine, theirs)


@pytest.mark.parametrize("reports", [("validation",), ("validation", "losses")], ids=["at the end", "and on the way"])
def test_models_are_tried_on_their_learners_own_validation_parts(reports: tuple[Any, ...]) -> None:
    at_hand = case(12, 17, 7)
    who = learners(at_hand.x, (33, 1, 16, 7), validation=(60, 0, 3, 1))
    for mine, _ in against_plain(Native(at_hand), who, [replace(PLAN, reports=reports)] * 4):
        alone, told = score(at_hand, mine.vector, mine.learner.validation), mine.validation
        assert report(at_hand, mine, mine.vector, mine.epochs).validation is told
        assert told is not None
        assert told.count == alone.count
        assert told.loss == pytest.approx(alone.loss, rel=1e-5)
        np.testing.assert_array_equal(told.confusion, alone.confusion)


def test_no_model_is_tried_before_its_end() -> None:
    at_hand = case(12, 17, 7)
    (job,) = jobs(at_hand, learners(at_hand.x, (33,), validation=(10,)), [replace(PLAN, reports=("validation",))])
    way = Native(at_hand)
    way.submit([job], 1)
    way.wait()
    assert job.validation is None


# ------------------------------------------------------------------------------------------------ always the same bits


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is nowhere to count threads")
def test_neither_threads_nor_neighbours_nor_repetition_change_a_bit() -> None:
    at_hand = case(20, 33, 7, examples=1000)
    who = learners(at_hand.x, (200, 1, 150, 8, 300, 41, 90), validation=(9,) * 7)
    plan = replace(MORE, epochs=3, reports=("validation",))
    plans = [plan] * 3 + [replace(plan, cycle=Cycle(at_most=3))] * 4

    def together(threads: int) -> tuple[Tensor, list[list[float]]]:
        way, before = on_threads(threads, Native(at_hand)), threads_there()
        first = trained(way, who, plans)
        assert threads_there() - before == threads - 1
        again = trained(way, who, plans)
        assert torch.equal(vectors(first), vectors(again))
        return vectors(first), [job.losses for job in first]

    found, losses = in_a_fork(partial(together, 1))
    for threads in (2, 5):
        others, others_losses = in_a_fork(partial(together, threads))
        assert torch.equal(found, others)
        assert losses == others_losses
    alone = Native(at_hand)
    for number, job in enumerate(jobs(at_hand, who, plans)):
        alone.submit([job])
        alone.wait()
        assert torch.equal(job.vector, found[number])
        assert job.losses == losses[number]


def test_what_a_thread_did_before_leaves_no_trace() -> None:
    """Its memory is used again, and holds NaN here wherever a number was."""
    small, large = case(12, 17, 7), case(65, 129, 33, 62)
    who, parts = learners(small.x, SIZES), [small.x.new_empty(0).long(), torch.arange(70)]
    fresh = in_a_fork(lambda: (vectors(trained(Native(small), who, [MORE] * 6)), tried(small, parts).losses))

    def after_nan() -> tuple[Tensor, Any]:
        (job,) = jobs(large, learners(large.x, (200,)), [replace(MORE, batch=200)])
        job.vector.fill_(torch.nan)
        way = Native(large)
        way.submit([job])
        way.wait()
        return vectors(trained(Native(small), who, [MORE] * 6)), tried(small, parts).losses

    dirty = in_a_fork(after_nan)
    assert torch.equal(fresh[0], dirty[0])
    assert fresh[1].tolist() == dirty[1].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["async_dvw", "sync_dvw"])
def test_a_simulation_does_not_depend_on_the_threads(name: str) -> None:
    algorithm = {"async_dvw": ap.async_dvw(batch=16, at_most=3), "sync_dvw": ap.sync_dvw(batch=16, epochs=1)}[name]
    data = small_islands(6)

    def ended(threads: int) -> tuple[str, str]:
        fleet, ending = ap.Fleet(fast=3, slow=3), ap.Ending(rounds=2)
        simulator = prepare(algorithm, data, fleet=fleet, ending=ending, execution="native")
        assert isinstance(simulator.executor, Native)
        on_threads(threads, simulator.executor)
        simulator.begin()
        simulator.run()
        run = finished(simulator)
        return run.fingerprint(), repr(run.records)

    assert in_a_fork(partial(ended, 1)) == in_a_fork(partial(ended, 4))

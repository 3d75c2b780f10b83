"""Native training means the same as one learner after the other; plain PyTorch is the reference."""

from __future__ import annotations

import copy
import ctypes
import gc
import mmap
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
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
from archipel.core.layout import Layout
from archipel.core.types import Cycle, Plan, Score, Tallies
from archipel.kernels.native.library import library
from archipel.kernels.native.perceptron import NativeTraining
from archipel.learner.batches import batches
from archipel.learner.learner import Job, Learner, TrainingContext
from archipel.learner.probes import Parts, score, score_parts
from archipel.learner.training import report
from archipel.simulation.executors import native
from archipel.simulation.executors.choice import choose, executor_of
from archipel.simulation.executors.native import Native, linear_layers
from archipel.simulation.executors.plain import Plain
from archipel.simulation.simulate import finished, prepare
from tests.simulation.engine_cases import (
    PLAN,
    SIZES,
    against_plain,
    agree,
    islands,
    jobs,
    learners,
    named,
    small_islands,
    work,
)
from tests.ways import needs_library

pytestmark = needs_library

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
    """An execution, which has as many threads as torch at first, with so many."""
    found = library()
    assert found is not None
    found.archipel_pool_resize(count)
    return way


def threads_there() -> int:
    return len(os.listdir("/proc/self/task"))


def in_a_fork(call: Callable[[], Any], seconds: float = 60) -> Any:
    """What a call gives in a process that is forked from this one, where none of the library's threads are."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: theirs.send_bytes(pickle.dumps(call())))
    process.start()
    theirs.close()
    try:
        assert ours.poll(seconds), f"nothing was heard for {seconds} s"
        return pickle.loads(ours.recv_bytes())
    finally:
        process.kill()
        process.join()


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
    assert choose(at_hand, MORE) == "native"
    against_plain(Native(at_hand), learners(at_hand.x, SIZES), [MORE] * len(SIZES))


def test_images() -> None:
    x = torch.randn(200, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    at_hand = work(models.mnist_mlp(), x, torch.arange(200) % 10)
    assert choose(at_hand, PLAN) == "native"
    against_plain(Native(at_hand), learners(x, (33, 7)), [PLAN] * 2)


def test_layers_that_are_called_in_another_order_than_they_are_made() -> None:
    head, inner = nn.Linear(8, 3), nn.Linear(12, 8)
    at_hand = work(nn.Sequential(inner, nn.ReLU(), head), case(12, 3).x, case(12, 3).y)
    against_plain(Native(at_hand), learners(at_hand.x, SIZES), [MORE] * len(SIZES))


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, batch=1, epochs=1),
        replace(PLAN, batch=1000, epochs=5),
        replace(PLAN, batch=7, epochs=4),
        replace(PLAN, steps=7),
        replace(PLAN, steps=1),
        replace(PLAN, steps=13, momentum=0.9),
        replace(PLAN, momentum=0.9),
        replace(PLAN, options={"weight_decay": 0.1}),
        replace(PLAN, momentum=0.9, options={"nesterov": True}),
        replace(PLAN, momentum=0.9, options={"nesterov": True, "weight_decay": 0.1}, proximal=1.0),
        replace(PLAN, proximal=1.0),
        replace(PLAN, trains=("fc1",)),
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
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
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
    at_hand.layout.bind(at_hand.module, theirs.vector)
    exact = copy.deepcopy(at_hand.module).double()
    steps = torch.optim.SGD(exact.parameters(), lr=plan.rate, momentum=plan.momentum)
    for epoch in range(plan.epochs):
        for positions in batches(mine.plan, mine.examples, epoch):
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
        assert (told.count, told.loss) == (alone.count, pytest.approx(alone.loss, rel=1e-5))
        assert np.array_equal(told.confusion, alone.confusion)


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


# ----------------------------------------------------------------------------------------------------- trying a model


def tried(at_hand: TrainingContext, parts: Sequence[Tensor], vector: Tensor | None = None) -> Tallies:
    """A model on these parts, as a simulation tries it."""
    model = at_hand.layout.vector(at_hand.module) if vector is None else vector
    return Native(at_hand).score(model, Parts.of(parts), Score("test")).result()


@pytest.mark.parametrize("widths", [(12, 3), (1, 2), (20, 33, 16), (65, 17, 17), (8, 100, 9, 62)], ids=str)
@pytest.mark.parametrize(
    "sizes", [(200,), (1,), (0,), (0, 0), (7, 0, 48, 1, 0, 0, 97, 47), (0, 48, 96), (100, 0)], ids=str
)
def test_a_model_is_tried_as_in_pytorch(widths: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    at_hand = case(*widths)
    parts = list(torch.arange(200).flip(0)[: sum(sizes)].split(sizes))
    mine, theirs = tried(at_hand, parts), score_parts(at_hand, at_hand.layout.vector(at_hand.module), Parts.of(parts))
    assert mine.counts.tolist() == theirs.counts.tolist() == list(sizes)
    np.testing.assert_allclose(mine.losses, theirs.losses, rtol=2e-6)
    assert np.array_equal(mine.confusion, theirs.confusion)
    assert mine.histogram is None
    assert [told.count for told in mine] == list(sizes)


def test_several_trials_are_out_at_a_time_and_fetched_in_any_order() -> None:
    at_hand = case(12, 17, 7)
    way, begin = Native(at_hand), at_hand.layout.vector(at_hand.module)
    parts = [Parts.of([torch.arange(10 * number), torch.arange(5)]) for number in range(9)]
    out = [way.score(begin + number, parts[number], Score("test")) for number in range(9)]
    for number in (8, 0, 3, 1, 2, 7, 4, 6, 5):
        alone = score_parts(at_hand, begin + number, parts[number])
        np.testing.assert_allclose(out[number].result().losses, alone.losses, rtol=1e-5)


def of_scores(scores: Tensor) -> TrainingContext:
    """A network that puts out its inputs, for what depends on the scores alone."""
    classes = scores.shape[1]
    at_hand = case(classes, classes, examples=len(scores))
    at_hand.module[0].weight.data.copy_(torch.eye(classes))
    at_hand.module[0].bias.data.zero_()
    return replace(at_hand, x=scores, y=torch.arange(len(scores)) % classes)


def far_apart(classes: int) -> Tensor:
    """Scores that are close, far apart, and large."""
    scores = torch.randn(40 * classes, classes, generator=torch.Generator().manual_seed(4))
    scale = torch.tensor([0.0, 1e-3, 1.0, 10.0, 40.0, 80.0, 1e4, 1e10])
    scores *= scale[torch.arange(len(scores)) // classes % len(scale)][:, None]
    scores[::3] += 80
    scores[1::7] -= 1e4
    return scores


@pytest.mark.parametrize("classes", [2, 7, 16, 17])
def test_losses_of_extreme_scores(classes: int) -> None:
    at_hand = of_scores(far_apart(classes))
    mine = torch.from_numpy(tried(at_hand, list(torch.arange(len(at_hand.x)).split(1))).losses)
    truth = nn.functional.cross_entropy(at_hand.x.double(), at_hand.y, reduction="none")
    assert truth.max() > 1e10
    assert truth[truth > 0].min() < 1e-6
    theirs = nn.functional.cross_entropy(at_hand.x, at_hand.y, reduction="none")
    for found in (theirs.double(), mine):
        torch.testing.assert_close(found, truth, rtol=2e-6, atol=2e-7)


def after_a_step(at_hand: TrainingContext) -> Tensor:
    """Biases after one step of rate 1 on one example, from zero: one-hot - softmax, example by example."""
    nothing, begin = torch.empty(0, dtype=torch.int64), at_hand.layout.vector(at_hand.module)
    who = [Learner(str(i), torch.tensor([i]), nothing, nothing) for i in range(len(at_hand.x))]
    made = [Job.begin(learner, at_hand.layout, begin, Plan(epochs=1, batch=1, rate=1.0)) for learner in who]
    way = Native(at_hand)
    way.submit(made)
    way.wait()
    return torch.stack([at_hand.layout.tensors(job.vector)["0.bias"] for job in made])


@pytest.mark.parametrize("classes", [2, 7, 16, 17])
def test_gradients_of_extreme_scores(classes: int) -> None:
    at_hand = of_scores(far_apart(classes))
    truth = nn.functional.one_hot(at_hand.y, classes) - at_hand.x.double().softmax(dim=1)
    torch.testing.assert_close(after_a_step(at_hand).double(), truth, rtol=1e-6, atol=2e-7)


@pytest.mark.slow
def test_likelihoods_are_right_to_some_units_in_the_last_place() -> None:
    below = -torch.linspace(0, 86, 4001)
    at_hand = of_scores(torch.stack((torch.zeros_like(below), below), dim=1))
    found = -after_a_step(replace(at_hand, y=torch.zeros_like(at_hand.y)))[:, 1]
    torch.testing.assert_close(found.double(), below.double().sigmoid(), rtol=3e-7, atol=0)


def test_the_first_of_equal_scores_is_the_class() -> None:
    scores = torch.zeros(6, 17)
    scores[1, 3:5] = 1
    scores[2] = -1e4
    scores[3, 16] = 1e-30
    at_hand = of_scores(scores)
    for place, largest in enumerate((0, 3, 0, 16)):
        told = tried(at_hand, [torch.tensor([place])])
        assert told.confusion is not None
        assert told.confusion[0, place].nonzero()[0].tolist() == [largest]


# -------------------------------------------------------------------------------------------------------- not a number


@pytest.mark.slow
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30], ids=str)
@pytest.mark.parametrize("widths", [(12, 3), (12, 17, 7), (12, 17, 16, 33, 16)], ids=str)
def test_what_is_not_finite_is_not_hidden(widths: tuple[int, ...], value: float) -> None:
    at_hand = case(*widths)
    who = learners(at_hand.x, (40, 30), validation=(5, 5))
    plan = replace(PLAN, reports=("losses", "validation"))
    for place in range(0, at_hand.layout.size, 41):
        mine, theirs = (jobs(at_hand, who, [plan] * 2) for _ in "ab")
        for job in (mine[0], theirs[0]):
            job.vector[place] = value
        way = Native(at_hand)
        way.submit(mine)
        way.wait()
        Plain(at_hand).submit(theirs)
        assert bool(mine[0].vector.isfinite().all()) == bool(theirs[0].vector.isfinite().all()), place
        assert np.isfinite(mine[0].losses).tolist() == np.isfinite(theirs[0].losses).tolist(), place
        assert mine[1].vector.isfinite().all()


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, momentum=0.5)], ids=["plain", "momentum"])
def test_a_unit_that_minus_infinity_switches_off_stays_off(plan: Plan) -> None:
    """Its gradient is 0 and its bias stays what it is, and all the others are trained."""
    at_hand = case(12, 17, 7)
    who = learners(at_hand.x, (40,), validation=(5,))
    mine, theirs = (jobs(at_hand, who, [replace(plan, reports=("losses",))])[0] for _ in "ab")
    for job in (mine, theirs):
        at_hand.layout.tensors(job.vector)["0.bias"][3] = -torch.inf
    way = Native(at_hand)
    way.submit([mine])
    way.wait()
    Plain(at_hand).submit([theirs])
    agree(mine, theirs)


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("rectified", [True, False])
def test_a_bad_example_spoils_nobody_but_its_owner(rectified: bool, value: float) -> None:
    at_hand = case(12, 17, 7, rectified=rectified)
    for place in (0, 77, 199):
        x = at_hand.x.clone()
        x[place, 5] = value
        spoilt = replace(at_hand, x=x)
        who = learners(x, (100, 50, 50))
        for learner, job in zip(who, trained(Native(spoilt), who, [replace(PLAN, batch=32)] * 3), strict=True):
            assert bool(job.vector.isfinite().all()) == (place not in learner.train), (place, learner.name)


def test_a_learner_that_diverges_is_seen_and_spoils_nobody_else() -> None:
    at_hand = case(12, 17, 7)
    who = learners(at_hand.x, SIZES)
    calm = trained(Native(at_hand), who, [PLAN] * 6)
    wild = trained(Native(at_hand), who, [PLAN, PLAN, replace(PLAN, rate=1e30), PLAN, PLAN, PLAN])
    assert not wild[2].vector.isfinite().all()
    for place in (0, 1, 3, 4, 5):
        assert torch.equal(wild[place].vector, calm[place].vector)


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
def test_a_model_that_is_not_finite_is_tried_as_in_pytorch(value: float) -> None:
    for widths in ((12, 3), (12, 17, 16), (12, 17, 17)):
        at_hand = case(*widths)
        vector = at_hand.layout.vector(at_hand.module)
        vector[::5] = value
        parts = [torch.arange(50), torch.empty(0).long(), torch.arange(50, 60)]
        mine, theirs = tried(at_hand, parts, vector), score_parts(at_hand, vector, Parts.of(parts))
        assert np.isfinite(mine.losses).tolist() == np.isfinite(theirs.losses).tolist() == [False, True, False]
        assert mine.confusion is not None
        assert mine.confusion.sum(axis=(1, 2)).tolist() == [50, 0, 10]


def test_a_class_whose_score_is_not_a_number_is_predicted() -> None:
    for classes in (3, 16, 17):
        at_hand = of_scores(far_apart(classes))
        vector, parts = at_hand.layout.vector(at_hand.module), [torch.arange(len(at_hand.x))]
        at_hand.layout.tensors(vector)["0.bias"][1:3] = torch.nan
        confusion = tried(at_hand, parts, vector).confusion
        assert confusion is not None
        assert confusion.sum(axis=(0, 1)).nonzero()[0].tolist() == [1]
        assert np.array_equal(confusion, score_parts(at_hand, vector, Parts.of(parts)).confusion)


def test_scores_that_all_are_very_low_are_like_any_others() -> None:
    """What fills the lanes up must stay below them."""
    for classes in (3, 16, 17):
        at_hand = of_scores(torch.full((10, classes), -2e30))
        losses = tried(at_hand, [torch.arange(10)]).losses
        assert losses.tolist() == pytest.approx([10 * np.log(classes)])


# ------------------------------------------------------------------------------------------ what is not trained so


class OwnForward(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = super().forward(x) / 2
        return outputs


class OwnLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).abs()


def tied() -> nn.Module:
    module = perceptron(12, 12, 12, 3)
    module[2].weight = module[0].weight  # type: ignore[union-attr]
    return module


def called_twice() -> nn.Module:
    again = nn.Linear(12, 12)
    return nn.Sequential(again, nn.ReLU(), again, nn.ReLU(), nn.Linear(12, 3))


def hooked() -> nn.Module:
    module = perceptron(12, 8, 3)
    module[0].register_forward_hook(lambda _, __, output: output * 2)
    return module


def frozen_by_hand() -> nn.Module:
    module = perceptron(12, 8, 3)
    next(module.parameters()).requires_grad_(False)
    return module


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "tanh": lambda: nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)),
    "sigmoid": lambda: nn.Sequential(nn.Linear(12, 8), nn.Sigmoid(), nn.Linear(8, 3)),
    "leaky": lambda: nn.Sequential(nn.Linear(12, 8), nn.LeakyReLU(), nn.Linear(8, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    "layer norm": lambda: nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)),
    "rectified inputs": lambda: nn.Sequential(nn.ReLU(), nn.Linear(12, 3)),
    "rectified scores": lambda: nn.Sequential(nn.Linear(12, 3), nn.ReLU()),
    "rectified twice": lambda: nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.ReLU(), nn.Linear(8, 3)),
    "a forward of its own": lambda: OwnForward(nn.Linear(12, 3)),
    "a layer with a forward of its own": lambda: nn.Sequential(OwnLinear(12, 8), nn.ReLU(), nn.Linear(8, 3)),
    "tied weights": tied,
    "one layer called twice": called_twice,
    "a hook": hooked,
    "a layer frozen by hand": frozen_by_hand,
}


def not_natively(at_hand: TrainingContext, plan: Plan = PLAN) -> None:
    assert choose(at_hand, plan) != "native"
    with pytest.raises(ValueError, match=r"cannot be trained natively: .* Use execution='stacked' or 'workers'\."):
        executor_of(at_hand, plan, "native")


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks(name: str) -> None:
    at_hand = work(OTHERS[name](), case(12, 3).x, case(12, 3).y)
    not_natively(at_hand)
    # and the way that is chosen instead is right
    who = learners(at_hand.x, (34, 16))
    mine, theirs = jobs(at_hand, who, [PLAN] * 2), jobs(at_hand, who, [PLAN] * 2)
    way = executor_of(at_hand, PLAN)
    way.submit(mine)
    way.wait()
    Plain(at_hand).submit(theirs)
    for a, b in zip(mine, theirs, strict=True):
        agree(a, b)


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, optimiser="Adam"),
        replace(PLAN, options={"maximize": True}),
        replace(PLAN, momentum=0.9, options={"dampening": 0.5}),
    ],
    ids=named,
)
def test_other_optimisers(plan: Plan) -> None:
    not_natively(case(12, 17, 7), plan)


def test_other_losses() -> None:
    at_hand = case(12, 17, 7)
    targets = nn.functional.one_hot(at_hand.y, 7).float()
    not_natively(replace(at_hand, loss=nn.functional.mse_loss, y=targets, classes=None))
    not_natively(replace(at_hand, y=targets, classes=None))  # cross entropy with probabilities
    not_natively(replace(at_hand, loss=nn.functional.nll_loss))
    not_natively(replace(at_hand, loss=nn.CrossEntropyLoss(label_smoothing=0.1)))


def test_other_data() -> None:
    at_hand = case(12, 17, 7)
    strange = at_hand.y.clone()
    strange[7] = -100
    beyond = at_hand.y.clone()
    beyond[7] = 7
    others = {
        "an example that cross entropy leaves out": replace(at_hand, y=strange),
        "a class there is no score of": replace(at_hand, y=beyond),
        "fewer classes than scores": replace(at_hand, y=at_hand.y % 5, classes=5),
        "labels that have no order in memory": replace(at_hand, y=at_hand.y.repeat_interleave(2)[::2]),
        "small labels": replace(at_hand, y=at_hand.y.int()),
        "inputs in double precision": replace(at_hand, x=at_hand.x.double()),
        "inputs in columns": replace(at_hand, x=at_hand.x.T.contiguous().T),
        "images that nothing flattens": replace(at_hand, x=at_hand.x[:, None]),
        "elsewhere": replace(at_hand, x=at_hand.x.to("meta")),
    }
    for name, other in others.items():
        assert linear_layers(other) is None, name
    not_natively(others["fewer classes than scores"])
    not_natively(others["inputs in columns"])
    not_natively(others["an example that cross entropy leaves out"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_another_device() -> None:
    at_hand = case(12, 17, 7)
    not_natively(replace(at_hand, module=at_hand.module.cuda(), x=at_hand.x.cuda(), y=at_hand.y.cuda()))


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)


@pytest.mark.usefixtures("no_library")
def test_without_the_library() -> None:
    at_hand = case(12, 17, 7)
    assert choose(at_hand, PLAN) == "stacked"
    not_natively(at_hand)
    assert ap.simulate(ap.fedavg(batch=8), small_islands(), ending=ap.Ending(rounds=1)).execution == "stacked"
    with pytest.raises(ValueError, match="only if a C compiler was there when Archipel was installed"):
        ap.simulate(ap.fedavg(batch=8), small_islands(), ending=ap.Ending(rounds=1), execution="native")


def test_histograms_are_left_to_pytorch() -> None:
    """The library makes none, and a run that asks for AUC gets it all the same."""
    mine, theirs = (
        ap.simulate(
            ap.fedavg(batch=16),
            islands(4),
            ending=ap.Ending(rounds=2),
            evaluation=ap.Evaluation(metric="auc"),
            execution=way,
        )
        for way in ("native", "plain")
    )
    assert mine.execution == "native"
    assert mine.score == pytest.approx(theirs.score, abs=1e-3)


# ------------------------------------------------------------------------------------------ the edges of what is there


@pytest.mark.parametrize("number", [200, 10**12, -1])
def test_examples_that_do_not_exist_are_an_error(number: int) -> None:
    at_hand, nothing = case(12, 17, 7), torch.empty(0, dtype=torch.int64)
    wrong = torch.tensor([3, number, 5])
    for learner in (Learner("a", wrong, nothing, nothing), Learner("a", torch.arange(9), wrong, nothing)):
        made = jobs(at_hand, [learner], [replace(PLAN, reports=("validation",))])
        with pytest.raises(ValueError, match="do not exist: their numbers must be from 0 to 199"):
            Native(at_hand).submit(made)
    with pytest.raises(ValueError, match="do not exist"):
        tried(at_hand, [wrong])


def walled(like: Tensor, before: bool) -> Tensor:
    """The same numbers in memory that ends, or begins, where nobody may read."""
    page, size = mmap.PAGESIZE, like.numel() * like.element_size()
    pages = -(-size // page)
    room = mmap.mmap(-1, (pages + 1) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    wall = address if before else address + pages * page
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(wall), page, 0) == 0
    start = page if before else pages * page - size
    numbers = torch.frombuffer(room, dtype=like.dtype, count=like.numel(), offset=start)
    return numbers.copy_(like.flatten()).view(like.shape)


@pytest.mark.parametrize("before", [True, False], ids=["below", "above"])
def test_nothing_is_read_or_written_beside_what_was_given(before: bool) -> None:
    def train_and_try() -> str:
        at = partial(walled, before=before)
        for widths in ((1, 2), (12, 3), (17, 17, 7), (5, 33, 16, 62), (12, 65, 1, 17)):
            for examples in (1, 5, 50, 97):
                made = case(*widths, examples=examples)
                at_hand = replace(made, x=at(made.x), y=at(made.y))
                everything = at(torch.arange(examples))
                learner = Learner("a", everything, everything, everything)
                vector = at(made.layout.vector(made.module))
                plan = replace(MORE, reports=("validation",))
                job = Job(learner, plan, vector, vector, memory={"momentum": at(torch.zeros_like(vector))})
                way = Native(at_hand)
                way.submit([job])
                way.wait()
                tried(at_hand, [everything, everything], vector)
        return "whole"

    assert in_a_fork(train_and_try) == "whole"


def test_there_may_be_more_kinds_of_plans_than_are_kept() -> None:
    at_hand = case(12, 17, 7)
    who = learners(at_hand.x, (10,) * 20)
    plans = [replace(PLAN, rate=0.01 * (k + 1)) for k in range(20)]
    against_plain(Native(at_hand), who, plans)


@pytest.mark.slow
def test_examples_of_ever_other_sites_do_not_pile_up() -> None:
    """As many tensors as are kept on purpose, however many subsets of sites were asked."""
    at_hand = case(12, 3)
    way, vector = Native(at_hand), at_hand.layout.vector(at_hand.module)

    def ask(numbers: range) -> None:
        for _ in numbers:
            way.score(vector, Parts.of([torch.arange(150)] * 2), Score("test")).result()

    def held() -> int:
        gc.collect()
        return sum(type(thing) is Tensor and thing.shape == (300,) for thing in gc.get_objects())

    ask(range(300))
    before = held()
    ask(range(300, 600))
    assert held() <= before


# ---------------------------------------------------------------------------------------------- threads and processes


def begun(at_hand: TrainingContext, count: int = 20) -> tuple[Native, list[Job]]:
    """Jobs that are under way."""
    who = learners(at_hand.x, (len(at_hand.x) // count,) * count, [0] * count)
    way, made = Native(at_hand), jobs(at_hand, who, [replace(MORE, epochs=20, reports=("validation",))] * count)
    way.submit(made)
    return way, made


@pytest.mark.slow
def test_what_is_dropped_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory goes when no thread works on it any more."""
    done: list[tuple[bool, int]] = []
    let_go = NativeTraining.__del__

    def watched(training: NativeTraining) -> None:
        under_way = training._under_way
        let_go(training)
        done.append((under_way, training._record.task.done))

    monkeypatch.setattr(NativeTraining, "__del__", watched)
    way, made = begun(case(20, 33, 7))
    assert not done
    del way, made
    gc.collect()
    assert done == [(True, 1)] * 20


DROPPED = """
import gc, torch
import archipel as ap
from archipel.simulation.simulate import prepare
from tests.simulation.test_native import begun, case

torch.set_num_threads(4)
for _ in range(3):  # everything is dropped while it is under way
    begun(case(64, 64, 10, examples=2000))
    gc.collect()
    rubbish = [torch.full((2000, 64), float("nan")) for _ in range(20)]  # in the place of what was dropped
data = ap.data.from_arrays(torch.randn(2000, 20), torch.arange(2000) % 10).split(6)
simulation = prepare(ap.async_dvw(adaptive=False, batch=16), data, fleet=ap.Fleet(fast=3, slow=3), execution="native")
simulation.begin()
while not simulation.evaluations.out:
    simulation.run(events=1)
del simulation
gc.collect()
left = begun(case(64, 64, 10, examples=2000))  # and the interpreter ends meanwhile
print("alive")
"""


@pytest.mark.slow
def test_a_process_may_drop_what_is_under_way_and_end() -> None:
    told = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", DROPPED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (told.returncode, told.stdout) == (0, "alive\n"), told.stderr


@pytest.mark.slow
def test_a_forked_process_trains_too() -> None:
    at_hand = case(20, 33, 7)
    who = learners(at_hand.x, SIZES)

    def train() -> Tensor:
        return vectors(trained(on_threads(4, Native(at_hand)), who, [MORE] * 6))

    ours = train()  # the threads are there now, and not in the fork
    assert torch.equal(ours, in_a_fork(train))
    assert torch.equal(ours, in_a_fork(lambda: in_a_fork(train)))
    assert torch.equal(ours, train())


@pytest.mark.slow
def test_a_fork_does_not_wait_for_what_its_parent_has_begun() -> None:
    """Nobody will do it there."""

    def fork() -> tuple[list[str], bool]:
        out = [begun(case(20, 33, 7))]  # with one thread, which does nothing before it waits

        def settle() -> str:
            with pytest.raises(RuntimeError, match="wait for it before forking"):
                out[0][0].wait()
            return "an error"

        def drop() -> str:
            out.clear()
            gc.collect()
            return "dropped"

        heard = [in_a_fork(settle, seconds=5), in_a_fork(drop, seconds=5)]
        way, made = out[0]
        way.wait()
        return heard, all(job.done for job in made)

    assert in_a_fork(fork) == (["an error", "dropped"], True)

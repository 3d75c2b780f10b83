"""Stacked training means the same as one learner after the other; plain PyTorch is the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from archipel.core.types import Cycle
from archipel.executors import stacked
from archipel.executors import stacked_networks as network
from archipel.executors.plain import Plain
from archipel.executors.stackable import why_not_stacked
from archipel.executors.stacked import Stacked
from archipel.learner.probes import score
from archipel.learner.training import report
from tests.simulation.engine_cases import (
    PLAN,
    PLANS,
    SIZES,
    against_plain,
    agree,
    jobs,
    learners,
    named,
    work,
)
from tests.simulation.stackable import NETWORKS, as_chosen_and_plain, case, noise

# ------------------------------------------------------------------------------------------------ it means the same


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_that_stacks(network: Any) -> None:
    at_hand = case(network)
    plan = replace(PLAN, momentum=0.5, proximal=0.1, options={"weight_decay": 0.01})
    who = learners(at_hand.x, SIZES)
    assert why_not_stacked(at_hand, plan) is None
    against_plain(Stacked(at_hand), who, [plan] * len(who))


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        *PLANS,
        replace(PLAN, shift="shift", proximal=0.5, momentum=0.9, options={"weight_decay": 0.1}),
        replace(PLAN, shift="shift", optimiser="Adam", rate=0.01),
        replace(PLAN, trains=("fc2", "head"), momentum=0.9, proximal=0.5, options={"weight_decay": 0.1}),
    ],
    ids=named,
)
def test_every_plan(plan: Any) -> None:
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    against_plain(Stacked(at_hand), who, [plan] * len(who))


def test_learners_with_different_plans_in_one_go() -> None:
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    plans = [
        PLAN,
        replace(PLAN, epochs=3),
        replace(PLAN, batch=5),
        replace(PLAN, steps=4),
        replace(PLAN, momentum=0.9, rate=0.01),
        replace(PLAN, trains=("head",)),
    ]
    pairs = against_plain(Stacked(at_hand), who, plans)
    # 33 of 8 are 5 batches, 16 of 5 are 4, 40 of 8 are 5
    assert [mine.steps for mine, _ in pairs] == [10, 3, 8, 4, 10, 2]


def test_frozen_layers_keep_every_bit() -> None:
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    plan = replace(PLAN, trains=("fc2",), momentum=0.9, proximal=0.5, options={"weight_decay": 0.1})
    made = jobs(at_hand, who, [plan] * len(who))
    before = [job.vector.clone() for job in made]
    Stacked(at_hand).submit(made)
    for job, begin in zip(made, before, strict=True):
        for layer in at_hand.layout.layers:
            piece = slice(layer.start, layer.stop)
            assert torch.equal(job.vector[piece], begin[piece]) == (layer.name != "fc2"), layer.name


def test_the_anchor_is_the_model_that_came() -> None:
    at_hand = case()
    (learner,) = learners(at_hand.x, (40,))
    held, free = (jobs(at_hand, [learner], [replace(PLAN, epochs=5, proximal=mu)])[0] for mu in (8.0, 0.0))
    begin = held.vector.clone()
    for job in (held, free):
        Stacked(at_hand).submit([job])
    assert (held.vector - begin).norm() < 0.5 * (free.vector - begin).norm()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_epoch_by_epoch_is_all_at_once(momentum: Any) -> None:
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    plans = [replace(PLAN, epochs=3, momentum=momentum), replace(PLAN, steps=11, momentum=momentum)] * 3
    together, by_epoch = jobs(at_hand, who, plans), jobs(at_hand, who, plans)
    way = Stacked(at_hand)
    way.submit(together)
    for epoch in range(1, 20):
        way.submit(by_epoch, 1)
        if epoch == 2:
            assert [job.epochs for job in by_epoch] == [2] * 6  # nobody's eleven steps fit into fewer
    for a, b in zip(together, by_epoch, strict=True):
        agree(a, b)


def test_a_large_cohort_is_stacked_in_several_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    monkeypatch.setattr(stacked, "NUMBERS", 2 * at_hand.layout.size)  # two learners at a time
    against_plain(Stacked(at_hand), who, [PLAN] * len(who))


def test_stacks_on_several_processes_come_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    monkeypatch.setattr(stacked, "WORTH_A_PROCESS", 2 * at_hand.layout.size * PLAN.batch)  # two learners a stack
    plans = [replace(PLAN, momentum=0.5)] * len(who)
    against_plain(Stacked(at_hand), who, plans)
    found = []
    for hands in (1, 2, 5):
        way = Stacked(at_hand)
        way.pool.count = hands
        made = jobs(at_hand, who, plans)
        way.submit(made)
        way.wait()
        found.append(torch.stack([job.vector for job in made]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("kept", [stacked.KEPT, 0])
def test_a_stack_in_the_place_of_another_comes_to_the_same_bits(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "KEPT", kept)
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    way = Stacked(at_hand)
    first = replace(PLAN, momentum=0.5, proximal=0.1)
    for plan in (first, first, replace(first, rate=PLAN.rate / 2), replace(PLAN, epochs=2), PLAN):
        again, alone = jobs(at_hand, who, [plan] * len(who)), jobs(at_hand, who, [plan] * len(who))
        way.submit(again)
        Stacked(at_hand).submit(alone)
        for a, b in zip(again, alone, strict=True):
            assert torch.equal(a.vector, b.vector)


def test_no_stack_is_larger_than_memory_allows_however_the_cohort_divides(monkeypatch: pytest.MonkeyPatch) -> None:
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    for fitting in (1, 2, 3, 4, 10):
        monkeypatch.setattr(stacked, "NUMBERS", fitting * at_hand.layout.size + at_hand.layout.size // 2)
        for count in range(1, len(who) + 1):
            stacks = Stacked(at_hand)._divided(jobs(at_hand, who[:count], [PLAN] * count))
            assert max(map(len, stacks)) <= fitting
            assert sum(map(len, stacks)) == count


def test_a_row_does_not_keep_its_cohort_in_memory() -> None:
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    made = jobs(at_hand, who, [replace(PLAN, momentum=0.5)] * len(who))
    Stacked(at_hand).submit(made, 1)
    for job in made:
        assert job.vector.untyped_storage().nbytes() == 4 * at_hand.layout.size
        assert job.memory["momentum"].untyped_storage().nbytes() == 4 * at_hand.layout.size


@pytest.mark.parametrize("loss", network.PER_EXAMPLE, ids=lambda loss: loss.__name__)
def test_every_loss_that_stacks(loss: Any) -> None:
    x = noise(200, 12)
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 3, (200,), generator=generator)
    targets = {"cross_entropy": labels, "nll_loss": labels, "binary_cross_entropy_with_logits": torch.eye(3)[labels]}
    y = targets.get(loss.__name__, torch.randn(200, 3, generator=generator))
    at_hand = work(case().module, x, y, loss)
    who = learners(x, SIZES, validation=(5, 0, 2, 1, 0, 3))
    against_plain(Stacked(at_hand), who, [replace(PLAN, rate=0.01, reports=("losses",))] * len(who))


def test_a_target_without_a_dimension_of_its_own() -> None:
    x = noise(200, 12)
    at_hand = work(nn.Sequential(nn.Linear(12, 1), nn.Flatten(0)), x, x.sum(dim=1), nn.functional.mse_loss)
    assert at_hand.module(x[:2]).shape == at_hand.y[:2].shape
    as_chosen_and_plain(at_hand, replace(PLAN, rate=0.01))


# ------------------------------------------------------------------------------------------------ validation losses


def test_validation_losses_of_every_epoch() -> None:
    at_hand = case()
    who = learners(at_hand.x, (33, 1, 16, 7), validation=(10, 0, 3, 1))
    plan = replace(PLAN, epochs=3, reports=("losses",))
    pairs = against_plain(Stacked(at_hand), who, [plan] * len(who))
    for learner, (mine, _) in zip(who, pairs, strict=True):
        assert len(mine.losses) == 4
        assert any(loss != loss for loss in mine.losses) == (len(learner.validation) == 0)


def test_models_are_tried_on_their_learners_own_validation_parts() -> None:
    at_hand = case()
    who = learners(at_hand.x, (33, 1, 16, 7), validation=(10, 0, 3, 1))
    plan = replace(PLAN, reports=("validation",))
    for mine, _ in against_plain(Stacked(at_hand), who, [plan] * len(who)):
        alone = score(at_hand, mine.vector, mine.learner.validation)
        assert report(at_hand, mine, mine.vector, mine.epochs).validation is mine.validation
        assert mine.validation is not None
        assert mine.validation.count == alone.count
        assert mine.validation.loss == pytest.approx(alone.loss, rel=1e-5)
        np.testing.assert_array_equal(mine.validation.confusion, alone.confusion)


def test_validation_cycles_end_where_they_end_in_plain_pytorch() -> None:
    at_hand = case()
    who = learners(at_hand.x, (33, 1, 16, 7, 20), validation=(10, 0, 3, 1, 6))
    plan = replace(PLAN, rate=0.3, momentum=0.5, reports=("losses",))
    cycles = (Cycle(), Cycle(tombstones=1), Cycle(loss=5), Cycle(at_most=3), Cycle(tombstones=4, at_most=7))
    pairs = against_plain(Stacked(at_hand), who, [replace(plan, cycle=cycle) for cycle in cycles])
    assert len({mine.epochs for mine, _ in pairs}) > 2, "they should end at different epochs"
    assert all(len(mine.losses) == mine.epochs + 1 for mine, _ in pairs)


def test_a_learner_that_begins_later_does_not_disturb_the_others_losses() -> None:
    at_hand = case()
    early, late = learners(at_hand.x, (33, 16), validation=(10, 3))
    plan = replace(PLAN, cycle=Cycle(tombstones=100, at_most=4), reports=("losses",))
    done = []
    for way in (Stacked(at_hand), Plain(at_hand)):
        first, second = jobs(at_hand, [early, late], [plan, plan])
        way.submit([first], 1)
        way.submit([first, second], 2)
        done.append((first, second))
    for mine, theirs in zip(*done, strict=True):
        agree(mine, theirs)


# -------------------------------------------------------------------------------------------------- not a number


def test_a_bad_example_spoils_nobody_but_its_owner() -> None:
    """A short batch is filled up with weights of zero, and zero times NaN is NaN."""
    at_hand = case()
    for place in (0, 77, 199):
        x = at_hand.x.clone()
        x[place] = torch.nan
        spoilt = replace(at_hand, x=x)
        who = learners(x, (100, 50, 50))
        made = jobs(spoilt, who, [replace(PLAN, batch=32)] * 3)
        Stacked(spoilt).submit(made)
        for learner, job in zip(who, made, strict=True):
            assert bool(job.vector.isfinite().all()) == (place not in learner.train), (place, learner.name)


def test_a_learner_that_diverges_spoils_nobody_else() -> None:
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    calm = jobs(at_hand, who, [PLAN] * len(who))
    wild = jobs(at_hand, who, [PLAN] * len(who))
    wild[2].vector.fill_(1e30)
    for made in (calm, wild):
        Stacked(at_hand).submit(made)
    assert not wild[2].vector.isfinite().all()
    for place in (0, 1, 3, 4, 5):
        assert torch.equal(wild[place].vector, calm[place].vector)

"""Native scores mean the same as those of plain PyTorch, and what is not finite is not hidden."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from archipel.core.types import Plan, Score
from archipel.executors.native import Native
from archipel.executors.plain import Plain
from archipel.learner.learner import Job, Learner, TrainingContext
from archipel.learner.probes import Parts, score_parts
from tests.simulation.engine_cases import (
    PLAN,
    SIZES,
    agree,
    jobs,
    learners,
)
from tests.simulation.perceptrons import case, trained, tried
from tests.ways import needs_library

pytestmark = needs_library


# ----------------------------------------------------------------------------------------------------- trying a model


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
    np.testing.assert_array_equal(mine.confusion, theirs.confusion)
    assert mine.histogram is None
    assert [0 if told is None else told.count for told in mine] == list(sizes)


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
    at_hand.module.get_parameter("0.weight").data.copy_(torch.eye(classes))
    at_hand.module.get_parameter("0.bias").data.zero_()
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
        assert np.asarray(told.confusion)[0, place].nonzero()[0].tolist() == [largest]


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
        np.testing.assert_array_equal(confusion, score_parts(at_hand, vector, Parts.of(parts)).confusion)


def test_scores_that_all_are_very_low_are_like_any_others() -> None:
    """What fills the lanes up must stay below them."""
    for classes in (3, 16, 17):
        at_hand = of_scores(torch.full((10, classes), -2e30))
        losses = tried(at_hand, [torch.arange(10)]).losses
        assert losses.tolist() == pytest.approx([10 * np.log(classes)])

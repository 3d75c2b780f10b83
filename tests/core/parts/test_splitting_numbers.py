"""Divide and conquer: divergences, the split and the plans of every round; and RADFed's divergences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.spatial.distance
import torch

from archipel import DivideAndConquer, PrivateLayers, divide_and_conquer
from archipel.core.parts.divergence import first_divergent, layer_divergence, pair_divergence
from archipel.core.records import Divergence
from archipel.core.types import Plan
from archipel.simulation.divergences import divergence_between
from tests.core.parts.by_hand import Bench, layout

A, B, C = [3.0, 4.0], [4.0, 3.0], [0.0, 5.0]  # all of norm 5; A.B = 24, A.C = 20, B.C = 15


def vector(numbers: Any) -> Any:
    return torch.tensor(numbers, dtype=torch.float64)


# ------------------------------------------------------------------------------------------------------- EQ2 and EQ3


def test_eq2_by_hand() -> None:
    # ||(3, 4) - (4, 3)|| / 5 = sqrt 2 / 5
    assert pair_divergence(vector(A), vector(B), "euclidean") == pytest.approx(math.sqrt(2) / 5, rel=1e-15)


def test_eq3_by_hand() -> None:
    # cos = 24 / 25, so the distance is .04, over 5
    assert pair_divergence(vector(A), vector(B), "cosine") == pytest.approx(0.008, rel=1e-12)


def test_eq3_without_the_norm_does_not_know_how_long_the_vectors_are() -> None:
    long = [30.0, 40.0]
    assert pair_divergence(vector(A), vector(B), "direction") == pytest.approx(0.04, rel=1e-12)
    assert pair_divergence(vector(long), vector(B), "direction") == pytest.approx(0.04, rel=1e-12)


def test_the_norm_is_that_of_the_first() -> None:
    twice = [6.0, 8.0]
    assert pair_divergence(vector(A), vector(twice), "euclidean") == 1.0  # 5 / 5
    assert pair_divergence(vector(twice), vector(A), "euclidean") == 0.5  # 5 / 10
    # cos((6, 8), (4, 3)) = 48 / 50
    assert pair_divergence(vector(twice), vector(B), "cosine") == pytest.approx(0.04 / 10, rel=1e-12)


def test_models_of_zeros() -> None:
    nought = vector([0.0, 0.0])
    assert pair_divergence(nought, nought, "cosine") == 0.0
    assert pair_divergence(nought, vector(A), "cosine") == math.inf
    assert pair_divergence(vector(A), nought, "cosine") == pytest.approx(0.2)  # no likeness at all: 1 / 5
    assert pair_divergence(vector(A), nought, "euclidean") == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_divergence_agrees_with_scipy(seed: int) -> None:
    a, b = np.random.default_rng(seed).standard_normal((2, 40))
    norm = np.linalg.norm(a)
    distance = scipy.spatial.distance
    assert pair_divergence(vector(a), vector(b), "cosine") == pytest.approx(distance.cosine(a, b) / norm, rel=1e-12)
    assert pair_divergence(vector(a), vector(b), "euclidean") == pytest.approx(
        distance.euclidean(a, b) / norm, rel=1e-12
    )


def test_divergence_of_several_is_the_mean_over_pairs() -> None:
    bench = Bench(layout(x=2, y=2))
    updates = [bench.update(name, [*x, *A]) for name, x in (("a", A), ("b", B), ("c", C))]
    # cosine distances 1 - 24/25, 1 - 20/25, 1 - 15/25 over 5: .008, .04, .08; y is the same everywhere
    found = layer_divergence(bench.view(), updates, "cosine")
    assert found == pytest.approx([0.128 / 3, 0.0], rel=1e-12, abs=1e-15)
    # ||A - B|| = sqrt 2, ||A - C|| = sqrt 10, ||B - C|| = sqrt 20, over 5
    found = layer_divergence(bench.view(), updates, "euclidean")
    assert found[0] == pytest.approx((math.sqrt(2) + math.sqrt(10) + math.sqrt(20)) / 15, rel=1e-12)


def test_divergence_is_over_those_who_sent_a_layer() -> None:
    bench = Bench(layout(x=2, y=2, z=2))
    updates = [
        bench.update("a", [*A, *A, *A], ["x", "y"]),
        bench.update("b", [*B, *B, *B], ["x", "z"]),
        bench.update("c", [*C, *C, *C], ["y"]),
    ]
    x, y, z = layer_divergence(bench.view(), updates, "cosine")
    assert (x, y) == pytest.approx((0.008, 0.04), rel=1e-12)  # a and b, a and c
    assert math.isnan(z)
    assert layer_divergence(bench.view(), updates[:1], "cosine") == []


# -------------------------------------------------------------------------------------------------------- the split

SIX = layout(l1=1, l2=1, l3=1, l4=1, l5=1, l6=1)


@pytest.mark.parametrize(
    ("divergence", "threshold", "first"),
    [
        # a low plateau, then a rise: the bar is .1 + .5 x (1 - .1) = .55
        ([0.1, 0.12, 0.11, 0.15, 0.9, 1.0], 0.5, 4),
        # a lower bar, .01 + .05 x (1 - .01) = .0595, is exceeded earlier
        ([0.01, 0.02, 0.012, 0.1, 0.9, 1.0], 0.05, 3),
        # a bar at the very top is exceeded by nobody: the last layer alone is fine-tuned
        ([0.1, 0.12, 0.11, 0.15, 0.9, 1.0], 1.0, 5),
        # the bar is .5, and to reach it is not to exceed it
        ([0.0, 0.5, 0.25, 0.5, 1.0, 1.0], 0.5, 4),
        # a slow rise: the bar is .35
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 0.5, 3),
        # flat: nothing stands out
        ([0.3] * 6, 0.5, 5),
        ([0.0] * 6, 0.5, 5),
        # the first layer learns features even if it diverges most; it is not what the others are measured by alone
        ([1.0, 0.1, 0.1, 0.1, 0.1, 0.1], 0.5, 5),
        ([1.0, 0.1, 0.1, 0.1, 0.9, 0.1], 0.5, 4),
        # layers that were not compared neither set the bar nor exceed it
        ([0.1, math.nan, 0.1, 0.9, math.nan, 1.0], 0.5, 3),
        # a layer of zeros against one that is not: it diverges, but no bar is infinite
        ([0.05, 0.05, math.inf, 0.2, 0.2, 0.2], 0.5, 2),
    ],
)
def test_where_the_split_is(divergence: Any, threshold: float, first: Any) -> None:
    assert first_divergent(SIX, divergence, threshold) == first


def test_divergence_that_is_high_everywhere_fine_tunes_the_last_layer() -> None:
    # D&C fig. 7: for imbalanced classes it is high across all layers, and only the last layer is fine-tuned; that one
    # layer is a hundredth above another does not make it stand out
    assert first_divergent(SIX, [0.90, 0.91, 0.90, 0.905, 0.90, 0.91], 0.5) == 5


def test_batch_norm_statistics_are_no_layers_to_split_at() -> None:
    layers = layout(conv=1, norm=1, norm_buffers=1, fc=1, head=1)
    # the statistics diverge most, but the weights behind them do first
    assert first_divergent(layers, [0.1, 0.1, 9.0, 0.9, 1.0], 0.5) == 3
    assert first_divergent(layers, [0.2, 0.2, 9.0, 0.2, 0.2], 0.5) == 4


@pytest.mark.parametrize(("split", "first"), [(1, 1), (3, 3), (5, 5), ("l1", 1), ("l3", 3), ("l5", 5), ("features", 5)])
def test_a_given_split_names_the_last_feature_layer(split: Any, first: Any) -> None:
    part = DivideAndConquer(split=split)
    part.check(SIX)
    assert part.found(Bench(SIX).view()) == first


def test_a_given_split_keeps_statistics_with_their_layer() -> None:
    layers = layout(conv=1, norm=1, norm_buffers=1, head=1)
    assert DivideAndConquer(split=2).found(Bench(layers).view()) == 3
    assert DivideAndConquer(split="norm").found(Bench(layers).view()) == 3


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (0, "split should be between 1 and 5 for the layers l1, l2, l3, l4, l5, l6; got 0"),
        (6, "split should be between 1 and 5 for the layers l1, l2, l3, l4, l5, l6; got 6"),
        ("l6", "split='l6' leaves no layer to fine-tune; layers of this model: l1, l2"),
        ("l7", "DivideAndConquer: no layer named 'l7'. Layers of this model: l1, l2"),
    ],
)
def test_an_impossible_split_is_refused_before_the_run(split: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DivideAndConquer(split=split).check(SIX)


def test_a_net_of_one_layer_cannot_be_split() -> None:
    with pytest.raises(ValueError, match=r"a network of one layer \(w\) cannot be split"):
        DivideAndConquer(split=1).check(layout(w=1))


def test_the_split_is_found_after_the_pre_pass_and_stays() -> None:
    bench = Bench(layout(x=2, y=2, z=2))
    part = DivideAndConquer(prepass=2)
    view = bench.view("planner.0")

    def commit(x: Any, y: Any, z: Any) -> None:
        bench.state.version += 1
        part.committed(view, [bench.update("a", [*A, *A, *A]), bench.update("b", [*x, *y, *z])])

    commit(A, A, C)
    assert part.found(view) is None  # one round of the pre-pass is still to come
    commit(A, C, C)
    assert part.found(view) == 1  # y diverges
    commit(A, A, C)
    assert part.found(view) == 1  # for the rest of the run
    # for the records, what the last commit showed: A.C = 20, so (1 - 20/25) / 5
    (note,) = part.notes(view)
    assert isinstance(note, Divergence)
    assert (note.version, note.names, note.kind, note.split) == (3, ("x", "y", "z"), "cosine", "y")
    assert note.values == pytest.approx((0.0, 0.0, 0.04), rel=1e-12, abs=1e-15)


def test_a_commit_of_one_update_says_nothing_about_the_split() -> None:
    bench = Bench(layout(x=2, y=2))
    part = DivideAndConquer(prepass=1)
    view = bench.view("planner.0")
    bench.state.version = 1
    part.committed(view, [bench.update("a", [*A, *A])])
    assert part.found(view) is None
    assert part.notes(view) == []


# ------------------------------------------------------------------------------------------------------------ plans


def plan_at(version: int, planners: Any, plan: Plan, layers: Any = SIX) -> Plan:
    bench = Bench(layers)
    bench.state.version = version
    learner = bench.join("a")
    for i, planner in enumerate(planners):
        plan = planner.plan(bench.view(f"planner.{i}"), learner, plan)
    return plan


def test_plans_of_divide_and_conquer_round_by_round() -> None:
    # section 4.2: 5 rounds of the whole net; then features (20 epochs) and classifier (4 epochs, half the rate) in
    # turn; the rate starts at .001 and falls by 10 % a round. Split after layer 4
    algorithm = divide_and_conquer(split=4, prepass=5)
    features, classifier = ("l1", "l2", "l3", "l4"), ("l5", "l6")
    for version in range(12):
        plan = plan_at(version, algorithm.planners, algorithm.plan)
        rate = 0.001 * 0.9**version
        if version < 5:
            expected: tuple[Any, ...] = (20, rate, None, None)
        elif version % 2 == 1:  # 5, 7, 9 ...: the rounds after the pre-pass begin with features
            expected = (20, rate, features, features)
        else:
            expected = (4, rate / 2, classifier, classifier)
        assert (plan.epochs, plan.trains, plan.uploads) == (expected[0], *expected[2:]), version
        assert plan.rate == pytest.approx(expected[1], rel=1e-14), version
    # by hand: version 6 is .001 x .9^6 / 2 = .001 x .531441 / 2
    assert plan_at(6, algorithm.planners, algorithm.plan).rate == pytest.approx(0.0002657205, rel=1e-12)


def test_with_a_given_split_there_is_no_prepass_unless_asked_for() -> None:
    # section 4.2.2: feature-learning rounds are CR = 1, 3, 5 ..., the others fine-tune
    algorithm = divide_and_conquer(split=4)
    trains = [plan_at(version, algorithm.planners, algorithm.plan).trains for version in range(4)]
    assert trains == [("l1", "l2", "l3", "l4"), ("l5", "l6")] * 2
    (part, _) = divide_and_conquer().planners
    assert isinstance(part, DivideAndConquer)
    assert part.prepass == 5


def test_epochs_and_rate_of_fine_tuning_are_settings() -> None:
    algorithm = divide_and_conquer(
        prepass=0, split="l2", tuning_epochs=2, tuning_rate=0.1, decay=1.0, epochs=7, rate=0.5
    )
    first, second = (plan_at(version, algorithm.planners, algorithm.plan) for version in (0, 1))
    assert (first.epochs, first.rate, first.trains) == (7, 0.5, ("l1", "l2"))
    assert (second.epochs, second.trains) == (2, ("l3", "l4", "l5", "l6"))
    assert second.rate == pytest.approx(0.05)


def test_before_the_split_is_known_the_whole_net_trains() -> None:
    assert plan_at(9, [DivideAndConquer()], Plan()) == Plan(epochs=20)


def test_private_layers_train_in_every_round_and_are_never_sent() -> None:
    chain = [PrivateLayers("head"), DivideAndConquer(prepass=0, split="conv")]
    layers = layout(conv=1, fc=1, head=1)
    features, tuning = (plan_at(version, chain, Plan(), layers) for version in (0, 1))
    assert (features.trains, features.uploads, features.private) == (("conv", "head"), ("conv",), ("head",))
    assert (tuning.trains, tuning.uploads, tuning.private) == (("fc", "head"), ("fc",), ("head",))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prepass": 0}, r"without a pre-pass the split cannot be found; give split=\.\.\. or prepass"),
        ({"prepass": -1}, "prepass should be at least 0, got -1"),
        ({"tuning_epochs": 0}, "tuning_epochs should be at least 1, got 0"),
        ({"tuning_rate": 0}, "tuning_rate should be more than 0, got 0"),
        (
            {"divergence": "cosin"},
            "divergence should be one of cosine, euclidean, direction, got 'cosin'. Did you mean 'cosine'",
        ),
        ({"threshold": 0}, "threshold should be above 0 and at most 1, got 0"),
    ],
)
def test_divide_and_conquer_refuses_nonsense(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DivideAndConquer(**settings)


# --------------------------------------------------------------------------------------- RADFed's divergences (V.B)


def test_divergence_between_local_updates_is_formula_3_of_radfed() -> None:
    # (1, 0), (0, 2), (3, 3): cosines 0, sqrt 1/2, sqrt 1/2; the mean over 3 pairs of one minus those
    models = [torch.tensor(w) for w in ([1.0, 0.0], [0.0, 2.0], [3.0, 3.0])]
    assert divergence_between(models) == pytest.approx((1 + 2 * (1 - math.sqrt(0.5))) / 3, rel=1e-12)
    assert divergence_between(models[:1]) is None


def test_divergence_between_local_updates_agrees_with_scipy() -> None:
    rows = np.random.default_rng(0).standard_normal((6, 50))
    found = divergence_between(list(torch.from_numpy(rows)))
    assert found == pytest.approx(scipy.spatial.distance.pdist(rows, "cosine").mean(), rel=1e-12)

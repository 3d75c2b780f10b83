"""What the weights act on, number by number."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from archipel.core.parts import ByExamples, Community, Mean, Mix, Replace
from archipel.core.parts.merge import CommunityMemory
from tests.core.parts.by_hand import Bench, layout

# ------------------------------------------------------------------------------------------------------------- mean


def test_mean_by_examples_is_equation_1_of_metis() -> None:
    # p = 10, 30; P = 40: (10 x 1 + 30 x 5) / 40 = 4, (10 x 2 + 30 x -2) / 40 = -1
    # (FedAvg, HDAFL Algorithm 1 and RADFed section III are the same sum)
    bench = Bench(layout(w=2))
    updates = [bench.update("a", [1.0, 2.0], examples=10), bench.update("b", [5.0, -2.0], examples=30)]
    weights = [ByExamples().weigh(bench.view(), update) for update in updates]
    assert bench.commit(Mean(), Replace(), updates, weights) == [4.0, -1.0]


def test_mean_of_equal_weights_is_algorithm_1_of_divide_and_conquer() -> None:
    # (1 / K) sum w_k, and RADFed Algorithm 1, line 12: (3 + 6 + 12) / 3
    bench = Bench(layout(w=1))
    updates = [bench.update(name, [value]) for name, value in (("a", 3.0), ("b", 6.0), ("c", 12.0))]
    assert bench.commit(Mean(), Replace(), updates, [1.0, 1.0, 1.0]) == pytest.approx([7.0], rel=1e-6)


def test_mean_of_each_layer_over_those_who_sent_it() -> None:
    bench = Bench(layout(x=1, y=1, z=1, nobody=1), [0.0, 0.0, 0.0, 42.0])
    updates = [
        bench.update("a", [1.0, 10.0, 3.0, 9.0], ["x", "y"]),
        bench.update("b", [5.0, 99.0, 7.0, 9.0], ["x", "z"]),
    ]
    # weights 1 and 3; x: (1 + 15) / 4; y: a alone; z: b alone; the last layer as it was
    proposal = Mean().merge(bench.view(), updates, [(1.0,) * 4, (3.0,) * 4])
    assert proposal.layers == (0, 1, 2)
    assert bench.commit(Mean(), Replace(), updates, [1.0, 3.0]) == [4.0, 10.0, 7.0, 42.0]


def test_mean_with_a_weight_for_each_layer() -> None:
    bench = Bench(layout(x=1, y=1))
    updates = [bench.update("a", [0.0, 0.0]), bench.update("b", [8.0, 8.0])]
    # x: 8 x 1/4; y: 8 x 3/4
    assert bench.commit(Mean(), Replace(), updates, [(3.0, 1.0), (1.0, 3.0)]) == [2.0, 6.0]


def test_mean_leaves_a_layer_without_weight_as_it_is() -> None:
    bench = Bench(layout(x=1, y=1), [1.0, 2.0])
    updates = [bench.update("a", [10.0, 20.0]), bench.update("b", [30.0, 40.0])]
    # x: nobody counts; y: b alone counts
    proposal = Mean().merge(bench.view(), updates, [(0.0, 0.0), (0.0, 5.0)])
    assert proposal.layers == (1,)
    assert bench.commit(Mean(), Replace(), updates, [(0.0, 0.0), (0.0, 5.0)]) == [1.0, 40.0]


def test_mean_agrees_with_numpy_over_pieces_larger_than_the_cache() -> None:
    sizes = {"x": 300_000, "y": 100, "z": 250_000}
    bench = Bench(layout(**sizes))
    rows = np.random.default_rng(0).standard_normal((3, bench.layout.size))
    updates = [bench.update(name, row) for name, row in zip("abc", rows, strict=True)]
    proposal = Mean().merge(bench.view(), updates, [(2.0,) * 3, (3.0,) * 3, (5.0,) * 3])
    expected = np.average(rows, axis=0, weights=[2, 3, 5])
    np.testing.assert_allclose(proposal.vector.numpy(), expected, atol=1e-6)


# -------------------------------------------------------------------------------------------------------------- mix


def test_mix_takes_alpha_times_the_weight_and_does_not_normalise() -> None:
    bench = Bench(layout(x=1), [10.0])
    # a = .5 x .5 = 1/4: 3/4 x 10 + 1/4 x 30 = 15; one update alone, yet it is not taken whole
    assert bench.commit(Mix(0.5), Replace(), [bench.update("a", [30.0])], [0.5]) == [15.0]
    # a = .5 x 1: (15 + 5) / 2
    assert bench.commit(Mix(0.5), Replace(), [bench.update("b", [5.0])], [1.0]) == [10.0]


def test_mix_takes_several_one_after_the_other() -> None:
    bench = Bench(layout(x=1), [16.0])
    updates = [bench.update("a", [0.0]), bench.update("b", [4.0])]
    # a = 1/2: 16 -> 8; then a = 1/4: 3/4 x 8 + 1/4 x 4 = 7
    assert bench.commit(Mix(0.5), Replace(), updates, [1.0, 0.5]) == [7.0]


def test_mix_of_partial_updates_and_of_weight_zero() -> None:
    bench = Bench(layout(x=1, y=1, z=1), [8.0, 8.0, 8.0])
    update = bench.update("a", [0.0, 0.0, 0.0], ["x", "z"])
    proposal = Mix(0.5).merge(bench.view(), [update], [(1.0, 1.0, 0.0)])
    assert proposal.layers == (0,)
    assert bench.commit(Mix(0.5), Replace(), [update], [(1.0, 1.0, 0.0)]) == [4.0, 8.0, 8.0]


def test_mix_does_not_touch_the_model_it_reads() -> None:
    bench = Bench(layout(x=1), [10.0])
    Mix(0.5).merge(bench.view(), [bench.update("a", [30.0])], [(1.0,)])
    assert bench.models.read("v0").tolist() == [10.0]


def test_mix_refuses_a_coefficient_above_one() -> None:
    bench = Bench(layout(x=1))
    with pytest.raises(ValueError, match=r"alpha 0.6 x weight 2.0 of learner 'a' is above 1.*ByFreshness"):
        Mix(0.6).merge(bench.view(), [bench.update("a", [1.0])], [(2.0,)])
    # exactly one takes the update whole: alpha .5 x weight 2
    assert bench.commit(Mix(0.5), Replace(), [bench.update("a", [7.0])], [2.0]) == [7.0]


@pytest.mark.parametrize("alpha", [0, 1.5, -0.1, math.nan])
def test_mix_refuses_such_an_alpha(alpha: float) -> None:
    with pytest.raises(ValueError, match="Mix: alpha should be above 0 and at most 1, got"):
        Mix(alpha)


# -------------------------------------------------------------------------------------------------------- community


def test_community_of_three_commits_by_two_learners() -> None:
    bench = Bench(layout(w=1), [100.0])

    def step(name: str, value: float, weight: float) -> list[float]:
        return bench.commit(Community(), Replace(), [bench.update(name, [value])], [weight])

    # P = 1, W = 1 x 2
    assert step("a", 2.0, 1.0) == [2.0]
    # P = 1 + 3 = 4, W = 2 + 3 x 6 = 20
    assert step("b", 6.0, 3.0) == [5.0]
    # a again: P = 4 + 2 - 1 = 5, W = 20 + 2 x 9 - 1 x 2 = 36
    assert step("a", 9.0, 2.0) == pytest.approx([7.2], rel=1e-7)
    assert bench.view("merge").memory(CommunityMemory).weight == [5.0]
    assert bench.models.read("merge/sum").tolist() == [36.0]


def test_community_of_several_updates_in_one_commit() -> None:
    bench = Bench(layout(w=1))
    updates = [bench.update("a", [2.0]), bench.update("b", [6.0])]
    assert bench.commit(Community(), Replace(), updates, [1.0, 3.0]) == [5.0]


def test_community_keeps_a_weight_for_every_layer() -> None:
    bench = Bench(layout(x=1, y=1), [0.0, 0.0])

    def step(
        name: str, numbers: list[float], layers: list[str] | None, weight: float | tuple[float, ...]
    ) -> list[float]:
        return bench.commit(Community(), Replace(), [bench.update(name, numbers, layers)], [weight])

    assert step("a", [2.0, 10.0], None, 1.0) == [2.0, 10.0]
    # b sends x only: x has P = 4, W = 20; y is still a's alone
    assert step("b", [6.0, 99.0], ["x"], 3.0) == [5.0, 10.0]
    # a sends y only, with weight 2: P = 1 + 2 - 1, W = 10 + 40 - 10; x keeps a's term of the first commit
    assert step("a", [99.0, 20.0], ["y"], 2.0) == [5.0, 20.0]
    assert bench.view("merge").memory(CommunityMemory).weight == [4.0, 2.0]
    # b replaces x: P = 4 + 1 - 3 = 2, W = 20 + 8 - 18 = 10
    assert step("b", [8.0, 99.0], ["x"], 1.0) == [5.0, 20.0]
    # and with a weight for each layer: x: P = 2 + 6 - 1 = 7, W = 10 + 6 x 11 - 8 = 68; y: P = 2 + 2, W = 40 + 2 x 30
    assert step("b", [11.0, 30.0], None, (6.0, 2.0)) == pytest.approx([68 / 7, 25.0], rel=1e-7)


def test_community_holds_the_vectors_of_its_terms_and_no_others() -> None:
    bench = Bench(layout(x=1, y=1))
    community = Community()
    assert bench.held() == set()
    first, second, third = (
        bench.update("a", [1.0, 1.0]),
        bench.update("a", [2.0, 2.0], ["x"]),
        bench.update("a", [3.0, 3.0], ["y"]),
    )
    bench.commit(community, Replace(), [first], [1.0])
    bench.commit(community, Replace(), [second], [1.0])
    assert bench.held() == {first.model.name, second.model.name}
    bench.commit(community, Replace(), [third], [1.0])
    assert bench.held() == {second.model.name, third.model.name}


def three_commits(bench: Bench, community: Community) -> None:
    for name, value, p in (("a", 2.0, 1.0), ("b", 6.0, 3.0), ("a", 9.0, 2.0)):  # P = 5, W = 36
        bench.commit(community, Replace(), [bench.update(name, [value])], [p])


def test_community_a_leavers_model_stays() -> None:
    bench = Bench(layout(w=1))
    community = Community()
    three_commits(bench, community)
    community.left(bench.view("merge"), "a")
    # P = 5 + 1, W = 36 + 10
    after = bench.commit(community, Replace(), [bench.update("c", [10.0])], [1.0])
    assert after == pytest.approx([46 / 6], rel=1e-7)


def test_community_that_forgets_takes_a_leavers_model_out() -> None:
    bench = Bench(layout(w=1))
    community = Community(forget=True)
    three_commits(bench, community)
    community.left(bench.view("merge"), "a")
    community.left(bench.view("merge"), "a stranger")
    assert bench.held() == {"u1"}
    # P = 5 - 2 + 1 = 4, W = 36 - 18 + 10 = 28
    assert bench.commit(community, Replace(), [bench.update("c", [10.0])], [1.0]) == [7.0]


def test_community_the_next_commit_shows_what_was_forgotten_in_every_layer() -> None:
    bench = Bench(layout(x=1, y=1))
    community = Community(forget=True)
    bench.commit(community, Replace(), [bench.update("a", [1.0, 1.0])], [1.0])
    assert bench.commit(community, Replace(), [bench.update("b", [3.0, 3.0])], [1.0]) == [2.0, 2.0]
    community.left(bench.view("merge"), "a")
    # c sends x only: (3 + 5) / 2; y is b's alone from now on
    assert bench.commit(community, Replace(), [bench.update("c", [5.0, 0.0], ["x"])], [1.0]) == [4.0, 3.0]


def test_community_that_everybody_left_starts_from_nothing() -> None:
    bench = Bench(layout(x=1))
    community = Community(forget=True)
    # 0.1 + 0.2 - 0.1 - 0.2 is 2.8e-17 in floats
    bench.commit(community, Replace(), [bench.update("a", [3.0])], [0.1])
    bench.commit(community, Replace(), [bench.update("b", [7.0])], [0.2])
    community.left(bench.view("merge"), "a")
    community.left(bench.view("merge"), "b")
    assert bench.view("merge").memory(CommunityMemory).weight == [0.0]
    assert bench.models.read("merge/sum").tolist() == [0.0]
    assert bench.commit(community, Replace(), [bench.update("c", [5.0])], [1.0]) == [5.0]


def test_community_without_weight_keeps_the_model() -> None:
    bench = Bench(layout(x=1, y=1), [11.0, 12.0])
    update = bench.update("a", [1.0, 2.0])
    assert Community().merge(bench.view("merge"), [update], [(0.0, 0.0)]).layers == ()
    assert bench.commit(Community(), Replace(), [bench.update("b", [5.0, 6.0])], [(0.0, 2.0)]) == [11.0, 6.0]


def test_community_whose_weight_sinks_to_zero_keeps_the_model() -> None:
    # DVW may find everybody's newest model worth nothing; what rounding leaves of P and W is no model
    bench = Bench(layout(w=1))
    for name, value, p in (("a", 3.0, 0.1), ("b", 7.0, 0.2)):
        before = bench.commit(Community(), Replace(), [bench.update(name, [value])], [p])
    assert before == pytest.approx([1.7 / 0.3], rel=1e-6)
    for name, value in (("a", 4.0), ("b", 8.0)):
        after = bench.commit(Community(), Replace(), [bench.update(name, [value])], [0.0])
        # with a at nothing b's 7 stands alone; with both at nothing it stays
        assert after == pytest.approx([7.0], rel=1e-6)


@pytest.mark.slow
def test_community_sum_equals_a_full_pass_after_ten_thousand_commits() -> None:
    sizes = {"x": 100, "y": 150, "z": 50}
    bench = Bench(layout(**sizes))
    community = Community()
    view = bench.view("merge")
    draw = np.random.default_rng(1990)
    latest: dict[str, tuple[float, np.ndarray]] = {}
    for _ in range(10_000):
        name = f"learner {draw.integers(20)}"
        weight = float(10 ** draw.uniform(-3, 3))
        update = bench.update(name, draw.standard_normal(300).astype(np.float32))
        proposal = community.merge(view, [update], [(weight,) * 3])
        latest[name] = (weight, bench.models.read(update.model.name).double().numpy())
        bench.sweep()
    assert len(latest) == 20
    # the O(MN) pass: everybody's latest model anew, in float64
    full = sum(p * w for p, w in latest.values())
    scale = sum(p * np.abs(w) for p, w in latest.values())
    total = math.fsum(p for p, _ in latest.values())
    kept = bench.models.read("merge/sum")
    assert kept.dtype == torch.float64
    assert np.max(np.abs(kept.numpy() - full) / scale) < 1e-12
    assert bench.view("merge").memory(CommunityMemory).weight == pytest.approx([total] * 3, rel=1e-12)
    # what goes out is that mean, rounded to float32 once
    np.testing.assert_allclose(proposal.vector.numpy(), full / total, rtol=1.2e-7, atol=1e-12)

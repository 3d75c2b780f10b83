"""No learner counts for more than a stated share: the arithmetic by hand."""

from __future__ import annotations

import pytest

from archipel.core.parts import Community, Mean, Mix
from archipel.core.parts.merge import CommunityMemory
from archipel.core.shares import cap
from tests.core.parts.by_hand import Bench, layout


@pytest.mark.parametrize(
    ("amounts", "most", "expected"),
    [
        ([100.0, 100.0, 1e12], 0.5, [100.0, 100.0, 200.0]),
        ([1.0, 3.0], 0.5, [1.0, 1.0]),
        ([1.0, 3.0], 0.8, [1.0, 3.0]),
        ([1.0, 9.0], 0.8, [1.0, 4.0]),
        ([5.0], 0.1, [5.0]),
        ([0.0, 0.0], 0.5, [0.0, 0.0]),
        ([1.0, 50.0, 50.0], 0.4, [1.0, 2.0, 2.0]),
    ],
)
def test_amounts_are_cut_to_the_share(amounts: list[float], most: float, expected: list[float]) -> None:
    assert cap(amounts, most) == pytest.approx(expected)


def test_an_amount_beside_counts_in_the_sum_and_is_not_cut() -> None:
    assert cap([9.0], 0.5, beside=3.0, others=2) == pytest.approx([3.0])


def test_weights_of_a_mean_are_cut_layer_by_layer() -> None:
    bench = Bench(layout(x=1, y=1))
    bench.state.most_share = 0.5
    updates = [bench.update("a"), bench.update("b"), bench.update("c")]
    weights = [(1.0, 1.0), (1.0, 1.0), (8.0, 1.0)]
    assert Mean().within_shares(bench.view("merge"), updates, weights) == [(1.0, 1.0), (1.0, 1.0), (2.0, 1.0)]
    assert Mix().within_shares(bench.view("merge"), updates, weights) == weights, "alpha bounds an update there"


def test_a_community_cuts_a_model_that_came_when_fewer_were_there() -> None:
    bench = Bench(layout(x=1))
    bench.state.most_share = 0.5
    view, part = bench.view("merge"), Community()
    part.merge(view, [bench.update("a", [1.0])], [(100.0,)])
    update = bench.update("b", [3.0])
    within = part.within_shares(view, [update], [(4.0,)])
    proposal = part.merge(view, [update], within)
    assert proposal.cut == ("a",)
    assert view.memory(CommunityMemory).weight == [8.0]
    assert proposal.vector.tolist() == [2.0]

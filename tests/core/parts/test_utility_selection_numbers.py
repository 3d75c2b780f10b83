"""Selections by reported losses and by groups, by hand."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from archipel.core.parts import ByLoss, ByTier, ByUtility
from archipel.core.parts.utility_ranks import UtilityMemory
from archipel.core.types import Metrics
from tests.core.parts.by_hand import Bench, layout

NAMES = ["a", "b", "c", "d", "e", "f"]


def bench(**losses: float) -> Bench:
    """Six learners of two groups; some have reported a loss, whose square is that of every example."""
    made = Bench(layout(w=1))
    for place, name in enumerate(NAMES):
        made.join(name, examples=10 * (place + 1), group="fast" if place < 3 else "slow")
    return made


def told(made: Bench, selection: ByLoss | ByUtility | ByTier, **losses: float) -> None:
    for name, loss in losses.items():
        metrics = Metrics(training_loss=loss, squared_loss=loss**2)
        examples = made.state.members[name].examples
        selection.observe(made.view("selection"), made.update(name, [0.0], examples=examples, metrics=metrics))


def test_power_of_choice_takes_the_highest_losses_and_first_those_it_does_not_know() -> None:
    made, selection = bench(), ByLoss(6)
    told(made, selection, a=1.0, b=5.0, c=2.0, d=4.0, e=3.0)
    for draw in range(20):
        assert selection.select(made.view("selection"), NAMES, 3, f"round {draw}") == ["f", "b", "d"]


def test_power_of_choice_draws_its_candidates_by_their_examples() -> None:
    made, selection = bench(), ByLoss(1)
    picked = Counter(selection.select(made.view("selection"), NAMES, 1, f"round {n}")[0] for n in range(4000))
    for place, name in enumerate(NAMES):  # 10 to 60 of 210
        assert picked[name] / 4000 == pytest.approx(10 * (place + 1) / 210, abs=0.03)


def test_power_of_choice_draws_at_least_as_many_as_take_part() -> None:
    made = bench()
    assert sorted(ByLoss(1).select(made.view("selection"), NAMES, 6, "round 0")) == NAMES


def test_the_utility_of_oort_by_hand() -> None:
    made, selection = bench(), ByUtility()
    told(made, selection, b=3.0)
    memory = made.view("selection").memory(UtilityMemory)
    made.state.version = 9
    # 20 examples of loss 3, last seen in round 1; now it is round 10
    assert memory.value("b", 10) == pytest.approx(20 * 3 + math.sqrt(0.1 * math.log(10) / 1))
    assert selection.explored(0) == 0.9
    assert selection.explored(1) == pytest.approx(0.882)
    assert selection.explored(500) == 0.2


def test_oort_explores_and_exploits() -> None:
    made, selection = bench(), ByUtility(explore=0.5, decay=1.0)
    told(made, selection, a=100.0, b=1.0, c=1.0)  # utilities 1000, 20, 30
    for draw in range(20):
        chosen = selection.select(made.view("selection"), NAMES, 2, f"round {draw}")
        assert chosen[0] in ("d", "e", "f"), "one that was not seen yet"
        assert chosen[1] == "a", "no other comes near it"


def test_oort_draws_among_those_near_the_bar_in_proportion() -> None:
    made, selection = bench(), ByUtility(explore=0.0, least=0.0, cutoff=0.5)
    told(made, selection, a=4.0, b=3.0, c=0.1, d=0.1, e=0.1, f=0.1)  # utilities 40, 60, 3, 4, 5, 6
    picked = Counter(selection.select(made.view("selection"), NAMES, 1, f"round {n}")[0] for n in range(3000))
    assert set(picked) == {"a", "b"}, "the bar is half of the highest"
    assert picked["b"] / 3000 == pytest.approx(0.6, abs=0.03)


def test_oort_fills_its_places_with_whom_there_is() -> None:
    made, selection = bench(), ByUtility()
    assert sorted(selection.select(made.view("selection"), NAMES, 9, "round 0")) == NAMES
    told(made, selection, **dict.fromkeys(NAMES, 1.0))
    assert len(set(selection.select(made.view("selection"), NAMES, 4, "round 1"))) == 4


def test_tifl_takes_learners_of_one_tier() -> None:
    made, selection = bench(), ByTier({"fast": 3.0, "slow": 1.0})
    tiers = Counter[str]()
    for draw in range(2000):
        chosen = selection.select(made.view("selection"), NAMES, 2, f"round {draw}")
        groups = {made.state.members[name].group for name in chosen}
        assert len(groups) == 1
        assert len(set(chosen)) == 2
        tiers.update(groups)
    assert tiers["fast"] / 2000 == pytest.approx(0.75, abs=0.03)


def test_tifl_prefers_the_tier_with_the_higher_loss() -> None:
    made, selection = bench(), ByTier()
    view = made.view("selection")
    assert selection.chance(_memory(made, selection), "fast", NAMES[:3]) == 1.0, "nobody has reported"
    told(made, selection, a=4.0, b=2.0, d=1.0)
    # a and b told 4 and 2; c stands at the mean of 4, 2 and 1
    assert selection.chance(_memory(made, selection), "fast", NAMES[:3]) == pytest.approx((4 + 2 + 7 / 3) / 3)
    tiers = Counter(made.state.members[selection.select(view, NAMES, 1, f"round {n}")[0]].group for n in range(2000))
    fast, slow = (4 + 2 + 7 / 3) / 3, (1 + 7 / 3 + 7 / 3) / 3
    assert tiers["fast"] / 2000 == pytest.approx(fast / (fast + slow), abs=0.03)


def test_tifls_credits_run_out() -> None:
    made, selection = bench(), ByTier({"fast": 1.0, "slow": 1e-9}, credits=2)
    groups = [
        made.state.members[selection.select(made.view("selection"), NAMES, 1, f"round {n}")[0]].group for n in range(5)
    ]
    assert groups[:4] == ["fast", "fast", "slow", "slow"]
    assert groups[4] == "fast", "when nobody has any left they do not count"


def _memory(made: Bench, selection: ByTier) -> Any:
    from archipel.core.parts.utility_selection import TierMemory

    return made.view("selection").memory(TierMemory)

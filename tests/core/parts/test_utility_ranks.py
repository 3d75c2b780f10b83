"""Oort reads few of many learners, and draws as if it had read all."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from archipel.core.members import SortedNames
from archipel.core.parts import ByUtility
from archipel.core.parts.utility_ranks import UtilityMemory
from archipel.core.randomness import PERMUTED
from archipel.core.types import Metrics
from tests.core.parts.by_hand import Bench, layout

MANY = 3 * PERMUTED
NAMES = [f"{number:04}" for number in range(MANY)]


def bench(count: int = MANY) -> Bench:
    made = Bench(layout(w=1))
    for name in NAMES[:count]:
        made.join(name, examples=10)
    return made


def report(made: Bench, selection: ByUtility, names: list[str], losses: list[float]) -> None:
    for name, loss in zip(names, losses, strict=True):
        metrics = Metrics(training_loss=loss, squared_loss=loss**2)
        selection.observe(made.view("selection"), made.update(name, [0.0], examples=10, metrics=metrics))


@pytest.mark.slow
@pytest.mark.parametrize("seen", [MANY, MANY - 700, MANY - 5])
@pytest.mark.parametrize("spread", [0.5, 5.0])
def test_few_are_drawn_as_if_all_had_been_looked_at(seen: int, spread: float) -> None:
    """With at most 1,000 learners near the bar and unseen ones, the draws are the same to the bit."""
    made, selection, numbers = bench(), ByUtility(decay=0.9), np.random.default_rng(0)
    report(made, selection, NAMES[:seen], [float(one) for one in 1 + spread * numbers.random(seen) ** 2])
    fresh = bench()
    for version in range(30):
        for one in (made, fresh):
            one.state.version = version
        view = made.view("selection")
        there = SortedNames(numbers.choice(NAMES, MANY - 3, replace=False).tolist())
        chosen = selection.select(view, there, 20, f"round {version}")
        assert chosen == selection._of_all(view, there, 20, f"round {version}")
        report(made, selection, chosen, [float(one) for one in 1 + spread * numbers.random(20) ** 2])


def test_the_lists_follow_from_what_is_saved() -> None:
    made, selection, numbers = bench(), ByUtility(), np.random.default_rng(1)
    view = made.view("selection")
    for version in range(40):
        made.state.version = version
        chosen = selection.select(view, SortedNames(NAMES), 30, f"round {version}")
        report(made, selection, chosen, [float(one) for one in numbers.random(30)])
        made.join(f"late {version}", examples=10)
        memory = view.memory(UtilityMemory)
        again = UtilityMemory(dict(memory.utility), dict(memory.last))
        unseen = [*memory.unseen(made.state.members)]
        assert unseen == [*again.unseen(made.state.members)] == sorted(set(made.state.members) - set(memory.utility))
        near, other = (one.ranks.from_bar(3.0, version + 1) for one in (memory, again))
        assert [*map(near.numbered(), range(len(near)))] == [*map(other.numbered(), range(len(other)))]
        assert (near.most, near.ends) == (other.most, other.ends)


def test_chances_among_many_near_the_bar_are_in_proportion() -> None:
    made, selection = bench(), ByUtility(explore=0.0, least=0.0)
    losses = [100.0 + (place % 2) * 5 for place in range(MANY)]  # all within 5 % of the highest
    report(made, selection, NAMES, losses)
    view = made.view("selection")
    assert len(view.memory(UtilityMemory).ranks.from_bar(0.95 * 1050, 1)) > PERMUTED
    picked = Counter(
        int(name) % 2 for draw in range(400) for name in selection.select(view, SortedNames(NAMES), 20, f"{draw}")
    )
    assert picked[1] / picked.total() == pytest.approx(105 / 205, abs=0.02)


def test_a_draw_among_many_looks_at_few() -> None:
    class Counted(SortedNames):
        looks = 0

        def __contains__(self, name: object) -> bool:
            Counted.looks += 1
            return super().__contains__(name)

        def __iter__(self) -> None:  # type: ignore[override]
            raise AssertionError("it looks at all")

    made, selection, numbers = bench(), ByUtility(), np.random.default_rng(2)
    report(made, selection, NAMES[: PERMUTED + 10], numbers.pareto(1.0, PERMUTED + 10).tolist())
    there = Counted(NAMES)
    selection.select(made.view("selection"), there, 10, "first")
    Counted.looks = 0
    assert len(selection.select(made.view("selection"), there, 10, "second")) == 10
    assert Counted.looks < 100


@pytest.mark.parametrize("gone", [0, MANY // 2 - 5])
def test_places_are_filled_with_whom_there_is(gone: int) -> None:
    made, selection = bench(), ByUtility()
    there = SortedNames(NAMES[gone:])
    view = made.view("selection")
    assert len(set(selection.select(view, there, MANY, "round 0"))) == MANY - gone
    report(made, selection, NAMES, [0.0] * MANY)
    assert len(set(selection.select(view, there, 50, "round 1"))) == 50, "no loss is left, so no value differs from 0"

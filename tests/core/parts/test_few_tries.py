"""Draws from many candidates have the chances that they claim, and look at few of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import overload

import pytest
import scipy.stats

from archipel.core.parts import ByImportance, ByLoss, ByTier
from archipel.core.parts.few_tries import BATCH, PART, draw_by_tries, draws_until_next_look
from archipel.core.parts.selection import ImportanceMemory, LatinSquare, Selection
from archipel.core.randomness import PERMUTED, generator
from archipel.core.types import Metrics
from tests.core.parts.by_hand import Bench, layout

MANY = 4 * PERMUTED
NAMES = [f"{number:04}" for number in range(MANY)]


class Candidates(Sequence[str]):
    """Names in order that count how many of them are read."""

    def __init__(self, names: list[str]) -> None:
        self.names, self.seen = names, 0

    @overload
    def __getitem__(self, number: int) -> str: ...

    @overload
    def __getitem__(self, number: slice) -> list[str]: ...

    def __getitem__(self, number: int | slice) -> str | list[str]:
        self.seen += 1
        return self.names[number]

    def __iter__(self) -> Iterator[str]:
        self.seen += len(self.names)
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        self.seen += 1
        return name in self.names

    def __len__(self) -> int:
        return len(self.names)


def bench() -> Bench:
    """Many learners with 10 to 30 examples, in two groups; every tenth has reported."""
    made = Bench(layout(w=1))
    for place, name in enumerate(NAMES):
        made.join(name, examples=10 * (1 + place % 3), group="fast" if place % 2 else "slow")
    return made


def report(made: Bench, selection: Selection, names: Sequence[str], value: float) -> None:
    metrics = Metrics(training_loss=value, squared_loss=value**2, gradient_norm=value)
    for name in names:
        selection.observe(made.view("selection"), made.update(name, [0.0], metrics=metrics))


@pytest.mark.parametrize("selection", [ByImportance(), ByLoss(10), ByTier(), LatinSquare()], ids=repr)
def test_most_draws_look_at_few_candidates(selection: Selection) -> None:
    made, candidates = bench(), Candidates(NAMES)
    report(made, selection, NAMES[::10], 2.0)
    view, seen = made.view("selection"), []
    for draw in range(5):
        candidates.seen = 0
        chosen = selection.select(view, candidates, 10, f"round {draw}")
        assert len(chosen) == len(set(chosen)) == 10
        seen.append(candidates.seen)
    assert seen[0] >= MANY, "the first draw looks at all"
    assert max(seen[1:]) < 200


def test_all_candidates_are_looked_at_again_once_a_part_of_them_was_drawn() -> None:
    made, candidates, selection = bench(), Candidates(NAMES), ByImportance()
    view = made.view("selection")
    assert draws_until_next_look(MANY, 100) == MANY // 100 // PART == 5
    full = []
    for draw in range(14):
        candidates.seen = 0
        selection.select(view, candidates, 100, f"round {draw}")
        if candidates.seen >= MANY:
            full.append(draw)
            report(made, selection, NAMES[draw : draw + 1], 4.0 * (draw + 1))
    assert full == [0, 6, 12]
    assert view.memory(ImportanceMemory).guess == (4.0 + 28.0) / 2, "the mean of those that had reported by then"
    assert view.memory(ImportanceMemory).highest == 52.0, "one that has reported since"


def test_few_candidates_are_all_looked_at() -> None:
    assert draws_until_next_look(PERMUTED, 1) == 0
    assert draws_until_next_look(MANY, MANY) == 0


def test_chances_are_in_proportion_in_the_first_and_in_the_second_place() -> None:
    weights = [1.0, 2.0, 5.0, 0.0]
    drawn = [draw_by_tries(generator(key, "tries"), weights.__getitem__, 5.0, 4, 2) for key in range(4000)]
    pairs = Counter((pair[0], pair[1]) for pair in drawn if pair is not None)
    expected = {
        (a, b): 4000 * weights[a] / 8 * weights[b] / (8 - weights[a]) for a in range(3) for b in range(3) if a != b
    }
    assert sum(pairs.values()) == 4000
    assert set(pairs) == set(expected), "a chance of zero is none"
    found = scipy.stats.chisquare([pairs[pair] for pair in expected], [*expected.values()])
    assert found.pvalue > 0.01


def test_no_draw_where_a_chance_is_above_the_highest_or_too_few_are_met() -> None:
    assert draw_by_tries(generator(1, "tries"), lambda _: 2.0, 1.0, MANY, 3) is None
    tried: list[int] = []

    def none(number: int) -> float:
        tried.append(number)
        return 0.0

    assert draw_by_tries(generator(1, "tries"), none, 1.0, MANY, 3) is None
    assert len(tried) == -(-MANY // BATCH) * BATCH, "as many as there are, in whole batches"
    assert draw_by_tries(generator(1, "tries"), lambda _: 1.0, 1.0, 2, 3) is None


@pytest.mark.parametrize("alike", [True, False])
def test_importance_of_many_gives_the_chances_of_few(alike: bool) -> None:
    made, selection = bench(), ByImportance()
    report(made, selection, NAMES[:400], 30.0)
    report(made, selection, NAMES[400:800], 2.0 if not alike else 30.0)
    view = made.view("selection")
    chosen = [name for draw in range(300) for name in selection.select(view, NAMES, 10, f"round {draw}")]
    strong = sum(name < NAMES[400] for name in chosen) / len(chosen)
    guess = 16.0 if not alike else 30.0
    total = 400 * 30 + 400 * (30 if alike else 2) + (MANY - 800) * guess
    assert strong == pytest.approx(400 * 30 / total, abs=0.02)


def test_a_tier_too_small_for_tries_is_looked_up() -> None:
    made, selection = bench(), ByTier({"fast": 0.0, "slow": 0.0, "rare": 1.0})
    for name in NAMES[:5]:
        made.state.members[name].group = "rare"
    view = made.view("selection")
    for draw in range(3):
        assert sorted(selection.select(view, NAMES, 3, f"round {draw}"))[-1] <= NAMES[4]

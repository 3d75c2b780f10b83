"""Who takes part: the same draw picks the same, and chances are what they claim to be."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import pytest
import scipy.stats

from archipel.core.parts import ByImportance, Everyone, Uniform
from archipel.core.parts.protocol import participants
from archipel.core.parts.selection import ImportanceMemory
from archipel.core.types import Metrics
from tests.core.parts.by_hand import Bench, layout

NAMES = ["a", "b", "c", "d", "e"]


@pytest.fixture
def bench() -> Bench:
    return Bench(layout(w=1))


def fits(counts: Counter[Any], expected: dict[Any, float]) -> float:
    """The p-value of Pearson's test; seeds are fixed, so it is one number for ever."""
    total = sum(counts.values())
    assert set(counts) <= set(expected)
    found = scipy.stats.chisquare([counts[key] for key in expected], [p * total for p in expected.values()])
    return float(found.pvalue)


# ---------------------------------------------------------------------------------------------------------- how many


@pytest.mark.parametrize(
    ("fraction", "minimum", "learners", "m"),
    [
        (0.1, 1, 100, 10),  # RADFed Algorithm 1, line 2: m = max(C K, 1)
        (0.1, 1, 60, 6),
        (0.1, 1, 5, 1),  # max(0.5, 1)
        (0.29, 1, 100, 29),  # 0.29 x 100 is 28.999999999999996 in floats
        (0.25, 1, 10, 2),  # whole learners only
        (0.1, 4, 20, 4),
        (1.0, 1, 7, 7),
        (0.1, 4, 3, 3),  # no more than there are
    ],
)
def test_how_many_take_part(fraction: float, minimum: Any, learners: int, m: Any) -> None:
    assert participants(fraction, minimum, learners) == m


# ------------------------------------------------------------------------------------------------- everyone, uniform


def test_everyone_whatever_the_fraction(bench: Bench) -> None:
    assert Everyone().select(bench.view(), NAMES, 2, "round 0") == NAMES


def test_uniform_draws_without_replacement(bench: Bench) -> None:
    for i in range(200):
        chosen = Uniform().select(bench.view(), NAMES, 3, f"round {i}")
        assert len(chosen) == len(set(chosen)) == 3
        assert set(chosen) <= set(NAMES)
    assert sorted(Uniform().select(bench.view(), NAMES, 9, "round 0")) == NAMES


def test_the_same_draw_picks_the_same() -> None:
    picks = [Uniform().select(Bench(layout(w=1), seed=3).view(), NAMES, 3, f"round {i}") for i in (5, 5, 6, 7, 8)]
    assert picks[0] == picks[1]
    assert len({tuple(pick) for pick in picks}) > 1
    other_seed = [Uniform().select(Bench(layout(w=1), seed=4).view(), NAMES, 3, f"round {i}") for i in (5, 6, 7, 8)]
    assert other_seed != picks[1:]


def test_a_selection_leaves_no_trace(bench: Bench) -> None:
    Uniform().select(bench.view("selection"), NAMES, 3, "round 0")
    assert not bench.view("selection").memory(ImportanceMemory).scores


def test_uniform_gives_every_ordered_pair_the_same_chance(bench: Bench) -> None:
    # order counts under Relay: slot i goes to the i-th
    counts = Counter(tuple(Uniform().select(bench.view(), NAMES, 2, f"round {i}")) for i in range(3000))
    assert fits(counts, dict.fromkeys(permutations(NAMES, 2), 1 / 20)) > 0.01


# --------------------------------------------------------------------------------------------------------- importance


def report(bench: Bench, part: ByImportance, **scores: Any) -> dict[str, float]:
    for name, score in scores.items():
        part.observe(bench.view("selection"), bench.update(name, metrics=Metrics(gradient_norm=score)))
    return bench.view("selection").memory(ImportanceMemory).scores


def first_picks(bench: Bench, part: ByImportance, names: list[str], draws: int = 3000) -> Counter[str]:
    view = bench.view("selection")
    return Counter(part.select(view, names, 1, f"round {i}")[0] for i in range(draws))


def test_importance_is_a_moving_average(bench: Bench) -> None:
    part = ByImportance(gamma=0.9)
    # the first report stands; then .1 x 4 + .9 x 2 = 2.2; then .1 x 2.2 + .9 x 10 = 9.22 (RADFed Alg. 2, line 11)
    assert report(bench, part, a=4.0) == {"a": 4.0}
    assert report(bench, part, a=2.0, b=7.0) == pytest.approx({"a": 2.2, "b": 7.0}, rel=1e-15)
    assert report(bench, part, a=10.0) == pytest.approx({"a": 9.22, "b": 7.0}, rel=1e-15)


def test_gamma_is_the_weight_of_the_new_score(bench: Bench) -> None:
    part = ByImportance(gamma=0.25)
    report(bench, part, a=8.0)
    # .75 x 8 + .25 x 4
    assert report(bench, part, a=4.0) == {"a": 7.0}


def test_importance_gives_chances_in_proportion(bench: Bench) -> None:
    part = ByImportance()
    report(bench, part, a=1.0, b=2.0, c=5.0)
    counts = first_picks(bench, part, ["a", "b", "c"])
    assert fits(counts, {"a": 1 / 8, "b": 2 / 8, "c": 5 / 8}) > 0.01
    # and it is no wider net: chances by the root of the scores would be told apart
    roots = {name: p**0.5 for name, p in {"a": 1, "b": 2, "c": 5}.items()}
    assert fits(counts, {name: p / sum(roots.values()) for name, p in roots.items()}) < 1e-6


def test_importance_draws_the_second_in_proportion_among_the_rest(bench: Bench) -> None:
    part = ByImportance()
    report(bench, part, a=1.0, b=2.0, c=5.0)
    view = bench.view("selection")
    counts = Counter(tuple(part.select(view, ["a", "b", "c"], 2, f"round {i}")) for i in range(3000))
    # first x second: b then c: 2/8 x 5/6, and so on
    scores = {"a": 1, "b": 2, "c": 5}
    expected = {(x, y): scores[x] / 8 * scores[y] / (8 - scores[x]) for x, y in permutations("abc", 2)}
    assert sum(expected.values()) == pytest.approx(1.0)
    assert fits(counts, expected) > 0.01


def test_a_learner_without_a_score_stands_at_the_mean(bench: Bench) -> None:
    part = ByImportance()
    report(bench, part, a=1.0, b=3.0)
    # c stands at (1 + 3) / 2, also while others than a and b are to choose from
    assert fits(first_picks(bench, part, ["a", "b", "c"]), {"a": 1 / 6, "b": 3 / 6, "c": 2 / 6}) > 0.01
    assert fits(first_picks(bench, part, ["a", "c"]), {"a": 1 / 3, "c": 2 / 3}) > 0.01


def test_without_any_score_all_are_alike(bench: Bench) -> None:
    assert fits(first_picks(bench, ByImportance(), NAMES), dict.fromkeys(NAMES, 1 / 5)) > 0.01


def test_who_has_score_zero_comes_last(bench: Bench) -> None:
    part = ByImportance()
    report(bench, part, a=0.0, b=1.0, c=0.0)
    assert first_picks(bench, part, ["a", "b", "c"], 200) == {"b": 200}
    assert part.select(bench.view("selection"), ["a", "b", "c"], 3, "round 0")[0] == "b"
    assert len(part.select(bench.view("selection"), ["a", "b", "c"], 3, "round 0")) == 3


def test_where_all_gradients_have_vanished_all_are_alike(bench: Bench) -> None:
    part = ByImportance()
    report(bench, part, a=0.0, b=0.0)
    assert fits(first_picks(bench, part, ["a", "b", "c"]), {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}) > 0.01


def test_importance_asks_for_the_norms_it_needs() -> None:
    assert ByImportance().needs.reports == ("gradient norm per sample",)
    assert ByImportance(score="batch").needs.reports == ("gradient norm per batch",)


def test_importance_refuses_nonsense(bench: Bench) -> None:
    for gamma in (0, 1, 1.2, -0.5):
        with pytest.raises(ValueError, match="ByImportance: gamma should be between 0 and 1, got"):
            ByImportance(gamma)
    with pytest.raises(ValueError, match=r"one of sample, batch, got 'samples'\. Did you mean 'sample'"):
        ByImportance(score="samples")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="learner 'a' reported no gradient norm with task 0"):
        ByImportance().observe(bench.view(), bench.update("a"))

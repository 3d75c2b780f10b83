"""Sizes by hand numbers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.data.sizes import SHAPES, apportion, check_total, shape_of, wish


def sizes(name: str, learners: int, total: int, at_least: int = 1) -> list[int]:
    return list(map(int, apportion(total, shape_of(name, learners), np.full(learners, at_least))))


def fitted(setting: Any, learners: int, available: int, seed: int = 0) -> list[int]:
    asked = wish(setting, learners, seed)
    check_total(asked, setting, available)
    return list(map(int, asked.fitted(available, np.ones(learners, np.int64))))


def test_power_law_shares_by_hand() -> None:
    # 1, 1/sqrt(8), 1/sqrt(27), 1/8 add up to 1.6710034: 59.844, 21.158, 11.517, 7.481 per cent
    assert shape_of("powerlaw", 4) == pytest.approx([1, 0.35355339, 0.19245009, 0.125])
    assert sizes("powerlaw", 4, 100) == [60, 21, 12, 7]  # the two largest remainders are rounded up
    assert sizes("powerlaw", 4, 1000) == [598, 212, 115, 75]


def test_power_law_of_ten_learners_on_cifar10() -> None:
    assert sizes("powerlaw", 10, 50_000) == [25058, 8860, 4823, 3132, 2241, 1705, 1353, 1108, 928, 792]


def test_uniform_gives_the_remainder_to_the_first() -> None:
    assert sizes("uniform", 4, 10) == [3, 3, 2, 2]


def test_skewed_falls_linearly() -> None:
    assert sizes("skewed", 4, 100) == [40, 30, 20, 10]


def test_nobody_falls_below_the_minimum() -> None:
    assert sizes("powerlaw", 4, 20, at_least=3) == [10, 4, 3, 3]


@given(st.integers(1, 40), st.integers(0, 3000))
@settings(max_examples=50)
def test_no_two_learners_are_alike_when_skewed(learners: int, more: int) -> None:
    total = learners * (learners + 1) // 2 + more
    assert len(set(sizes("skewed", learners, total))) == learners


@given(st.sampled_from(list(SHAPES)), st.integers(1, 30), st.integers(0, 3), st.integers(0, 500))
@settings(max_examples=60)
def test_sizes_add_up_and_fall(name: str, learners: int, at_least: int, more: int) -> None:
    total = learners * at_least + more
    result = sizes(name, learners, total, at_least)
    assert sum(result) == total
    assert min(result) >= at_least
    assert result == sorted(result, reverse=True)


def test_the_exponent_of_a_power_law() -> None:
    assert fitted("powerlaw(1.5)", 4, 100) == fitted("powerlaw", 4, 100) == [60, 21, 12, 7]
    assert fitted("powerlaw(1)", 3, 110) == [60, 30, 20]


def test_numbers_can_be_written_as_text() -> None:
    assert fitted((300, 100, 100), 3, 600) == [300, 100, 100]
    assert fitted("300,100,100", 3, 600) == fitted("300x1, 100x2", 3, 600) == [300, 100, 100]


@given(st.integers(1, 30), st.integers(1, 50), st.integers(0, 50), st.integers(0, 2000), st.integers(0, 99))
@settings(max_examples=60)
def test_a_range_is_never_left(learners: int, low: int, more: int, spare: int, seed: int) -> None:
    available = learners * low + spare
    result = fitted(f"{low}-{low + more}", learners, available, seed)
    assert result == sorted(result, reverse=True)
    assert low <= min(result) <= max(result) <= low + more
    drawn = sum(fitted(f"{low}-{low + more}", learners, 10**6, seed))
    assert sum(result) == min(drawn, available)


def test_every_size_of_a_range_is_equally_likely() -> None:
    drawn = np.bincount([size for seed in range(60) for size in fitted("3-7", 50, 10**6, seed)])
    assert drawn[3:].min() > 0.8 * 600
    assert drawn[3:].max() < 1.2 * 600


@given(st.integers(1, 40), st.sampled_from([0.01, 0.5, 1, 1000]), st.integers(0, 500), st.integers(0, 99))
@settings(max_examples=60)
def test_dirichlet_sizes_use_everything(learners: int, concentration: float, more: int, seed: int) -> None:
    result = fitted(f"dirichlet({concentration})", learners, learners + more, seed)
    assert sum(result) == learners + more
    assert min(result) >= 1
    assert result == sorted(result, reverse=True)


def test_a_dirichlet_of_one_is_as_wide_as_its_mean() -> None:
    # the coefficient of variation of Dir(1, ..., 1) over T learners is sqrt((T - 1) / (T + 1))
    spread = [np.std(fitted("dirichlet(1)", 100, 70_000, seed)) / 700 for seed in range(50)]
    assert np.mean(spread) == pytest.approx(0.99, abs=0.05)
    assert np.std(fitted("dirichlet(1000)", 100, 70_000)) < 50
    assert fitted("dirichlet(1)", 5, 100, seed=0) != fitted("dirichlet(1)", 5, 100, seed=1)


REFUSED = {
    "sizes='dirichlet' is not known. Did you mean 'dirichlet(1)'?": "dirichlet",
    "sizes='dirichlet(x)' is not known. Did you mean 'dirichlet(1)'?": "dirichlet(x)",
    "sizes='dirichlet(0)': the concentration should be more than 0, got 0.0": "dirichlet(0)",
    "sizes='powerlaw(-1)': the exponent should be more than 0": "powerlaw(-1)",
    "sizes='power law' is not known. Did you mean 'powerlaw'?": "power law",
    "sizes='2500-1500' is not a range of sizes": "2500-1500",
    "sizes='0-5' is not a range of sizes": "0-5",
    "sizes='40-50' gives 3 learners at least 120 together, but there are 100": "40-50",
    "Ask for 2 learners at most, or a range that begins at 33 or below": "40-50",
    "sizes add up to 120, but there are 100": "40x3",
    "sizes has 2 numbers for 3 learners": "4,5",
    "sizes='3x99999999' is not known": "3x99999999",
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_is_refused(message: str) -> None:
    with pytest.raises(ValueError, match="split: ") as error:
        fitted(REFUSED[message], 3, 100)
    assert message in str(error.value)

"""Sizes by hand numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.data.sizes import SHAPES, apportion, shape_of


def sizes(name: str, learners: int, total: int, at_least: int = 1) -> list[int]:
    return apportion(total, shape_of(name, learners), np.full(learners, at_least)).tolist()


def test_power_law_shares_by_hand():
    # 1, 1/sqrt(8), 1/sqrt(27), 1/8 add up to 1.6710034: 59.844, 21.158, 11.517, 7.481 per cent
    assert shape_of("powerlaw", 4) == pytest.approx([1, 0.35355339, 0.19245009, 0.125])
    assert sizes("powerlaw", 4, 100) == [60, 21, 12, 7]  # the two largest remainders are rounded up
    assert sizes("powerlaw", 4, 1000) == [598, 212, 115, 75]


def test_power_law_of_ten_learners_on_cifar10():
    assert sizes("powerlaw", 10, 50_000) == [25058, 8860, 4823, 3132, 2241, 1705, 1353, 1108, 928, 792]


def test_uniform_gives_the_remainder_to_the_first():
    assert sizes("uniform", 4, 10) == [3, 3, 2, 2]


def test_skewed_falls_linearly():
    assert sizes("skewed", 4, 100) == [40, 30, 20, 10]


def test_nobody_falls_below_the_minimum():
    assert sizes("powerlaw", 4, 20, at_least=3) == [10, 4, 3, 3]


@given(st.integers(1, 40), st.integers(0, 3000))
@settings(max_examples=50)
def test_no_two_learners_are_alike_when_skewed(learners: int, more: int):
    total = learners * (learners + 1) // 2 + more
    assert len(set(sizes("skewed", learners, total))) == learners


@given(st.sampled_from(list(SHAPES)), st.integers(1, 30), st.integers(0, 3), st.integers(0, 500))
@settings(max_examples=60)
def test_sizes_add_up_and_fall(name: str, learners: int, at_least: int, more: int):
    total = learners * at_least + more
    result = sizes(name, learners, total, at_least)
    assert sum(result) == total
    assert min(result) >= at_least
    assert result == sorted(result, reverse=True)

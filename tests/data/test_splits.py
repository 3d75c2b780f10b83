"""What is held out: the validation part, the test set, the stimuli and the learners' own test parts."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.core.randomness import generator
from archipel.data import stratified_validation
from archipel.data.array_types import BoolArray, IntArray
from archipel.data.index_table import IndexTable
from archipel.data.splits import carve_tests, draw, exclusive_tests, hold_out, own_test, take_stimuli

labels = st.lists(st.integers(0, 5), min_size=1, max_size=80)
fractions = st.floats(0.01, 0.99)


@given(labels, fractions, st.integers(0, 100))
@settings(max_examples=60)
def test_validation_is_a_stratified_part(classes: list[int], fraction: float, seed: int) -> None:
    y = torch.tensor(classes)
    train, validation = stratified_validation(y, fraction, (seed, "validation"))
    assert sorted(train.tolist() + validation.tolist()) == list(range(len(y)))
    assert (train.diff() > 0).all()
    assert (validation.diff() > 0).all()
    assert len(train) >= 1
    for number in set(classes):
        have, taken = classes.count(number), int((y[validation] == number).sum())
        assert taken == 0 if have == 1 else 1 <= taken <= have - 1
        assert abs(taken - fraction * have) <= 1
    again = stratified_validation(y, fraction, (seed, "validation"))
    assert torch.equal(again[1], validation)


def test_metis_five_per_cent_by_hand() -> None:
    y = torch.tensor([7] * 40 + [9] * 100 + [3])
    train, validation = stratified_validation(y, 0.05, (0, "validation"))
    assert torch.bincount(y[validation]).tolist() == [0] * 7 + [2, 0, 5]
    assert len(train) == 141 - 7


@given(st.integers(0, 60), fractions)
@settings(max_examples=50)
def test_validation_without_classes_is_a_plain_part(examples: int, fraction: float) -> None:
    train, validation = stratified_validation(None, fraction, (0, "v"), examples=examples)
    assert sorted(train.tolist() + validation.tolist()) == list(range(examples))
    assert len(train) >= min(1, examples)
    assert len(validation) >= min(1, examples - 1)
    targets = torch.linspace(0, 1, examples)
    assert torch.equal(stratified_validation(targets, fraction, (0, "v"))[1], validation)


def test_one_example_is_trained_on() -> None:
    train, validation = stratified_validation(torch.tensor([4]), 0.5, (0,))
    assert (train.tolist(), validation.tolist()) == ([0], [])
    assert validation.dtype == torch.int64


def test_targets_that_are_no_classes_are_a_plain_part() -> None:
    words = torch.arange(40).reshape(10, 4)
    train, validation = stratified_validation(words, 0.2, (0, "v"))
    assert (len(train), len(validation)) == (8, 2)


def test_validation_needs_a_number_of_examples() -> None:
    with pytest.raises(ValueError, match=r"labels=None does not say how many .* Give examples="):
        stratified_validation(None, 0.1, (0,))


@pytest.mark.parametrize("fraction", [0, 1, 1.2, -0.1, float("nan")])
def test_a_fraction_is_between_0_and_1(fraction: float) -> None:
    with pytest.raises(ValueError, match=rf"fraction={fraction} is not a fraction. Give a number between"):
        stratified_validation(torch.tensor([0, 1]), fraction, (0,))


@given(labels, fractions, st.integers(0, 9), st.integers(0, 100))
@settings(max_examples=60)
def test_the_test_set_is_stratified_and_leaves_every_class(
    classes: list[int], fraction: float, per_class: int, seed: int
) -> None:
    y = np.array(classes)
    tested = hold_out(y, fraction, seed)
    shown = take_stimuli(y[tested], per_class, seed)
    for number in set(classes):
        mine = tested[y == number]
        assert 0 <= mine.sum() < len(mine)
        # the total is rounded first, and its shares are rounded up or down
        assert abs(mine.sum() - round(fraction * len(y)) * len(mine) / len(y)) <= 1
        assert shown[y[tested] == number].sum() == min(per_class, mine.sum() // 2)


def test_an_own_test_part_has_the_learners_proportions() -> None:
    # 30 of class 0 and 10 of class 2: with 12 and 6 test examples of them, 12 + 4 is the most at 3 to 1
    train = np.array([0] * 30 + [2] * 10)
    test = np.array([0] * 12 + [1] * 20 + [2] * 6)
    assert np.bincount(test[own_test(train, test, (0, "own"))]).tolist() == [12, 0, 4]


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        ([0] * 99 + [1], [0, 0, 1, 1, 1], [2]),  # too few for class 1 to get a share
        ([0] * 2 + [1] * 30, [0, 1], [0, 1]),  # n = 1: the larger class
        ([0] * 9 + [5], [0, 0, 0], [3]),  # class 5 is not in the test set
        ([5], [0, 1], []),  # nothing to test on
        ([5], [], []),
    ],
)
def test_small_own_test_parts(train: list[int], test: list[int], expected: list[int]) -> None:
    y = np.array(test, dtype=np.int64)
    assert np.bincount(y[own_test(np.array(train), y, (0, "own"))]).tolist() == expected


def carve_test(y: IntArray, fraction: float, key: tuple[int | str, ...]) -> BoolArray:
    """Mark the test part of one learner."""
    return carve_tests(y, np.array([0, len(y)]), fraction, [generator(*key)])


def carved_alone(y: IntArray, fraction: float, random: np.random.Generator) -> BoolArray:
    """The same for one learner, step by step: what `carve_tests` does for all learners at once."""
    strata = np.unique(y, return_inverse=True)[1].astype(np.int64)
    supply = np.bincount(strata)
    shares = fraction * supply
    counts = np.floor(shares + 1e-9).astype(np.int64)
    order = np.lexsort((random.permutation(len(supply)), -np.round(shares - counts, 9)))
    counts[order[: max(0, round(fraction * len(y)) - int(counts.sum()))]] += 1
    counts = np.minimum(counts, supply - 1)
    if not counts.any():
        most = order[supply[order].argmax()]
        counts[most] = min(1, supply[most] - 1)
    return draw(strata, counts, random)


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=12), min_size=1, max_size=6), fractions)
@settings(max_examples=60, deadline=None)
def test_all_learners_are_carved_as_each_alone(parts: list[list[int]], fraction: float) -> None:
    starts = np.cumsum([0, *map(len, parts)])
    draws = [generator(1, row) for row in range(len(parts))]
    together = carve_tests(np.array([*itertools.chain(*parts)]), starts, fraction, draws)
    alone = [carved_alone(np.array(part), fraction, generator(1, row)) for row, part in enumerate(parts)]
    assert together.tolist() == np.concatenate(alone).tolist()


@pytest.mark.slow
@given(labels, fractions, st.integers(0, 100))
@settings(max_examples=100)
def test_a_carved_test_part_is_stratified(classes: list[int], fraction: float, seed: int) -> None:
    y = np.array(classes)
    tested = carve_test(y, fraction, (seed, "carved"))
    supply = np.bincount(y)
    taken = np.bincount(y[tested], minlength=len(supply))
    assert (taken <= np.maximum(supply - 1, 0)).all()
    assert (np.abs(taken - fraction * supply) <= 1).all()
    assert taken.sum() <= max(1, round(fraction * len(y)))
    assert tested.any() == (supply.max() >= 2)
    if (supply != 1).all() and 1 / supply[supply > 0].min() <= fraction <= 1 - 1 / supply[supply > 0].min():
        assert taken.sum() == round(fraction * len(y))  # no class is too small for its share: exact
    assert np.array_equal(carve_test(y, fraction, (seed, "carved")), tested)


def test_a_fifth_by_hand() -> None:
    y = np.array([0] * 10 + [3] * 4 + [7] * 4 + [8])
    # 2, 0.8, 0.8, 0.2: four of nineteen
    assert np.bincount(y[carve_test(y, 0.2, (0,))], minlength=9).tolist() == [2, 0, 0, 1, 0, 0, 0, 1, 0]


def test_small_classes_are_tested_at_one_learner_or_another() -> None:
    # FEMNIST's writers have one or two of most classes: were ties not by lot, all would be tested on the same ones
    pairs = np.repeat(np.arange(20), 2)
    tested = [set(pairs[carve_test(pairs, 0.2, (0, learner))].tolist()) for learner in range(30)]
    assert {len(classes) for classes in tested} == {8}
    assert set().union(*tested) == set(range(20))


def test_an_exclusive_example_is_tested_at_one_learner() -> None:
    tests = [torch.tensor([0, 1, 2]), torch.tensor([2, 3]), torch.tensor([], dtype=torch.int64)]
    assert exclusive_tests(IndexTable.of(tests), torch.tensor([0, 5]), 6).tolist() == [
        False,
        True,
        False,
        True,
        False,
        False,
    ]

"""Cross-validation by learner."""

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ap
from archipel.data import Fold, Island, Islands, digits


def of(learners: int) -> Islands:
    """So many learners with two examples each, and a test set at HOME that all of them also test on."""
    x = torch.arange(2.0 * learners + 3).reshape(-1, 1)
    home = torch.arange(2 * learners, 2 * learners + 3)
    parts = [torch.arange(2 * number, 2 * number + 2) for number in range(learners)]
    islands = tuple(Island(f"{number:03}", part, home) for number, part in enumerate(parts))
    return Islands(x, torch.zeros(len(x), dtype=torch.int64), islands, home, home[:0], 1, "pairs")


def roles(fold: Fold) -> dict[str, set[str]]:
    names: dict[str, set[str]] = {"train": set(), "validation": set(), "test": set()}
    for learner in fold.islands.learners:
        names[learner.role].add(learner.name)
    return names


@pytest.mark.slow
@given(st.integers(3, 23), st.integers(3, 7), st.integers(0, 50), st.data())
@settings(max_examples=25)
def test_every_learner_is_tested_on_as_often_as_every_other(
    learners: int, count: int, seed: int, data: st.DataObject
) -> None:
    if learners < count:
        learners += count
    rotations = data.draw(st.integers(1, count - 1))
    islands = of(learners)
    folds = islands.folds(count, seed, rotations)
    assert len(folds) == len({(fold.test, fold.validation) for fold in folds}) == count * rotations
    times: dict[str, Counter[str]] = {"train": Counter(), "validation": Counter(), "test": Counter()}
    members: dict[int, set[str]] = {}
    for fold in folds:
        by_role = roles(fold)
        assert sum(len(names) for names in by_role.values()) == learners
        # a fold is the same learners whatever it is used for
        assert members.setdefault(fold.test, by_role["test"]) == by_role["test"]
        for role, names in by_role.items():
            times[role].update(names)
    for fold in folds:
        assert members[fold.validation] == roles(fold)["validation"]
    assert set().union(*members.values()) == {learner.name for learner in islands.learners}
    assert sum(len(names) for names in members.values()) == learners
    assert max(map(len, members.values())) - min(map(len, members.values())) <= 1
    assert set(times["test"].values()) == set(times["validation"].values()) == {rotations}
    assert set(times["train"].values()) == {rotations * (count - 2)}
    again = islands.folds(count, seed, rotations)
    assert [roles(fold) for fold in again] == [roles(fold) for fold in folds]


@pytest.mark.slow
def test_radfeds_five_folds_are_twenty_combinations_in_order() -> None:
    folds = of(100).folds()
    combinations = [(fold.test, fold.validation) for fold in folds]
    assert combinations[:5] == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2)]
    assert sorted(combinations) == [(test, other) for test, other in product(range(5), repeat=2) if test != other]
    assert {repr(fold).split(": ")[1] for fold in folds} == {"60/20/20 learners of 'pairs'>"}


@pytest.mark.parametrize(("learners", "sizes"), [(143, "85/29/29"), (164, "98/33/33")])
def test_shakespeare_and_eicu_are_divided_as_in_the_paper(learners: int, sizes: str) -> None:
    first = of(learners).folds(rotations=1)[0]
    assert repr(first) == f"<Fold test=0 validation=1: {sizes} learners of 'pairs'>"


def test_one_rotation_takes_the_next_fold() -> None:
    folds = of(7).folds(rotations=1)
    assert [(fold.test, fold.validation) for fold in folds] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]
    every_fourth = of(7).folds()[::4]
    assert [roles(fold) for fold in folds] == [roles(fold) for fold in every_fourth]


def test_another_seed_deals_otherwise() -> None:
    assert roles(of(40).folds(seed=0)[0]) != roles(of(40).folds(seed=1)[0])


def test_the_data_are_not_copied_and_the_islands_stay() -> None:
    islands = of(5)
    fold = islands.folds()[0]
    assert fold.islands.x is islands.x
    assert {learner.role for learner in islands.learners} == {"train"}


def test_a_held_out_learner_is_tried_on_all_it_has() -> None:
    islands = digits().split(5)
    for fold in islands.with_own_test().folds(rotations=1):
        for before, learner in zip(islands.learners, fold.islands.learners, strict=True):
            assert (len(learner.test) > 0) == (learner.role == "train")
            if learner.role != "train":
                assert torch.equal(learner.train, before.train)


BROKEN: dict[str, Any] = {
    "count=6, but there are only 5 learners. Ask for fewer folds": (6, 0, None),
    "count should be at least 3 (one to test, one to validate, one to train), got 2": (2, 0, None),
    "count should be a whole number, got 2.5": (2.5, 0, None),
    "seed should be a whole number, got 'a'": (5, "a", None),
    "rotations should be at least 1, got 0": (5, 0, 0),
    "rotations=5, but beside the test fold there are 4 others": (5, 0, 5),
}


@pytest.mark.parametrize("message", BROKEN)
def test_impossible_folds_are_refused(message: str) -> None:
    with pytest.raises(ValueError, match="folds: ") as error:
        of(5).folds(*BROKEN[message])
    assert message in str(error.value)


def test_folds_of_a_fold_are_refused() -> None:
    with pytest.raises(ValueError, match=r"learner '\d+' is held out already, its role is '(test|validation)'"):
        of(5).folds()[0].islands.folds()


def test_numpy_numbers_are_numbers() -> None:
    assert len(of(5).folds(np.int64(5), np.int64(0), np.int64(1))) == 5  # type: ignore[arg-type]


@pytest.mark.parametrize("at", ["held-out validation", "held-out test"])
def test_a_fold_is_simulated_with_its_held_out_learners(at: Any) -> None:
    fold = digits().split(5).folds()[6]
    run = ap.simulate(
        ap.fedavg(batch=16, rate=0.1),
        fold.islands.standardised("local"),
        ending=ap.Ending(rounds=6),
        evaluation=ap.Evaluation(at=at),
    )
    held_out = [learner for learner in fold.islands.learners if f"held-out {learner.role}" == at]
    trained = {name for _, commit in run.commits for name in commit.learners}
    assert trained == roles(fold)["train"]
    assert run.scores[-1][1].examples == sum(len(learner.train) for learner in held_out)
    assert run.score > 0.3

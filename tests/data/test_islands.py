"""The laws of islands, each broken once."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import archipel as ap
from archipel.data import Island, Islands, digits, from_arrays


def at(*indices: int) -> Tensor:
    return torch.tensor(indices, dtype=torch.int64)


def islands() -> Islands:
    # examples 0..9, labels 0 1 0 1 ...; 0-2 and 3-5 are trained on, 6-8 tested, 9 is a stimulus
    return Islands(
        x=torch.arange(10.0).reshape(10, 1),
        y=torch.arange(10) % 2,
        learners=(Island("00", at(0, 1, 2), at(6, 7)), Island("01", at(5, 4, 3), at(7))),
        test=at(6, 7, 8),
        stimuli=at(9),
        classes=2,
        name="ten",
    )


def test_sizes_and_classes_are_counted() -> None:
    assert islands().sizes() == [3, 3]
    assert islands().class_table().tolist() == [[2, 1], [1, 2]]
    assert repr(islands()) == "<Islands 'ten': 2 learners, 6 training, 3 test, 1 stimuli>"


def test_pooled_is_one_learner_with_everything() -> None:
    pooled = islands().pooled()
    (learner,) = pooled.learners
    assert (learner.name, learner.role) == ("00", "train")
    assert learner.train.tolist() == [0, 1, 2, 3, 4, 5]
    assert learner.test.tolist() == [6, 7]
    assert pooled.x is not None
    assert pooled.test.tolist() == [6, 7, 8]
    assert pooled.stimuli.tolist() == [9]


def test_pooling_copies_no_data() -> None:
    whole = islands()
    assert whole.pooled().x.data_ptr() == whole.x.data_ptr()


def test_pooled_leaves_held_out_learners_alone() -> None:
    whole = islands()
    held_out = Island("00", at(0, 1, 2), at(), role="test")
    mixed = replace(whole, learners=(held_out, *whole.learners[1:], Island("02", at(8), at())), test=at())
    assert [(one.name, one.role) for one in mixed.pooled().learners] == [("00", "test"), ("01", "train")]
    assert mixed.pooled().learners[1].train.tolist() == [3, 4, 5, 8]


def test_a_task_without_classes_has_no_class_table() -> None:
    with pytest.raises(ValueError, match=r"'ten' has no classes. Use sizes\(\)"):
        replace(islands(), classes=None).class_table()


first, second = islands().learners

SPARE: dict[str, Any] = {"role": "spare"}
BROKEN: dict[str, Any] = {
    "index 10, but there are 10 examples": {"test": at(10)},
    "index -1": {"stimuli": at(-1)},
    "index 6 more than once": {"test": at(6, 6)},
    "must be int64 indices in one dimension, got torch.bool": {"test": torch.zeros(10, dtype=torch.bool)},
    "example 2 is in the training part of both '00' and '01'": {"learners": (first, replace(second, train=at(2, 3)))},
    "example 3 is in the test set and in the training part of '01'": {"test": at(3)},
    "example 3 is in the test part of '00' and in the training part": {
        "learners": (replace(first, test=at(3)), second)
    },
    "example 0 is in the stimuli and in the training part of '00'": {"stimuli": at(0)},
    "example 9 is in the test set and among the stimuli": {"test": at(9)},
    "learner '01' has no training examples: leave it out": {"learners": (first, replace(second, train=at()))},
    "two learners are called '00'": {"learners": (first, replace(second, name="00"))},
    "unknown role 'spare'. Known roles: train, validation, test": {"learners": (first, replace(second, **SPARE))},
    "none of the 1 learners trains": {"learners": (replace(first, role="test"),)},
    "x has 10 examples, y has 9": {"y": torch.zeros(9, dtype=torch.int64)},
    "label 2 is outside the 2 classes 0 to 1": {"y": torch.full((10,), 2)},
    "must be int64 in one dimension, got torch.float32": {"y": torch.zeros(10)},
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_law_is_refused(message: str) -> None:
    with pytest.raises(ValueError, match="Islands") as error:
        replace(islands(), **BROKEN[message])
    assert message in str(error.value)


# ------------------------------------------------------------------------------------- own test parts of own data


@pytest.mark.slow
@given(
    st.integers(1, 12),
    st.sampled_from(["uniform", "powerlaw"]),
    st.sampled_from(["iid", 2]),
    st.floats(0.05, 0.9),
    st.integers(0, 50),
)
@settings(max_examples=25)
def test_own_tests_move_examples_and_lose_none(
    learners: int, sizes: str, classes: str | int, part: float, seed: int
) -> None:
    y = torch.arange(120) % 6
    before = from_arrays(torch.zeros(120, 1), y).split(learners, sizes, classes, seed=seed, stimuli=1)
    after = before.with_own_test(part, seed)
    used = torch.cat([torch.cat([learner.train, learner.test]) for learner in after.learners])
    assert len(used.unique()) == len(used)
    for old, new in zip(before.learners, after.learners, strict=True):
        assert sorted(new.train.tolist() + new.test.tolist()) == old.train.tolist()
        assert set(y[new.train].tolist()) == set(y[old.train].tolist())
        assert len(new.test) > 0 or len(y[old.train].unique()) == len(old.train)
        assert abs(len(new.test) - part * len(old.train)) <= 6
    assert (after.x is before.x, after.test is before.test, after.stimuli is before.stimuli) == (True, True, True)
    twice, back = after.with_own_test(part, seed), after.without_own_test()
    for old, once, again, whole in zip(before.learners, after.learners, twice.learners, back.learners, strict=True):
        assert once.train.tolist() == again.train.tolist()
        assert once.test.tolist() == again.test.tolist()
        assert (whole.train.tolist(), whole.test.tolist()) == (old.train.tolist(), [])


def test_another_seed_carves_otherwise() -> None:
    islands = digits().split(3)
    one, other = (islands.with_own_test(seed=seed).learners[0].test.tolist() for seed in (0, 1))
    assert one != other
    assert len(one) == len(other) == round(0.2 * 480)


def test_a_single_example_is_kept() -> None:
    whole = replace(islands(), learners=(Island("00", at(3), at(6)), Island("01", at(0, 1, 2), at())))
    single, three = whole.with_own_test().learners
    assert (single.train.tolist(), single.test.tolist()) == ([3], [])
    assert (len(three.train), len(three.test)) == (2, 1)  # of class 0 there are two


def test_held_out_learners_are_not_divided() -> None:
    learners = (Island("00", at(0, 1, 2), at(6, 7)), Island("01", at(5, 4, 3), at(7), "test"))
    after = replace(islands(), learners=learners).with_own_test()
    held_out = after.learners[1]
    assert (held_out.train.tolist(), held_out.test.tolist(), held_out.role) == ([5, 4, 3], [7], "test")


def test_a_task_without_classes_is_divided_as_one() -> None:
    after = replace(islands(), y=torch.rand(10), classes=None).with_own_test(0.5)
    assert [(len(learner.train), len(learner.test)) for learner in after.learners] == [(1, 2), (1, 2)]


def test_shared_tests_do_not_become_training_examples() -> None:
    # without a test set at HOME, example 7 is tested on by both and 6 by one learner only
    whole = replace(islands(), test=at()).without_own_test()
    assert [learner.train.tolist() for learner in whole.learners] == [[0, 1, 2, 6], [3, 4, 5]]


@pytest.mark.parametrize("fraction", [0, 1, -0.2, float("nan")])
def test_a_fraction_is_a_part(fraction: float) -> None:
    with pytest.raises(ValueError, match=rf"with_own_test: fraction={fraction} is not a fraction"):
        islands().with_own_test(fraction)


def test_own_tests_are_simulated() -> None:
    data = digits().split(4, classes=3).with_own_test().standardised("local")
    run = ap.simulate(ap.hdafl(batch=16, rate=0.1, epochs=2), data, ending=ap.Ending(rounds=8))
    scores = run.scores[-1][1]
    assert (scores.sites, scores.examples) == (4, sum(len(learner.test) for learner in data.learners))
    assert run.score > 0.5

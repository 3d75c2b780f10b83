"""The laws of islands, each broken once."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from archipel.data import Island, Islands


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


def test_sizes_and_classes_are_counted():
    assert islands().sizes() == [3, 3]
    assert islands().class_table().tolist() == [[2, 1], [1, 2]]
    assert repr(islands()) == "<Islands 'ten': 2 learners, 6 training, 3 test, 1 stimuli>"


def test_pooled_is_one_learner_with_everything():
    pooled = islands().pooled()
    (learner,) = pooled.learners
    assert (learner.name, learner.role) == ("00", "train")
    assert learner.train.tolist() == [0, 1, 2, 3, 4, 5]
    assert learner.test.tolist() == [6, 7]
    assert pooled.x is not None
    assert pooled.test.tolist() == [6, 7, 8]
    assert pooled.stimuli.tolist() == [9]


def test_pooling_copies_no_data():
    whole = islands()
    assert whole.pooled().x.data_ptr() == whole.x.data_ptr()


def test_pooled_leaves_held_out_learners_alone():
    whole = islands()
    held_out = Island("00", at(0, 1, 2), at(), role="test")
    mixed = replace(whole, learners=(held_out, *whole.learners[1:], Island("02", at(8), at())), test=at())
    assert [(one.name, one.role) for one in mixed.pooled().learners] == [("00", "test"), ("01", "train")]
    assert mixed.pooled().learners[1].train.tolist() == [3, 4, 5, 8]


def test_a_task_without_classes_has_no_class_table():
    with pytest.raises(ValueError, match=r"'ten' has no classes. Use sizes\(\)"):
        replace(islands(), classes=None).class_table()


first, second = islands().learners

BROKEN = {
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
    "unknown role 'spare'. Known roles: train, validation, test": {"learners": (first, replace(second, role="spare"))},
    "none of the 1 learners trains": {"learners": (replace(first, role="test"),)},
    "x has 10 examples, y has 9": {"y": torch.zeros(9, dtype=torch.int64)},
    "label 2 is outside the 2 classes 0 to 1": {"y": torch.full((10,), 2)},
    "must be int64 in one dimension, got torch.float32": {"y": torch.zeros(10)},
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_law_is_refused(message: str):
    with pytest.raises(ValueError, match="Islands") as error:
        replace(islands(), **BROKEN[message])
    assert message in str(error.value)

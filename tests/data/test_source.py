"""From arrays to islands, as a user does it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel.data
from archipel.data import Islands, Source, digits, from_arrays

DIGITS = digits()


def fingerprint(islands: Islands) -> list[list[int]]:
    parts = [part.tolist() for learner in islands.learners for part in (learner.train, learner.test)]
    return [*parts, islands.test.tolist(), islands.stimuli.tolist()]


def test_digits():
    assert DIGITS.x.shape == (1797, 64)
    assert DIGITS.x.dtype == torch.float32
    assert (DIGITS.x.min(), DIGITS.x.max()) == (0, 1)
    assert (DIGITS.classes, DIGITS.name) == (10, "digits")
    assert repr(DIGITS) == "<Source 'digits': 1797 examples, 10 classes>"


def test_the_first_program():
    islands = DIGITS.split(learners=10, sizes="powerlaw", classes=3)
    assert [learner.name for learner in islands.learners] == [f"0{number}" for number in range(10)]
    assert (islands.class_table() > 0).sum(1).tolist() == [6, 3, 3, 3, 3, 3, 3, 3, 3, 3]
    assert sum(islands.sizes()) == 1438  # nothing is lost: 1797 less 309 of the test set and 50 stimuli
    assert (len(islands.test), len(islands.stimuli)) == (309, 50)
    assert torch.bincount(islands.y[islands.stimuli]).tolist() == [5] * 10


@given(
    st.integers(1, 15),
    st.sampled_from(["uniform", "skewed", "powerlaw"]),
    st.sampled_from(["iid", 1, 2, 5]),
    st.floats(0.05, 0.5),
    st.integers(0, 8),
    st.integers(0, 50),
)
@settings(max_examples=12, deadline=None)
def test_every_split_keeps_the_laws(
    learners: int, sizes: str, classes: str | int, test: float, stimuli: int, seed: int
):
    islands = DIGITS.split(learners, sizes, classes, test=test, stimuli=stimuli, seed=seed)
    trained = torch.cat([learner.train for learner in islands.learners])
    home = set(islands.test.tolist())
    assert len(trained.unique()) == len(trained)
    assert home.isdisjoint(trained.tolist())
    assert set(islands.stimuli.tolist()).isdisjoint(trained.tolist() + islands.test.tolist())
    for learner, row in zip(islands.learners, islands.class_table(), strict=True):
        assert len(learner.test) >= 1
        assert home.issuperset(learner.test.tolist())
        own = torch.bincount(islands.y[learner.test], minlength=10)
        assert not own[row == 0].any()
        assert (own / own.sum() - row / row.sum()).abs().max() <= 1 / own.sum()
    assert islands.x is DIGITS.x
    assert fingerprint(DIGITS.split(learners, sizes, classes, test, stimuli, seed)) == fingerprint(islands)


def test_another_seed_is_another_split():
    for classes in ("iid", 3):
        first, second = (DIGITS.split(10, classes=classes, seed=seed) for seed in (0, 1))
        assert first.learners[0].train.tolist() != second.learners[0].train.tolist()
        assert first.test.tolist() != second.test.tolist()


def test_the_test_set_does_not_depend_on_how_the_rest_is_dealt():
    one, other = DIGITS.split(3), DIGITS.split(10, "powerlaw", 2)
    assert one.test.tolist() == other.test.tolist()
    assert one.stimuli.tolist() == other.stimuli.tolist()
    assert one.pooled().learners[0].train.tolist() == DIGITS.split(7, "skewed").pooled().learners[0].train.tolist()


def test_a_new_process_splits_the_same():
    program = (
        "import torch; from archipel.data import from_arrays\n"
        "islands = from_arrays(torch.zeros(200, 1), torch.arange(200) % 5).split(6, 'powerlaw', 2, seed=3)\n"
        "print([(one.train.tolist(), one.test.tolist()) for one in islands.learners])"
    )
    root = str(Path(archipel.data.__file__).parents[2])
    # another hash seed: nothing may hang on the order of a set
    there = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    islands = from_arrays(torch.zeros(200, 1), torch.arange(200) % 5).split(6, "powerlaw", 2, seed=3)
    here = [(one.train.tolist(), one.test.tolist()) for one in islands.learners]
    assert there.stdout.strip() == str(here)


def test_an_official_test_set_is_used_as_it_is():
    source = Source(DIGITS.x, DIGITS.y, 10, "digits", test=torch.arange(1700, 1797))
    islands = source.split(5, stimuli=0)
    assert islands.test.tolist() == list(range(1700, 1797))
    assert sum(islands.sizes()) == 1700


def test_a_regression_is_split_as_one_class():
    islands = from_arrays(np.ones((50, 2)), np.linspace(0, 1, 50)).split(4, "skewed", stimuli=3)
    assert islands.classes is None
    assert islands.sizes() == [16, 12, 8, 4]
    assert (len(islands.test), len(islands.stimuli)) == (7, 3)
    assert all(learner.test.tolist() == islands.test.tolist() for learner in islands.learners)


def test_names_sort_in_order_beyond_a_hundred():
    names = [learner.name for learner in DIGITS.split(101).learners]
    assert names == sorted(names)
    assert names[0] == "000"


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
def test_arrays_become_float32_and_int64(convert: object):
    source = from_arrays(convert(np.arange(6.0).reshape(3, 2)), convert(np.array([0, 2, 1], dtype=np.int32)))
    assert (source.x.dtype, source.y.dtype, source.classes) == (torch.float32, torch.int64, 3)
    assert source.x.tolist() == [[0, 1], [2, 3], [4, 5]]
    source = from_arrays(convert(np.arange(3, dtype=np.uint8)), convert(np.array([0.5, 1, 2])))
    assert (source.x.dtype, source.y.dtype, source.classes) == (torch.float32, torch.float32, None)


def test_a_source_keeps_its_data_when_the_array_changes():
    x, y = np.zeros((2, 1), dtype=np.float32), np.array([0, 1])
    source = from_arrays(x, y)
    x[:], y[:] = 9, 9
    assert source.x.tolist() == [[0], [0]]
    assert source.y.tolist() == [0, 1]


BAD_ARRAYS = {
    "x has 2 examples, y has 3": (np.zeros((2, 1)), np.arange(3)),
    "x holds 1 values of 2 that are NaN or infinite": (np.array([[np.nan], [1]]), np.arange(2)),
    "y holds 1 values of 2 that are NaN": (np.zeros((2, 1)), np.array([np.nan, 0.5])),
    "y holds the negative label -1": (np.zeros((2, 1)), np.array([-1, 1])),
    "y holds floats that are all whole numbers, such as 1.0. For classes pass y.astype('int64')": (
        np.zeros((2, 1)),
        np.array([1.0, 0.0]),
    ),
    "got shape (2, 1). Pass y.ravel()": (np.zeros((2, 1)), np.array([[0], [1]])),
    "x must be an array of numbers, got <U1": (np.array(["a", "b"]), np.arange(2)),
    "x and y are empty": (np.zeros((0, 1)), np.arange(0)),
}


@pytest.mark.parametrize("message", BAD_ARRAYS)
def test_bad_arrays_are_refused(message: str):
    with pytest.raises(ValueError, match="from_arrays: ") as error:
        from_arrays(*BAD_ARRAYS[message])
    assert message in str(error.value)


BAD_SPLITS = {
    "learners=0 is too small. Give a number of at least 1": {"learners": 0},
    "learners=2.5 is not a whole number": {"learners": 2.5},
    "learners=2000, but there are only 1438 training examples": {"learners": 2000},
    "sizes='powrlaw' is not known. Did you mean 'powerlaw'? Known: uniform, skewed": {"sizes": "powrlaw"},
    "sizes has 3 numbers for 10 learners": {"sizes": (1, 2, 3)},
    "sizes=5 is no list": {"sizes": 5},
    "sizes[1]=0 is too small": {"learners": 2, "sizes": (5, 0)},
    "classes='idd' is not known. Did you mean 'iid'?": {"classes": "idd"},
    "classes=12 asks for 12 classes, but the training examples have 10. Ask for 1 to 10": {"classes": 12},
    "classes=0 is too small": {"classes": 0},
    "classes has 2 numbers for 10 learners": {"classes": (3, 3)},
    "test=0 is no part of a whole": {"test": 0},
    "test=1.2 is no part of a whole": {"test": 1.2},
    "stimuli=-1 is too small": {"stimuli": -1},
}


@pytest.mark.parametrize("message", BAD_SPLITS)
def test_bad_splits_are_refused(message: str):
    with pytest.raises(ValueError, match="split: ") as error:
        DIGITS.split(**{"learners": 10, **BAD_SPLITS[message]})
    assert message in str(error.value)


def test_classes_of_a_regression_are_refused():
    with pytest.raises(ValueError, match=r"classes=3, but 'arrays' has no classes. Leave classes at 'iid'"):
        from_arrays(np.ones((9, 1)), np.linspace(0, 1, 9)).split(2, classes=3)

"""From arrays to islands, as a user does it."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

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


def test_digits() -> None:
    assert DIGITS.x.shape == (1797, 64)
    assert DIGITS.x.dtype == torch.float32
    assert (float(DIGITS.x.min()), float(DIGITS.x.max())) == (0, 1)
    assert (DIGITS.classes, DIGITS.name) == (10, "digits")
    assert repr(DIGITS) == "<Source 'digits': 1797 examples, 10 classes>"


def test_the_first_program() -> None:
    islands = DIGITS.split(learners=10, sizes="powerlaw", classes=3)
    assert [learner.name for learner in islands.learners] == [f"0{number}" for number in range(10)]
    assert (islands.class_table() > 0).sum(1).tolist() == [6, 3, 3, 3, 3, 3, 3, 3, 3, 3]
    assert sum(islands.sizes()) == 1438  # nothing is lost: 1797 less 309 of the test set and 50 stimuli
    assert (len(islands.test), len(islands.stimuli)) == (309, 50)
    assert torch.bincount(islands.y[islands.stimuli]).tolist() == [5] * 10


@pytest.mark.slow
@given(
    st.integers(1, 15),
    st.sampled_from(["uniform", "skewed", "powerlaw"]),
    st.sampled_from(["iid", 1, 2, 5]),
    st.floats(0.05, 0.5),
    st.integers(0, 8),
    st.integers(0, 50),
)
@settings(max_examples=12)
def test_every_split_keeps_the_laws(
    learners: int, sizes: str, classes: str | int, test: float, stimuli: int, seed: int
) -> None:
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


def test_another_seed_is_another_split() -> None:
    for classes in ("iid", 3):
        first, second = (DIGITS.split(10, classes=classes, seed=seed) for seed in (0, 1))
        assert first.learners[0].train.tolist() != second.learners[0].train.tolist()
        assert first.test.tolist() != second.test.tolist()


def test_the_test_set_does_not_depend_on_how_the_rest_is_dealt() -> None:
    one, other = DIGITS.split(3), DIGITS.split(10, "powerlaw", 2)
    assert one.test.tolist() == other.test.tolist()
    assert one.stimuli.tolist() == other.stimuli.tolist()
    assert one.pooled().learners[0].train.tolist() == DIGITS.split(7, "skewed").pooled().learners[0].train.tolist()


SPLITS = (
    "split(6, 'powerlaw', 2, seed=3)",
    "split(6, '10-20', '2-4', seed=3)",
    "split(6, 'dirichlet(1)', 'dirichlet(0.1)', seed=3)",
    "split(6, 'dirichlet(1)', 'dirichlet(0.1)', features='dirichlet(0.5)', test='own', seed=3)",
    "split(6, classes=2, features='odd=0.1', seed=3)",
    "natural(3, seed=3)",
)


@pytest.mark.slow
def test_a_new_process_splits_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "import torch; from archipel.data import Source\n"
        "n = torch.arange(200)\n"
        "kinds = {'odd': n // 5 % 2, 'ten': n * n % 10}\n"
        "names = tuple('abcdefg')\n"
        "source = Source(torch.zeros(200, 1), n % 5, 5, 'n', sites=n % 7, site_names=names, categories=kinds)\n"
        f"for islands in ({', '.join('source.' + split for split in SPLITS)}):\n"
        "    print([(one.name, one.train.tolist(), one.test.tolist()) for one in islands.learners])"
    )
    root = str(Path(archipel.data.__file__).parents[2])
    # another hash seed: nothing may hang on the order of a set; nor on the number of threads
    there = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    exec(program, {})
    here = capsys.readouterr().out
    assert here.count("\n") == len(SPLITS)
    assert there.stdout == here


def test_an_official_test_set_is_used_as_it_is() -> None:
    source = Source(DIGITS.x, DIGITS.y, 10, "digits", test=torch.arange(1700, 1797))
    islands = source.split(5, stimuli=0)
    assert islands.test.tolist() == list(range(1700, 1797))
    assert sum(islands.sizes()) == 1700


def test_nothing_held_out() -> None:
    source = Source(DIGITS.x, DIGITS.y, 10, "digits", test=torch.arange(1700, 1797))
    for test in (None, "none"):
        islands = source.split(5, "dirichlet(1)", "dirichlet(0.1)", test=test)
        assert sum(islands.sizes()) == 1797  # the official test set too
        assert len(islands.test) == len(islands.stimuli) == 0


def test_every_learners_own_test_part() -> None:
    for test, part in {"own": 0.2, "own(0.4)": 0.4}.items():
        islands = DIGITS.split(5, "skewed", test=test)
        assert len(islands.test) == 0
        for learner in islands.learners:
            everything = len(learner.train) + len(learner.test)
            assert len(learner.test) == pytest.approx(part * everything, abs=1)
        assert sum(len(learner.train) + len(learner.test) for learner in islands.learners) == 1797


def test_settings_can_be_flags() -> None:
    assert fingerprint(DIGITS.split(10, "1x5,2x5", "1", test="0.3")) == fingerprint(
        DIGITS.split(10, [1] * 5 + [2] * 5, 1, test=0.3)
    )
    assert fingerprint(DIGITS.split(4)) == fingerprint(DIGITS.split(4, "uniform"))


@pytest.mark.slow
@given(
    st.integers(1, 15),
    st.sampled_from([None, "10-90", "dirichlet(1)", "powerlaw(2)"]),
    st.sampled_from(["dirichlet(0.1)", "dirichlet(5)", "2-4", "iid", "disjoint(1)"]),
    st.sampled_from([0.2, "none", "own(0.1)"]),
    st.integers(0, 50),
)
@settings(max_examples=20)
def test_new_splits_keep_the_laws_too(learners: int, sizes: str | None, classes: str, test: Any, seed: int) -> None:
    if classes == "disjoint(1)":
        learners = min(learners, 10)
    islands = DIGITS.split(learners, sizes, classes, test=test, seed=seed)  # islands check their laws themselves
    assert len(islands.learners) == learners
    given_out = sum(len(one.train) + (len(one.test) if test == "own(0.1)" else 0) for one in islands.learners)
    everything = 1797 - len(islands.test) - len(islands.stimuli)
    assert given_out <= everything
    if (classes == "iid" or classes.startswith("dirichlet")) and sizes != "10-90":
        assert given_out == everything
    if sizes == "10-90" and test != "own(0.1)":
        assert 10 <= min(islands.sizes()) <= max(islands.sizes()) <= 90


SITES = torch.tensor([0] * 50 + [2] * 30 + [3] * 9 + [1])
CARE = Source(
    torch.arange(90.0)[:, None],
    torch.arange(90) % 2,
    2,
    "care",
    sites=SITES,
    site_names=("North Hospital", "Clinic/7", "Ward", "Elsewhere"),
)


def test_sites_are_learners() -> None:
    islands = CARE.natural(stimuli=0)
    assert [one.name for one in islands.learners] == ["00-North_Hospital", "01-Clinic_7", "02-Ward", "03-Elsewhere"]
    assert islands.sizes() == [40, 1, 24, 7]  # a fifth of every class at every site is held out, where there are two
    for number, learner in enumerate(islands.learners):
        assert (SITES[learner.train] == number).all()
        assert (SITES[learner.test] == number).all()
    assert [len(one.test) for one in islands.learners] == [10, 0, 6, 2]
    assert len(islands.test) == 18


def test_sites_without_a_global_test_set() -> None:
    assert CARE.natural(test="none").sizes() == [50, 1, 30, 9]
    own = CARE.natural(at_least=9, test="own(0.5)")
    assert [(len(one.train), len(one.test)) for one in own.learners] == [(25, 25), (15, 15), (5, 4)]


def test_some_of_the_sites() -> None:
    assert [one.name for one in CARE.natural(at_least=10).learners] == ["00-North_Hospital", "01-Ward"]
    drawn = {tuple(one.name for one in CARE.natural(2, seed=seed).learners) for seed in range(30)}
    assert len(drawn) == 6  # every pair, always in the order of the sites
    assert ("00-North_Hospital", "01-Elsewhere") in drawn


def test_several_sites_on_a_learner() -> None:
    islands = CARE.natural(2, test="none", merged=True)
    assert [one.name for one in islands.learners] == ["00", "01"]
    assert sum(islands.sizes()) == 90
    for learner in islands.learners:
        mine = SITES[learner.train].unique()
        assert len(mine) == 2
        assert sum(int((CARE.sites == site).sum()) for site in mine) == len(learner.train)


def test_sites_beside_an_official_test_set() -> None:
    source = replace(CARE, test=torch.tensor([1, 2, 3, 60, 61]))
    islands = source.natural(stimuli=0)
    assert islands.test.tolist() == [1, 2, 3, 60, 61]
    assert [one.test.tolist() for one in islands.learners] == [[1, 2, 3], [], [60, 61], []]
    assert islands.sizes() == [47, 1, 28, 9]
    assert source.natural(test="none").sizes() == [50, 1, 30, 9]


def test_an_official_test_set_from_other_sites() -> None:
    islands = replace(CARE, test=torch.arange(50)).natural(stimuli=0)
    assert [one.name for one in islands.learners] == ["00-Clinic_7", "01-Ward", "02-Elsewhere"]
    assert len(islands.test) == 50
    assert (islands.y[islands.learners[0].test] == 1).all()  # as the one example it has
    assert [len(one.test) for one in islands.learners] == [25, 50, 45]


def test_sites_of_a_regression() -> None:
    islands = replace(CARE, y=torch.linspace(0, 1, 90), classes=None).natural()
    assert islands.sizes() == [40, 1, 24, 7]


BAD_SITES: dict[str, Any] = {
    "natural: 'digits' has no sites. Use split()": (DIGITS, {}),
    "natural: learners=5, but 'care' has 4 sites with 1 examples or more. Ask for 4 at most": (CARE, {"learners": 5}),
    "'care' has 4 sites with examples, 1 of them with 31 or more; two are needed": (CARE, {"at_least": 31}),
    "The largest have [50, 30, 9] examples. Ask for fewer with at_least": (CARE, {"at_least": 31}),
    "'care' has 1 sites with examples, 1 of them with 1 or more": (replace(CARE, sites=torch.zeros(90).long()), {}),
    "merged=True distributes sites over learners. Give their number": (CARE, {"merged": True}),
    "at_least=0 is too small": (CARE, {"at_least": 0}),
    "test=2 is not a fraction": (CARE, {"test": 2}),
}


@pytest.mark.parametrize("message", BAD_SITES)
def test_sites_that_cannot_be_learners_are_refused(message: str) -> None:
    source, arguments = BAD_SITES[message]
    with pytest.raises(ValueError, match=r"^(natural|split): ") as error:
        source.natural(**arguments)
    assert message in str(error.value)


def test_a_regression_is_split_as_one_class() -> None:
    islands = from_arrays(np.ones((50, 2)), np.linspace(0, 1, 50)).split(4, "skewed", stimuli=3)
    assert islands.classes is None
    assert islands.sizes() == [16, 12, 8, 4]
    assert (len(islands.test), len(islands.stimuli)) == (7, 3)
    assert all(learner.test.tolist() == islands.test.tolist() for learner in islands.learners)


def test_names_sort_in_order_beyond_a_hundred() -> None:
    names = [learner.name for learner in DIGITS.split(101).learners]
    assert names == sorted(names)
    assert names[0] == "000"


BAD_SPLITS: dict[str, Any] = {
    "learners=0 is too small. Give a number of at least 1": {"learners": 0},
    "learners=2.5 is not a whole number": {"learners": 2.5},
    "learners=2000, but there are only 1438 training examples": {"learners": 2000},
    "sizes='powrlaw' is not known. Did you mean 'powerlaw'? Known: uniform, skewed": {"sizes": "powrlaw"},
    "sizes has 3 numbers for 10 learners": {"sizes": (1, 2, 3)},
    "sizes=5 is not a list": {"sizes": 5},
    "sizes[1]=0 is too small": {"learners": 2, "sizes": (5, 0)},
    "classes='idd' is not known. Did you mean 'iid'?": {"classes": "idd"},
    "classes=12 asks for 12 classes, but the training examples have 10. Ask for 1 to 10": {"classes": 12},
    "classes=0 is too small": {"classes": 0},
    "classes has 2 numbers for 10 learners": {"classes": (3, 3)},
    "test=0 is not a fraction": {"test": 0},
    "test=1.2 is not a fraction": {"test": 1.2},
    "stimuli=-1 is too small": {"stimuli": -1},
    "test='won' is not known. Did you mean 'own'? Known: 0.2, none, own, own(0.2)": {"test": "won"},
    "test: own=1.5 is not a fraction": {"test": "own(1.5)"},
    "test=[0.2] is not known. Did you mean '0.2'?": {"test": [0.2]},
    "classes='disjoint(2)' with 10 learners needs 20 classes, but the training examples have 10": {
        "classes": "disjoint(2)"
    },
    "sizes='200-300' gives 10 learners at least 2000 together, but there are 1438": {"sizes": "200-300"},
}


@pytest.mark.parametrize("message", BAD_SPLITS)
def test_bad_splits_are_refused(message: str) -> None:
    with pytest.raises(ValueError, match="split: ") as error:
        DIGITS.split(**{"learners": 10, **BAD_SPLITS[message]})
    assert message in str(error.value)


def test_classes_of_a_regression_are_refused() -> None:
    with pytest.raises(ValueError, match=r"classes=3, but 'arrays' has no classes. Leave classes at 'iid'"):
        from_arrays(np.ones((9, 1)), np.linspace(0, 1, 9)).split(2, classes=3)

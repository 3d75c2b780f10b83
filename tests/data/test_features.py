"""Feature skew: buckets, settings, and splits whose features differ while all else is as asked."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.data import Islands, Source, bucketed, digits
from archipel.data.features import concentrations, configurations

RANDOM = np.random.default_rng(0)
FOREST = Source(
    torch.from_numpy(RANDOM.normal(size=(3000, 2))).float(),
    torch.from_numpy(RANDOM.integers(0, 3, 3000)),
    3,
    "forest",
    categories={
        "area": torch.from_numpy(RANDOM.integers(0, 4, 3000)),
        "soil": torch.from_numpy(RANDOM.geometric(0.4, 3000) % 9),
    },
)


def skew(islands: Islands, feature: str) -> float:
    """The C-score of a feature instead of the classes."""
    codes = FOREST.categories[feature]
    table = torch.stack([torch.bincount(codes[one.train], minlength=9) for one in islands.learners]).double()
    return float((table / table.sum(1, keepdim=True) - table.sum(0) / table.sum()).abs().sum(1).mean())


def test_buckets_hold_about_equally_many() -> None:
    assert bucketed(np.arange(12), 4).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert bucketed(torch.tensor([3.0, 1, 2, 10]), 2).tolist() == [1, 0, 0, 1]
    sizes = torch.bincount(bucketed(torch.randn(1000, generator=torch.Generator().manual_seed(0)), 7))
    assert sizes.max() - sizes.min() <= 1


def test_equal_values_share_a_bucket() -> None:
    assert bucketed(np.array([0, 0, 0, 0, 5, 6]), 3).tolist() == [0, 0, 0, 0, 1, 1]
    assert bucketed(np.array([0, 1, 1, 1, 1]), 4).tolist() == [0, 1, 1, 1, 1]


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60), st.integers(2, 9))
@settings(max_examples=60)
def test_buckets_follow_the_order_of_values(values: list[float], count: int) -> None:
    column = np.array(values)
    if column.min() == column.max():
        return
    codes = bucketed(column, count).numpy()
    assert set(codes) == set(range(codes.max() + 1))
    assert 1 <= codes.max() < count
    order = np.argsort(column, kind="stable")
    assert (np.diff(codes[order]) >= 0).all()
    assert all(len(set(codes[column == value])) == 1 for value in values)


@pytest.mark.parametrize(
    ("values", "count", "message"),
    [
        (np.zeros((3, 2)), 2, "one number per example, got shape (3, 2). Take one column"),
        (np.array([1.0, np.nan]), 2, "1 of 2 values are NaN or infinite"),
        (np.arange(5), 1, "count should be a whole number of at least 2, got 1"),
        (np.arange(5), 2.5, "count should be a whole number of at least 2, got 2.5"),
        (np.ones(5), 2, "all 5 values are 1.0: a single value cannot be divided"),
    ],
)
def test_what_cannot_be_bucketed_is_refused(values: np.ndarray, count: int, message: str) -> None:
    with pytest.raises(ValueError, match="bucketed: ") as error:
        bucketed(values, count)
    assert message in str(error.value)


def test_features_as_text_are_those_of_python() -> None:
    read = {
        "dirichlet(0.1)": {"area": 0.1, "soil": 0.1},
        "soil=1, area=0.5": {"area": 0.5, "soil": 1.0},
        "soil=1": {"soil": 1.0},
    }
    for text, value in read.items():
        assert concentrations(text, FOREST.categories, "forest") == value
        assert concentrations(value, FOREST.categories, "forest") == value
        # in the source's order, so that naming them in another order is not another split
        assert list(concentrations(text, FOREST.categories, "forest")) == [
            name for name in ("area", "soil") if name in value
        ]


BAD: dict[str, Any] = {
    "'forest' has no category 'sol'. Did you mean 'soil'? Categories: area, soil": {"sol": 0.1},
    "features='dirichlet' is not known. Did you mean 'dirichlet(0.1)'?": "dirichlet",
    "Known: dirichlet(0.1), area=0.1,soil=0.1": "dirichlet",
    "features['soil']: the concentration should be more than 0, got 0": {"soil": 0},
    "features={} names no features": {},
    "features=3 names no features": 3,
}


@pytest.mark.parametrize("message", BAD)
def test_unknown_features_are_refused(message: str) -> None:
    with pytest.raises(ValueError, match="split: ") as error:
        FOREST.split(5, features=BAD[message])
    assert message in str(error.value)


def test_a_source_without_categories_says_how_to_give_it_some() -> None:
    with pytest.raises(ValueError, match=r"'digits' has no categories. Give it some with source.with_category\("):
        digits().split(5, features="dirichlet(1)")
    height = digits().with_category("height", bucketed(digits().x[:, 20], 3))
    islands = height.split(5, features="dirichlet(0.1)")
    assert sum(islands.sizes()) == 1438


def test_configurations_are_the_combinations_that_there_are() -> None:
    number, kinds = configurations(np.array([1, 0, 1, 1]), [np.array([5, 5, 5, 7]), np.array([0, 0, 0, 2])])
    assert kinds[number].tolist() == [[1, 5, 0], [0, 5, 0], [1, 5, 0], [1, 7, 2]]
    assert len(kinds) == 3
    far = configurations(np.array([1, 0, 1]), [np.array([10**15, 5, 10**15])])
    assert far[0].tolist() == [1, 0, 1]


@pytest.mark.slow
@given(
    st.integers(1, 12),
    st.sampled_from(["uniform", "powerlaw", "dirichlet(1)"]),
    st.sampled_from(["iid", "dirichlet(0.1)", "dirichlet(10)"]),
    st.sampled_from(["dirichlet(0.1)", "soil=0.5", "dirichlet(100)"]),
    st.integers(0, 99),
)
@settings(max_examples=10)
def test_every_example_is_given_once(learners: int, sizes: str, classes: str, features: str, seed: int) -> None:
    islands = FOREST.split(learners, sizes, classes, features=features, test="none", seed=seed)
    given_out = torch.cat([one.train for one in islands.learners])
    assert given_out.sort().values.tolist() == list(range(3000))
    plain = FOREST.split(learners, sizes, test="none", seed=seed)
    assert islands.sizes() == plain.sizes()
    if classes == "iid":
        assert islands.class_table().tolist() == plain.class_table().tolist()  # only features give way


@pytest.mark.parametrize("classes", [2, (3, 2, 1, 1, 2, 3), "2-3"])
def test_classes_stay_as_asked_beside_features(classes: Any) -> None:
    plain, skewed = (FOREST.split(6, classes=classes, features=features) for features in (None, "dirichlet(0.1)"))
    assert skewed.class_table().tolist() == plain.class_table().tolist()
    assert skew(skewed, "soil") > 2 * skew(plain, "soil")
    assert skew(skewed, "area") > 4 * skew(plain, "area")


def test_features_have_no_say_where_classes_leave_nothing_open() -> None:
    plain, skewed = (FOREST.split(3, classes="disjoint(1)", features=features) for features in (None, "soil=0.1"))
    assert [one.train.tolist() for one in skewed.learners] == [one.train.tolist() for one in plain.learners]


def test_a_smaller_concentration_is_a_stronger_skew() -> None:
    scores = [skew(FOREST.split(20, features={"area": theta}, test="none"), "area") for theta in (0.05, 1, 1000)]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 1
    assert scores[-1] < 0.2
    # the feature that is not named stays as mixed as chance has it
    alone = FOREST.split(20, features={"area": 0.05}, test="none")
    assert skew(alone, "area") > 3 * skew(alone, "soil")


def test_a_regression_can_have_skewed_features() -> None:
    height = Source(FOREST.x, FOREST.x[:, 0], None, "heights", categories=FOREST.categories)
    islands = height.split(5, "dirichlet(1)", features="dirichlet(0.1)", test="none")
    assert sum(islands.sizes()) == 3000
    assert skew(islands, "area") > 0.5

"""Sources from arrays, tensors and torch datasets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import archipel as ap
from archipel.data import Source, from_arrays, lazy
from tests.real_files import cache


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
def test_arrays_become_float32_and_int64(convert: Any) -> None:
    source = from_arrays(convert(np.arange(6.0).reshape(3, 2)), convert(np.array([0, 2, 1], dtype=np.int32)))
    assert (source.x.dtype, source.y.dtype, source.classes) == (torch.float32, torch.int64, 3)
    assert source.x.tolist() == [[0, 1], [2, 3], [4, 5]]
    source = from_arrays(convert(np.arange(3, dtype=np.uint8)), convert(np.array([0.5, 1, 2])))
    assert (source.x.dtype, source.y.dtype, source.classes) == (torch.float32, torch.float32, None)


def test_a_source_keeps_its_data_when_the_array_changes() -> None:
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
def test_bad_arrays_are_refused(message: str) -> None:
    with pytest.raises(ValueError, match="from_arrays: ") as error:
        from_arrays(*BAD_ARRAYS[message])
    assert message in str(error.value)


LABELS: dict[str, Any] = {
    "strings": ["Ward B", "Ward A", "Ward B", "Ward C"],
    "an array of strings": np.array(["Ward B", "Ward A", "Ward B", "Ward C"]),
    "ints": [10, 9, 10, 200],
    "an array of ints": np.array([10, 9, 10, 200]),
    "a tensor": torch.tensor([10, 9, 10, 200]),
    "tuples": (10, 9, 10, 200),
}


@pytest.mark.parametrize("labels", LABELS)
def test_sites_of_arrays(labels: str) -> None:
    source = from_arrays(np.zeros((4, 1)), np.arange(4) % 2, sites=LABELS[labels])
    assert source.sites is not None
    assert source.sites.dtype == torch.int64
    assert source.sites.tolist() == [1, 0, 1, 2]
    assert source.site_names == (("Ward A", "Ward B", "Ward C") if "str" in labels else ("9", "10", "200"))


def test_sites_of_a_column_of_pandas() -> None:
    from pandas import Series  # imported late: it takes half a second

    source = from_arrays(np.zeros((4, 1)), np.arange(4) % 2, sites=Series([10, 9, 10, 200], index=[3, 2, 1, 0]))
    assert source.sites is not None
    assert source.sites.tolist() == [1, 0, 1, 2]


def test_an_array_of_sites_makes_natural_islands() -> None:
    sites = np.random.default_rng(0).integers(0, 7, 4840)
    source = from_arrays(np.zeros((4840, 2)), np.arange(4840) % 3, sites=sites)
    islands = source.natural(test="none")
    assert islands.sizes() == np.bincount(sites).tolist()
    assert [learner.name for learner in islands.learners] == [f"{number:02}-{number}" for number in range(7)]


BAD_SITES: dict[str, Any] = {
    "one label for each of the 3 examples, got 2 labels": ["a", "b"],
    "one label for each of the 3 examples, got 'abc'": "abc",
    "all examples are at one site, '1'. Leave sites out": np.ones(3, int),
    "the site of example 1 is missing": ["a", None, "b"],
    "the site of example 2 is missing": np.array([1.0, 2.0, np.nan]),
    "the site of example 0 is [1, 2]. Give one label": np.array([[1, 2], [1, 3], [2, 2]]),
}


@pytest.mark.parametrize("message", BAD_SITES)
def test_bad_sites_of_arrays(message: str) -> None:
    with pytest.raises(ValueError, match="from_arrays: ") as error:
        from_arrays(np.zeros((3, 1)), np.arange(3), sites=BAD_SITES[message])
    assert message in str(error.value)


def test_a_source_refuses_an_array_of_sites_and_names_the_way_out() -> None:
    x, y, sites = torch.zeros(4840, 1), torch.arange(4840) % 2, np.arange(4840)
    with pytest.raises(
        ValueError, match=r"must be a torch tensor .* got a numpy ndarray.*from_arrays\(x, y, sites="
    ) as error:
        Source(x, y, 2, "arrays", sites=sites, site_names=tuple("ab"))  # type: ignore[arg-type]
    assert "got int64 of shape" not in str(error.value)


def test_tokens_stay_whole_numbers() -> None:
    source = from_arrays(np.array([[1, 2], [3, 4]], np.int32), np.array([0, 1]), tokens=True)
    assert (source.x.dtype, source.x.tolist()) == (torch.int64, [[1, 2], [3, 4]])
    for x in (np.array([[0.5], [1]]), np.array([[-1], [1]]), np.array([[True], [False]])):
        with pytest.raises(ValueError, match=r"tokens=True needs x of whole numbers from 0, got"):
            from_arrays(x, np.array([0, 1]), tokens=True)


# torch


class Pairs(Dataset[tuple[Any, Any]]):
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        return self.items[number]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


def test_a_torch_dataset(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.rand(30, 2, 5, dtype=torch.float64), torch.arange(30) % 4
    for large in (lazy.LARGE, 100):
        monkeypatch.setattr(lazy, "LARGE", large)
        source = ap.data.from_dataset(TensorDataset(x, y), sites=[f"ward {number % 3}" for number in range(30)])
        assert torch.equal(source.x, x.float())
        assert torch.equal(source.y, y)
        assert (source.classes, source.name) == (4, "dataset")
        assert source.site_names == ("ward 0", "ward 1", "ward 2")
        assert source.sites is not None
        assert source.sites[:4].tolist() == [0, 1, 2, 0]
    assert cache() == ["decoded"]


def test_tokens_stay_whole_and_bytes_do_not() -> None:
    tokens = ap.data.from_dataset(Pairs((torch.tensor([1, 2]), 0), (torch.tensor([3, 4]), 1)))
    assert (tokens.x.dtype, tokens.x.tolist()) == (torch.int64, [[1, 2], [3, 4]])
    pixels = ap.data.from_dataset(Pairs((np.zeros(2, np.uint8), 0), (np.ones(2, np.uint8), 1)))
    assert pixels.x.dtype == torch.float32
    numbers = ap.data.from_dataset(Pairs((1, 0.5), (2, 0.25)))
    assert (numbers.x.tolist(), numbers.y.tolist(), numbers.classes) == ([1, 2], [0.5, 0.25], None)


@pytest.mark.parametrize(
    ("dataset", "error"),
    [
        (lambda: Stream(), r"Stream has no length or no items by number. Only a map-style Dataset can be split"),
        (lambda: Pairs(), r"the dataset is empty"),
        (lambda: Pairs(torch.ones(2)), r"item 0 should be a pair \(x, y\), got Tensor"),
        (lambda: Pairs(("text", 0)), r"item 0 should be numbers and one label, got x of str and y of int. For images"),
        (lambda: Pairs((torch.ones(2), 0), (torch.ones(3), 1)), r"item 1 has shape \(3,\), the first \(2,\)"),
        (
            lambda: Pairs((torch.ones(2), -1)),
            r"should be whole numbers from 0 in one dimension, got shape \(1,\) from -1",
        ),
        (lambda: Pairs((torch.ones(2), 1.0)), r"are floats that are all whole numbers, such as 1.0"),
        (lambda: Pairs((torch.tensor([1.0, np.nan]), 1)), r"some x are NaN or infinite"),
    ],
)
def test_bad_torch_datasets(dataset: Callable[[], Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        ap.data.from_dataset(dataset())


def test_bad_sites_of_a_torch_dataset() -> None:
    pairs = Pairs((torch.ones(2), 0), (torch.ones(2), 1))
    with pytest.raises(ValueError, match=r"one label for each of the 2 examples, got 1 labels. Give the site of every"):
        ap.data.from_dataset(pairs, sites=["a"])
    with pytest.raises(ValueError, match=r"all examples are at one site, 'a'. Leave sites out"):
        ap.data.from_dataset(pairs, sites=["a", "a"])

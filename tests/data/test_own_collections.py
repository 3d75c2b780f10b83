"""The user's own folders of .npz files and Hugging Face datasets."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import archipel as ap
from archipel.data import lazy
from tests.real_files import cache

# a folder of .npz


def sites(folder: Path, **arrays: tuple[Any, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, (x, y) in arrays.items():
        np.savez(folder / f"{name}.npz", x=x, y=y)
    return folder


def test_a_folder_of_npz(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    x = {name: random.normal(size=(count, 3, 2)) for name, count in (("north", 4), ("east", 6))}
    folder = sites(tmp_path / "islands", **{name: (values, np.arange(len(values)) % 3) for name, values in x.items()})
    for large in (lazy.LARGE, 100):
        monkeypatch.setattr(lazy, "LARGE", large)
        for _ in range(2):
            source = ap.data.from_npz_folder(folder)
            assert source.site_names == ("east", "north")
            assert source.sites is not None
            assert source.sites.tolist() == [0] * 6 + [1] * 4
            assert np.array_equal(source.x.numpy(), np.concatenate([x["east"], x["north"]]).astype(np.float32))
            assert (source.y.tolist(), source.classes) == ([0, 1, 2, 0, 1, 2, 0, 1, 2, 0], 3)
            assert source.name == "islands"
    np.savez(folder / "east.npz", x=x["east"] + 1, y=np.arange(6) % 3)
    assert np.array_equal(ap.data.from_npz_folder(folder).x[:6].numpy(), (x["east"] + 1).astype(np.float32))


GOOD = (np.ones((4, 2)), np.arange(4))


@pytest.mark.parametrize(
    ("second", "error"),
    [
        ((np.ones((4, 3)), np.arange(4)), r"b.npz holds x of shape \(4, 3\) .*a.npz has examples of shape \(2,\)"),
        ((np.ones((4, 2)), np.arange(4) / 3), r"y of float32, but .*a.npz has .* y of int64. All sites need the same"),
        ((np.ones((4, 2)), np.arange(3)), r"b.npz should hold numbers x and y, one y for each x, got x of float64"),
        ((np.array([["a", "b"]] * 4), np.arange(4)), r"b.npz should hold numbers x and y.* got x of <U1"),
        ((np.full((4, 2), np.nan), np.arange(4)), r"b.npz has 8 values that are missing \(NaN\) or infinite"),
        (
            (np.ones((4, 2)), np.arange(4) - 1),
            r"should be whole numbers from 0 in one dimension, got shape \(4,\) from -1",
        ),
        ((np.ones((4, 2)), np.arange(4) / 1), r"b.npz are floats that are all whole numbers, such as 0.0"),
        ((np.array([None] * 4), np.arange(4)), r"b.npz cannot be read: Object arrays cannot be loaded"),
    ],
)
def test_bad_folders_of_npz(alone: Path, tmp_path: Path, second: tuple[Any, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        ap.data.from_npz_folder(sites(tmp_path / "islands", a=GOOD, b=second))
    assert cache() == ["decoded"]


def test_folders_with_too_little(alone: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"nowhere should hold an .npz for each of two or more sites, got no such folder"
    ):
        ap.data.from_npz_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"got 1 .npz file. For a single array use from_arrays"):
        ap.data.from_npz_folder(sites(tmp_path / "islands", a=GOOD))
    np.savez(tmp_path / "islands" / "b.npz", z=np.ones(3))
    with pytest.raises(ValueError, match=r"b.npz cannot be read: it holds z, not x and y"):
        ap.data.from_npz_folder(tmp_path / "islands")
    (tmp_path / "islands" / "b.npz").write_bytes(b"PK not a zip")
    with pytest.raises(ValueError, match=r"b.npz cannot be read"):
        ap.data.from_npz_folder(tmp_path / "islands")
    with pytest.warns(ap.ArchipelWarning, match=r"column 1 has a median of 1000 at 'b' and of 1 at 'a'"):
        ap.data.from_npz_folder(sites(tmp_path / "islands", a=GOOD, b=(np.ones((4, 2)) * [1, 1000], np.arange(4))))


# Hugging Face


class Rows:
    """What is used of a `datasets.Dataset`."""

    def __init__(self, **columns: Sequence[Any]) -> None:
        self.columns = columns
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows: slice) -> dict[str, Sequence[Any]]:
        return {name: values[rows] for name, values in self.columns.items()}


COLUMNS: dict[str, Any] = {
    "age": [30, 40, 50, 60],
    "sex": ["f", "m", "m", "f"],
    "label": [1, 0, 1, 1],
    "ward": ["a", "a", "b", "b"],
}


def packages() -> list[Callable[..., Any]]:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        return [Rows]
    return [Rows, lambda **columns: datasets.Dataset.from_dict(columns)]


@pytest.mark.parametrize("make", packages())
def test_a_hugging_face_table(make: Callable[..., Any]) -> None:
    source = ap.data.from_hf(make(**COLUMNS), site="ward", categories=["sex"], name="patients")
    assert source.x.tolist() == [[30, 1, 0], [40, 0, 1], [50, 0, 1], [60, 1, 0]]
    assert (source.y.tolist(), source.classes, source.name) == ([1, 0, 1, 1], 2, "patients")
    assert source.site_names == ("a", "b")
    with pytest.raises(ValueError, match=r"from_hf: .* 'age' in 1 rows \(first in row 2\)"):
        ap.data.from_hf(make(**COLUMNS | {"age": [30, None, 50, 60]}), categories=["sex"], features=["age", "sex"])


@pytest.mark.parametrize("make", packages())
def test_what_is_said_of_a_hugging_face_table_holds(make: Callable[..., Any]) -> None:
    told: dict[str, Any] = {"site": "ward", "categories": {"sex": ["m", "f"]}}
    source = ap.data.from_hf(make(**COLUMNS), **told, classes=[2, 1, 0], ranges={"age": (30, 60)})
    assert (source.y.tolist(), source.classes) == ([1, 2, 1, 1], 3)
    assert source.x.tolist() == [[30, 0, 1], [40, 1, 0], [50, 1, 0], [60, 0, 1]]
    with pytest.raises(ValueError, match=r"from_hf: label column 'label' holds '0' in row 2, which is not among the"):
        ap.data.from_hf(make(**COLUMNS), **told, classes=[1, 2])
    with pytest.raises(
        ValueError, match=r"from_hf: .* 'age' in 2 of 4 rows is not from 1 to 40 \(first in row 3: 50; its"
    ):
        ap.data.from_hf(make(**COLUMNS), **told, ranges={"age": (1, 40)})
    pictures = make(image=[[[0.5]], [[0.25]]], label=[0, 1])
    assert ap.data.from_hf(pictures, classes=[1, 0, 2]).y.tolist() == [1, 0]
    with pytest.raises(
        ValueError, match=r"column 'image' holds images or arrays, and a range is for a column of numbers"
    ):
        ap.data.from_hf(pictures, ranges={"image": (0, 1)})
    with pytest.raises(ValueError, match=r"label column 'label' holds '0' in row 1"):
        ap.data.from_hf(pictures, classes=[1, 2])


@pytest.mark.parametrize("make", packages())
def test_hugging_face_arrays(make: Callable[..., Any]) -> None:
    arrays = [[[number, 0.5], [2, 3]] for number in range(4)]
    dataset = make(image=arrays, label=COLUMNS["label"], ward=COLUMNS["ward"])
    source = ap.data.from_hf(dataset, site="ward")
    assert source.x.tolist() == arrays
    assert source.y.tolist() == [1, 0, 1, 1]
    assert source.sites is not None
    assert source.sites.tolist() == [0, 0, 1, 1]


class Picture:
    """What is used of a picture of PIL."""

    def __init__(self, pixels: Any) -> None:
        self.pixels = np.array(pixels, np.uint8)

    def getbands(self) -> tuple[str, ...]:
        return ("R", "G", "B")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.pixels


def test_hugging_face_pictures() -> None:
    colour = np.arange(4 * 5 * 3).reshape(4, 5, 3)
    source = ap.data.from_hf(Rows(image=[Picture(colour), Picture(colour + 1)], label=[0, 1]))
    assert source.x.shape == (2, 3, 4, 5)
    assert torch.allclose(source.x[1], torch.from_numpy((colour + 1).transpose(2, 0, 1) / 255).float())
    grey = ap.data.from_hf(Rows(image=[Picture(np.ones((4, 5)))], label=[0]))
    assert grey.x.shape == (1, 1, 4, 5)
    with pytest.raises(ValueError, match=r"from_hf: item 1 has shape \(1, 4, 5\), the first \(3, 4, 5\)"):
        ap.data.from_hf(Rows(image=[Picture(colour), Picture(np.ones((4, 5)))], label=[0, 1]))


def test_what_is_no_hugging_face_dataset() -> None:
    for wrong in ({"train": Rows(**COLUMNS)}, [1, 2]):
        with pytest.raises(ValueError, match=r"a datasets.Dataset is needed, got (dict|list). Of a DatasetDict take"):
            ap.data.from_hf(wrong)

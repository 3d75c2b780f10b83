"""The user's own data: tables, folders of arrays, torch and Hugging Face datasets."""

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from real_files import cache
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import archipel as ap
from archipel.data import Source, lazy, own

TABLE = """age,sex,weight,disease,hospital
30,f,60.5,no,Paris
40,m,80,yes,Paris
50,m,75,no,Berlin
60,f,65,yes,Berlin
70,f,55,yes,Berlin
"""


def csv(folder: Path, text: str = TABLE) -> Path:
    path = folder / "patients.csv"
    path.write_text(text)
    return path


def patients(folder: Path, text: str = TABLE, **arguments: Any) -> Source:
    return ap.data.from_csv(
        csv(folder, text), **({"label": "disease", "site": "hospital", "categories": ["sex"]} | arguments)
    )


def test_a_table_with_sites(tmp_path: Path):
    source = patients(tmp_path)
    assert source.x.dtype == torch.float32
    assert source.x.tolist() == [[30, 1, 0, 60.5], [40, 0, 1, 80], [50, 0, 1, 75], [60, 1, 0, 65], [70, 1, 0, 55]]
    assert (source.y.tolist(), source.classes, source.name) == ([0, 1, 0, 1, 1], 2, "patients")
    assert source.sites is not None
    assert (source.sites.tolist(), source.site_names) == ([1, 1, 0, 0, 0], ("Berlin", "Paris"))
    assert {name: codes.tolist() for name, codes in source.categories.items()} == {"sex": [0, 1, 1, 0, 0]}
    assert source.test is None


def test_chosen_columns_and_listed_categories(tmp_path: Path):
    source = patients(tmp_path, features=["sex", "age"], categories={"sex": ("m", "x", "f")}, site=None)
    assert source.x.tolist() == [[0, 0, 1, 30], [1, 0, 0, 40], [1, 0, 0, 50], [0, 0, 1, 60], [0, 0, 1, 70]]
    assert (source.sites, source.site_names) == (None, ())
    assert source.categories["sex"].tolist() == [2, 0, 0, 2, 2]


def test_labels_that_are_numbers_are_ordered_by_value(tmp_path: Path):
    rows = "x,y\n" + "".join(f"{number},{label}\n" for number, label in enumerate(["10", "2", "2.0", "-1", "10"]))
    source = ap.data.from_csv(csv(tmp_path, rows), label="y")
    assert (source.y.tolist(), source.classes) == ([2, 1, 1, 0, 2], 3)


def test_a_regression(tmp_path: Path):
    source = patients(tmp_path, label="weight", regression=True, categories=["sex", "disease"])
    assert (source.classes, source.y.dtype, source.y.tolist()) == (None, torch.float32, [60.5, 80, 75, 65, 55])
    assert source.x.shape == (5, 5)


def test_other_delimiters_quotes_and_marks(tmp_path: Path):
    text = '\ufeffage; "name";y\n1;"a; b";0\n\n2;"c";1\n'
    source = ap.data.from_csv(csv(tmp_path, text), label="y", delimiter=";", categories=["name"])
    assert source.x.tolist() == [[1, 1, 0], [2, 0, 1]]


@pytest.mark.parametrize(
    ("text", "arguments", "error"),
    [
        (
            TABLE.replace("40,m", "?,").replace("70,f", ",f"),
            {},
            r"missing or infinite in 2 of 5 columns of 'patients': 'age' in 2 rows \(first in row 2\), 'sex' in 1 rows "
            r"\(first in row 2\). Fill them in, drop those rows, or leave the columns out with features=\[...\]",
        ),
        (TABLE.replace("80,yes,Paris", "NA,yes,"), {}, r"'hospital' in 1 rows \(first in row 2\), 'weight' in 1 rows"),
        (TABLE.replace("80", "inf"), {}, r"missing or infinite in 1 of 5 columns of 'patients': 'weight' in 1 rows"),
        (TABLE, {"categories": []}, r"'sex' holds text, such as 'f'. If it is a category, say categories=\['sex'\]"),
        (
            TABLE.replace("Berlin", "Paris"),
            {},
            r"column 'hospital' names one site only, 'Paris'. Name the column that tells sites apart, or leave site",
        ),
        (
            TABLE.replace("f,65", "female,65").replace("f,55", "female,55"),
            {},
            r"category 'sex' holds 'f' at one site only, 'Paris': do sites write the same thing differently\? If all "
            r"values are meant, list them: categories=\{'sex': \('f', 'female', 'm'\)\}",
        ),
        (
            TABLE,
            {"categories": {"sex": ("f", "d")}},
            r"category 'sex' holds 'm' \(at Berlin, Paris\), which is not among the listed f, d. List it, or correct",
        ),
        (
            TABLE,
            {"label": "weight", "categories": ["sex", "disease"]},
            r"label column 'weight' holds 60.5, which is not a whole number. .* for quantities say regression=True",
        ),
        (TABLE, {"label": "diseas"}, r"a column should be one of age, .* got 'diseas'. Did you mean 'disease'\?"),
        (TABLE, {"features": ["age", "disease"]}, r"'disease' is the label or the site. Leave it out of features"),
        (TABLE, {"categories": ["hospital"]}, r"a category should be one of age, sex, weight, got 'hospital'"),
        (TABLE + "1,f,2\n", {}, r"line 7 of .*patients.csv has 3 fields, the header 5. Is the file cut short"),
        ("age,age,y\n1,2,3\n", {}, r"has more than one column 'age'"),
        ("", {}, r"patients.csv is empty. The first line should name the columns"),
        (TABLE.splitlines()[0], {}, r"'patients' has no rows"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, arguments: dict[str, Any], error: str):
    with pytest.raises(ValueError, match=error):
        patients(tmp_path, text, **arguments)


def test_listed_categories_may_differ_between_sites(tmp_path: Path):
    text = TABLE.replace("f,65", "female,65").replace("f,55", "female,55")
    source = patients(tmp_path, text, categories={"sex": ("f", "female", "m")})
    assert source.categories["sex"].tolist() == [0, 2, 2, 1, 1]


def test_sites_that_seem_to_measure_in_other_units(tmp_path: Path):
    text = TABLE.replace("60.5", "60500").replace("80", "80000")
    with pytest.warns(
        ap.ArchipelWarning,
        match=r"column 'weight' has a median of 70250 at 'Paris' and of 65 at 'Berlin'. Do sites measure in different",
    ):
        source = patients(tmp_path, text)
    assert source.x[0].tolist() == [30, 1, 0, 60500]


@given(
    st.lists(
        st.tuples(st.floats(-1e6, 1e6, width=32), st.sampled_from("abc"), st.integers(-3, 3), st.sampled_from("PQ")),
        min_size=2,
        max_size=40,
    ),
    st.integers(1, 7),
)
@settings(max_examples=40, deadline=None)
def test_a_table_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, str, int, str]], block: int
):
    path = tmp_path_factory.mktemp("table") / "t.csv"
    path.write_text("v,k,y,s\n" + "".join(",".join(str(value) for value in row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "ROWS", block)
        patch.setattr(own, "UNITS", np.inf)
        sites = sorted({row[3] for row in rows})
        if len(sites) == 1:
            with pytest.raises(ValueError, match="names one site only"):
                ap.data.from_csv(path, "y", "s", categories={"k": "abc"})
            return
        source = ap.data.from_csv(path, "y", "s", categories={"k": "abc"})
    labels = sorted({row[2] for row in rows})
    assert source.x[:, 0].tolist() == [np.float32(row[0]) for row in rows]
    assert source.x[:, 1:].argmax(1).tolist() == ["abc".index(row[1]) for row in rows]
    assert (source.x[:, 1:].sum(1) == 1).all()
    assert [labels[number] for number in source.y.tolist()] == [row[2] for row in rows]
    assert source.sites is not None
    assert [source.site_names[number] for number in source.sites.tolist()] == [row[3] for row in rows]


def test_a_large_table_stays_on_disk_and_leaves_nothing(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = "a,b,y\n" + "".join(f"{row},{row % 7},{row % 2}\n" for row in range(500))
    small = ap.data.from_csv(csv(tmp_path, text), "y")
    monkeypatch.setattr(lazy, "LARGE", 1000)
    monkeypatch.setattr(own, "ROWS", 64)
    large = ap.data.from_csv(tmp_path / "patients.csv", "y")
    assert torch.equal(large.x, small.x)
    large.x[0, 0] = 17
    assert cache() == ["decoded"]


# Parquet


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"from_parquet needs pyarrow: pip install 'archipel\[parquet\]'"):
        ap.data.from_parquet(tmp_path / "patients.parquet", "disease")


def test_parquet(tmp_path: Path):
    arrow = pytest.importorskip("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    columns = {
        "age": [30, 40, 50, 60],
        "sex": ["f", "m", "m", "f"],
        "smoker": [True, False, False, True],
        "ward": [1, 2, 1, 2],
        "disease": ["no", "yes", "no", "yes"],
    }
    path = tmp_path / "patients.parquet"
    parquet.write_table(arrow.table(columns | {"sex": arrow.array(columns["sex"]).dictionary_encode()}), path)
    source = ap.data.from_parquet(path, "disease", site="ward", categories=["sex"])
    assert source.x.tolist() == [[30, 1, 0, 1], [40, 0, 1, 0], [50, 0, 1, 0], [60, 1, 0, 1]]
    assert (source.y.tolist(), source.site_names) == ([0, 1, 0, 1], ("1", "2"))
    parquet.write_table(arrow.table(columns | {"age": [30, None, 50, 60]}), path)
    with pytest.raises(ValueError, match=r"'age' in 1 rows \(first in row 2\)"):
        ap.data.from_parquet(path, "disease", categories=["sex"])
    parquet.write_table(arrow.table(columns | {"age": [[1], [2], [3], [4]]}), path)
    with pytest.raises(ValueError, match=r"column 'age' holds list, such as '\[1\]'; columns are numbers or text"):
        ap.data.from_parquet(path, "disease", categories=["sex"])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"patients.parquet is cut short, damaged or not Parquet"):
        ap.data.from_parquet(path, "disease")


# a folder of .npz


def sites(folder: Path, **arrays: tuple[Any, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, (x, y) in arrays.items():
        np.savez(folder / f"{name}.npz", x=x, y=y)
    return folder


def test_a_folder_of_npz(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
def test_bad_folders_of_npz(alone: Path, tmp_path: Path, second: tuple[Any, Any], error: str):
    with pytest.raises(ValueError, match=error):
        ap.data.from_npz_folder(sites(tmp_path / "islands", a=GOOD, b=second))
    assert cache() == ["decoded"]


def test_folders_with_too_little(alone: Path, tmp_path: Path):
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


def test_a_torch_dataset(alone: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_tokens_stay_whole_and_bytes_do_not():
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
def test_bad_torch_datasets(dataset: Callable[[], Any], error: str):
    with pytest.raises(ValueError, match=error):
        ap.data.from_dataset(dataset())


def test_bad_sites_of_a_torch_dataset():
    pairs = Pairs((torch.ones(2), 0), (torch.ones(2), 1))
    with pytest.raises(ValueError, match=r"1 sites for 2 items. Name the site of every item"):
        ap.data.from_dataset(pairs, sites=["a"])
    with pytest.raises(ValueError, match=r"all items are at one site, 'a'. Leave sites out"):
        ap.data.from_dataset(pairs, sites=["a", "a"])


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


COLUMNS = {"age": [30, 40, 50, 60], "sex": ["f", "m", "m", "f"], "label": [1, 0, 1, 1], "ward": ["a", "a", "b", "b"]}


def packages() -> list[Callable[..., Any]]:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        return [Rows]
    return [Rows, lambda **columns: datasets.Dataset.from_dict(columns)]


@pytest.mark.parametrize("make", packages())
def test_a_hugging_face_table(make: Callable[..., Any]):
    source = ap.data.from_hf(make(**COLUMNS), site="ward", categories=["sex"], name="patients")
    assert source.x.tolist() == [[30, 1, 0], [40, 0, 1], [50, 0, 1], [60, 1, 0]]
    assert (source.y.tolist(), source.classes, source.name) == ([1, 0, 1, 1], 2, "patients")
    assert source.site_names == ("a", "b")
    with pytest.raises(ValueError, match=r"from_hf: .* 'age' in 1 rows \(first in row 2\)"):
        ap.data.from_hf(make(**COLUMNS | {"age": [30, None, 50, 60]}), categories=["sex"], features=["age", "sex"])


@pytest.mark.parametrize("make", packages())
def test_hugging_face_arrays(make: Callable[..., Any]):
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


def test_hugging_face_pictures():
    colour = np.arange(4 * 5 * 3).reshape(4, 5, 3)
    source = ap.data.from_hf(Rows(image=[Picture(colour), Picture(colour + 1)], label=[0, 1]))
    assert source.x.shape == (2, 3, 4, 5)
    assert torch.allclose(source.x[1], torch.from_numpy((colour + 1).transpose(2, 0, 1) / 255).float())
    grey = ap.data.from_hf(Rows(image=[Picture(np.ones((4, 5)))], label=[0]))
    assert grey.x.shape == (1, 1, 4, 5)
    with pytest.raises(ValueError, match=r"from_hf: item 1 has shape \(1, 4, 5\), the first \(3, 4, 5\)"):
        ap.data.from_hf(Rows(image=[Picture(colour), Picture(np.ones((4, 5)))], label=[0, 1]))


def test_what_is_no_hugging_face_dataset():
    for wrong in ({"train": Rows(**COLUMNS)}, [1, 2]):
        with pytest.raises(ValueError, match=r"a datasets.Dataset is needed, got (dict|list). Of a DatasetDict take"):
            ap.data.from_hf(wrong)

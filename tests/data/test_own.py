"""The user's own tables: CSV and Parquet."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ap
from archipel.data import Source, lazy, own, units
from archipel.study.build import build_data
from archipel.study.files import read_study
from archipel.study.grid import cells
from tests.real_files import cache

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


def test_a_table_with_sites(tmp_path: Path) -> None:
    source = patients(tmp_path)
    assert source.x.dtype == torch.float32
    assert source.x.tolist() == [[30, 1, 0, 60.5], [40, 0, 1, 80], [50, 0, 1, 75], [60, 1, 0, 65], [70, 1, 0, 55]]
    assert (source.y.tolist(), source.classes, source.name) == ([0, 1, 0, 1, 1], 2, "patients")
    assert source.sites is not None
    assert (source.sites.tolist(), source.site_names) == ([1, 1, 0, 0, 0], ("Berlin", "Paris"))
    assert {name: codes.tolist() for name, codes in source.categories.items()} == {"sex": [0, 1, 1, 0, 0]}
    assert source.test is None


def test_chosen_columns_and_listed_categories(tmp_path: Path) -> None:
    source = patients(tmp_path, features=["sex", "age"], categories={"sex": ("m", "x", "f")}, site=None)
    assert source.x.tolist() == [[0, 0, 1, 30], [1, 0, 0, 40], [1, 0, 0, 50], [0, 0, 1, 60], [0, 0, 1, 70]]
    assert (source.sites, source.site_names) == (None, ())
    assert source.categories["sex"].tolist() == [2, 0, 0, 2, 2]


def test_labels_that_are_numbers_are_ordered_by_value(tmp_path: Path) -> None:
    rows = "x,y\n" + "".join(f"{number},{label}\n" for number, label in enumerate(["10", "2", "2.0", "-1", "10"]))
    source = ap.data.from_csv(csv(tmp_path, rows), label="y")
    assert (source.y.tolist(), source.classes) == ([2, 1, 1, 0, 2], 3)


def test_a_regression(tmp_path: Path) -> None:
    source = patients(tmp_path, label="weight", regression=True, categories=["sex", "disease"])
    assert (source.classes, source.y.dtype, source.y.tolist()) == (None, torch.float32, [60.5, 80, 75, 65, 55])
    assert source.x.shape == (5, 5)


def test_other_delimiters_quotes_and_marks(tmp_path: Path) -> None:
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
        (TABLE, {"categories": []}, r"'sex' holds text, such as 'f'. If it is a category, pass categories=\['sex'\]"),
        (
            TABLE.replace("Berlin", "Paris"),
            {},
            r"column 'hospital' names one site only, 'Paris'. Name a column with several sites, or leave site",
        ),
        (
            TABLE.replace("f,65", "female,65").replace("f,55", "female,55"),
            {},
            r"category 'sex' holds 'f' at one site only, 'Paris': do sites write the same thing differently\? If all "
            r"values are right, list them: categories=\{'sex': \('f', 'female', 'm'\)\}",
        ),
        (
            TABLE,
            {"categories": {"sex": ("f", "d")}},
            r"category 'sex' holds 'm' in row 2 \(at Berlin, Paris\), which is not among the listed f, d. List it, or "
            r"correct the data",
        ),
        (
            TABLE.replace("70,f", "70,F"),
            {"categories": {"sex": ("f", "m")}, "site": None, "features": ["age", "sex"]},
            r"from_csv: category 'sex' holds 'F' in row 5, which is not among the listed f, m. List it, or correct",
        ),
        (TABLE, {"categories": {"sex": ("f", "m", "f")}}, r"category 'sex' lists 'f' more than once. List it once"),
        (
            TABLE,
            {"label": "weight", "categories": ["sex", "disease"]},
            r"label column 'weight' holds 60.5, which is not a whole number. .* for quantities pass regression=True",
        ),
        (TABLE, {"label": "diseas"}, r"a column should be one of age, .* got 'diseas'. Did you mean 'disease'\?"),
        (TABLE, {"features": ["age", "disease"]}, r"'disease' is the label or the site. Leave it out of features"),
        (TABLE, {"categories": ["hospital"]}, r"a category should be one of age, sex, weight, got 'hospital'"),
        (TABLE + "1,f,2\n", {}, r"line 7 of .*patients.csv has 3 fields, the header 5. Is the file truncated"),
        ("age,age,y\n1,2,3\n", {}, r"has more than one column 'age'"),
        ("", {}, r"patients.csv is empty. The first line should name the columns"),
        (TABLE.splitlines()[0], {}, r"'patients' has no rows"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        patients(tmp_path, text, **arguments)


def test_listed_categories_may_differ_between_sites(tmp_path: Path) -> None:
    text = TABLE.replace("f,65", "female,65").replace("f,55", "female,55")
    source = patients(tmp_path, text, categories={"sex": ("f", "female", "m")})
    assert source.categories["sex"].tolist() == [0, 2, 2, 1, 1]


def test_sites_that_seem_to_measure_in_other_units(tmp_path: Path) -> None:
    text = TABLE.replace("60.5", "60500").replace("80", "80000")
    with pytest.warns(
        ap.ArchipelWarning,
        match=r"column 'weight' has a median of 70250 at 'Paris' and of 65 at 'Berlin'. Do sites measure in different",
    ):
        source = patients(tmp_path, text)
    assert source.x[0].tolist() == [30, 1, 0, 60500]


# classes that are listed


def labelled(folder: Path, labels: Sequence[str], **arguments: Any) -> Source:
    rows = "x,y\n" + "".join(f"{number},{label}\n" for number, label in enumerate(labels))
    return ap.data.from_csv(csv(folder, rows), label="y", **arguments)


@pytest.mark.parametrize(
    ("labels", "classes", "numbers"),
    [
        (["yes", "no", "yes"], ["yes", "no"], [0, 1, 0]),
        (["no", "no", "no"], ["yes", "maybe", "no"], [2, 2, 2]),
        (["10", "2", "2.0", "-1"], [10, 2, -1, 7], [0, 1, 1, 2]),
        (["10", "2.0", "2"], ["2.0", "10"], [1, 0, 0]),
        (["1", "2"], np.array([2, 1]), [1, 0]),
        (["1", "2"], ("3", 2, 1), [2, 1]),
        # a word among them: they are all words
        (["0", "?x", "1"], [1, 0, "?x"], [1, 2, 0]),
    ],
)
def test_listed_classes_are_numbered_as_listed(
    tmp_path: Path, labels: list[str], classes: Any, numbers: list[int]
) -> None:
    source = labelled(tmp_path, labels, classes=classes)
    assert (source.y.tolist(), source.y.dtype, source.classes) == (numbers, torch.int64, len(classes))


@pytest.mark.parametrize(
    ("labels", "arguments", "error"),
    [
        (
            ["no", "yes", "maybe", "perhaps", "maybe"],
            {"classes": ["no", "yes"]},
            r"from_csv: label column 'y' holds 'maybe' in row 3, which is not among the classes no, yes. List it, with "
            r"every site the same list, or correct the data",
        ),
        (["no", "perhaps", "maybe"], {"classes": ["no", "yes"]}, r"holds 'perhaps' in row 2"),
        (["No", "yes"], {"classes": ["no", "yes"]}, r"holds 'No' in row 1, which is not among the classes no, yes"),
        (["1", "2.5", "2"], {"classes": [1, 2]}, r"holds '2.5' in row 2, which is not among the classes 1, 2"),
        (["1", "two"], {"classes": [1, 2]}, r"holds 'two' in row 2, which is not among the classes 1, 2"),
        (["1.0", "x"], {"classes": [1, "x"]}, r"holds '1.0' in row 1, which is not among the classes 1, x"),
        (["0", ""], {"classes": [0, 1]}, r"values are missing .* 'y' in 1 rows \(first in row 2\)"),
        (["a"], {"classes": ["a", "b", "a"]}, r"classes list 'a' more than once. List every class once"),
        (["1"], {"classes": [1, 2, "1.0"]}, r"classes list '1.0' more than once"),
        (["1"], {"classes": [1]}, r"classes=\[1\]: there should be two or more. List all of them"),
        (["1"], {"classes": []}, r"classes=\[\]: there should be two or more"),
        (["1"], {"classes": ["1", "1.5"]}, r"classes hold 1.5, which is not a whole number. .* pass regression=True"),
        (["1"], {"classes": ["1", "inf"]}, r"classes hold inf, which is not a whole number"),
        (["1"], {"classes": [1, 2.0]}, r"classes are words or whole numbers, got 2.0 among \[1, 2.0\]. Write them as"),
        (["1"], {"classes": [False, True]}, r"got False among .*; true and false of a Parquet file are 1 and 0"),
        (["1"], {"classes": [0, None]}, r"classes are words or whole numbers, got None"),
        (["a"], {"classes": ["a", ""]}, r"classes are words or whole numbers, got ''"),
        (["1"], {"classes": "01"}, r"classes should list the values of the label column, .*, got '01'"),
        (["1"], {"classes": 2}, r"classes should list the values of the label column, .*, got 2"),
        (["1"], {"classes": {"a", "b"}}, r"classes should list the values of the label column, .*, got \{"),
        (
            ["1"],
            {"classes": [0, 1], "regression": True},
            r"classes=\[0, 1\] with regression=True: a regression has no classes",
        ),
        (["1"], {"classes": [], "regression": True}, r"classes=\[\] with regression=True: a regression has no classes"),
    ],
)
def test_bad_classes(tmp_path: Path, labels: list[str], arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        labelled(tmp_path, labels, **arguments)


def test_rows_are_counted_over_all_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "ROWS", 3)
    labels = ["a", "b"] * 5
    labels[7] = labels[8] = "c"
    with pytest.raises(ValueError, match=r"label column 'y' holds 'c' in row 8"):
        labelled(tmp_path, labels, classes=["a", "b"])
    with pytest.raises(ValueError, match=r"category 'y' holds 'c' in row 8, which"):
        ap.data.from_csv(tmp_path / "patients.csv", "x", categories={"y": ["a", "b"]})
    with pytest.raises(ValueError, match=r"'x' in 4 of 10 rows is not from 0 to 5 \(first in row 7: 6\)"):
        labelled(tmp_path, labels, ranges={"x": (0, 5)})


def test_tables_that_never_met_agree(tmp_path: Path) -> None:
    told: dict[str, Any] = {
        "features": ["age", "sex"],
        "categories": {"sex": ("f", "m")},
        "site": None,
        "classes": ("no", "yes"),
    }
    whole = patients(tmp_path, **told)
    lines = TABLE.splitlines(keepends=True)
    # the first site has no f and only ill patients, and keeps its columns in another order
    swapped = ["sex,disease,age\n", "m,yes,40\n"]
    parts = [patients(tmp_path, text, **told) for text in ("".join(swapped), "".join([lines[0], lines[1], *lines[3:]]))]
    order = [1, 0, 2, 3, 4]
    assert torch.equal(torch.cat([part.x for part in parts]), whole.x[order])
    assert torch.equal(torch.cat([part.y for part in parts]), whole.y[order])
    assert [part.classes for part in parts] == [2, 2]


def test_a_class_without_rows_can_be_split_and_trained_on(tmp_path: Path) -> None:
    source = labelled(tmp_path, ["b", "d"] * 20, classes=["a", "b", "c", "d", "e"])
    for islands in (source.split(2), source.split(2, test="own"), source.split(2, classes="dirichlet(1)")):
        assert islands.class_table().shape == (2, 5)
        assert islands.class_table().sum(0)[[0, 2, 4]].tolist() == [0, 0, 0]
    assert source.split(2, stimuli=1).classes == 5
    run = ap.simulate(ap.fedavg(batch=8), source.split(2).standardised("global"), ending=ap.Ending(rounds=1))
    assert run.model.isfinite().all()


# ranges of quantities

MEASURED = "height,weight,temperature,y\n" + "".join(
    f"{height},{weight},{temperature},{row % 2}\n"
    for row, (height, weight, temperature) in enumerate([(172, 70, 36.6), (158, 55, 37), (30, 3, 40.1), (250, 99, 36)])
)


def measured(folder: Path, text: str = MEASURED, **arguments: Any) -> Source:
    return ap.data.from_csv(csv(folder, text), label="y", **arguments)


def test_values_inside_their_ranges_change_nothing(tmp_path: Path) -> None:
    bare = measured(tmp_path)
    # the ends belong to it; infinity is no end; whole numbers, lists as TOML has them
    for ranges in ({}, {"height": (30, 250), "weight": [3, 99.0]}, {"height": (0, np.inf), "weight": (-np.inf, 99)}):
        source = measured(tmp_path, ranges=ranges)
        assert torch.equal(source.x, bare.x)
        assert torch.equal(source.y, bare.y)


def test_a_range_is_compared_before_values_are_rounded(tmp_path: Path) -> None:
    text = "v,y\n0.1,0\n0.3,1\n"
    assert float(np.float32(0.1)) > 0.1
    assert measured(tmp_path, text, ranges={"v": (0.1, 0.3)}).x.shape == (2, 1)
    with pytest.raises(
        ValueError, match=r"'v' in 1 of 2 rows is not from 0.1 to 0.3 \(first in row 2: 0.30000000001\)"
    ):
        measured(tmp_path, text.replace("0.3", "0.30000000001"), ranges={"v": (0.1, 0.3)})


@pytest.mark.parametrize(
    ("values", "limits", "error"),
    [
        (
            [1.72, 1.58, 1.8],
            [50, 250],
            r"from_csv: values of 'patients' are outside their ranges: 'v' in 3 of 3 rows is not from 50 to 250 "
            r"\(first in row 1: 1.72; its median x = 1.72 would be inside as 100 x = 172: is it in another unit\?\). "
            r"Convert or correct them, or widen the range",
        ),
        # a slip of the pen, not a unit: the median is inside
        ([172, 1720, 180], [30, 250], r"'v' in 1 of 3 rows is not from 30 to 250 \(first in row 2: 1720\). Convert or"),
        ([1720, 1580, 180], [30, 250], r"'v' in 2 .* median x = 1580 would be inside as x / 10 = 158: is it"),
        ([65, 70, 60], [100, 220], r"inside as 2.54 x = 165.1 or x / 0.4536 = 143.3 or 1.8 x \+ 32 = 149: is it in"),
        ([98.6, 99, 101], [30, 45], r"would be inside as .*\(x - 32\) / 1.8 = 37.22: is it in another unit"),
        ([36.6, 37, 38], [90, 110], r"would be inside as 2.54 x = 93.98 or 1.8 x \+ 32 = 98.6: is it in another unit"),
        ([180, 190, 170], [40, 150], r"would be inside as .*0.4536 x = 81.65"),
        ([70000, 80000, 60000], [2, 300], r"inside as x / 1000 = 70: is it in another unit"),
        (
            [-1, -2, -3],
            [0, 120],
            r"\(first in row 1: -1; its median x = -2 would be inside as 1.8 x \+ 32 = 28.4: is it",
        ),
        ([-100, -200, -300], [0, 120], r"'v' in 3 of 3 rows is not from 0 to 120 \(first in row 1: -100\). Convert"),
        ([5, -1, 1e300], [0, np.inf], r"'v' in 1 of 3 rows is not from 0 to inf \(first in row 2: -1\)"),
    ],
)
def test_values_outside_their_range(tmp_path: Path, values: list[float], limits: list[float], error: str) -> None:
    text = "v,y\n" + "".join(f"{value},{row % 2}\n" for row, value in enumerate(values))
    with pytest.raises(ValueError, match=error):
        measured(tmp_path, text, ranges={"v": limits})


def test_one_error_for_all_ranges(tmp_path: Path) -> None:
    limits = {"weight": (50, 200), "height": (0, 300), "temperature": (36.5, 43)}
    with pytest.raises(
        ValueError,
        match=r"'weight' in 1 of 4 rows is not from 50 to 200 \(first in row 3: 3\), 'temperature' in 1 of 4 rows is "
        r"not from 36.5 to 43 \(first in row 4: 36\). Convert",
    ):
        measured(tmp_path, ranges=limits)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            {"ranges": {"heigth": (1, 2)}},
            r"a column with a range should be one of .* 'heigth'. Did you mean 'height'\?",
        ),
        ({"ranges": {"y": (0, 1)}}, r"a column with a range should be one of height, weight, temperature, got 'y'"),
        ({"ranges": {"weight": (1, 2)}, "features": ["height"]}, r"should be one of height, got 'weight'"),
        (
            {"ranges": {"weight": (1, 2)}, "categories": ["weight"]},
            r"'weight' is a category, and a range is for a quantity. Leave it out of ranges; its values can be listed: "
            r"categories=\{'weight': \[...\]\}",
        ),
        *(
            (
                {"ranges": {"weight": wrong}},
                r"the range of 'weight' should be its lowest and its highest value, such as",
            )
            for wrong in ((2, 1), (1, 1), (1,), (1, 2, 3), 7, "12", ("1", "2"), (False, True), (np.nan, 2), (None, 2))
        ),
        # what is worse is told first
        (
            {"text": MEASURED.replace("172", ""), "ranges": {"height": (1, 2)}},
            r"values are missing or infinite in 1 of",
        ),
        (
            {"text": MEASURED.replace("250", "tall"), "ranges": {"height": (1, 2)}},
            r"'height' holds text, such as 'tall'",
        ),
    ],
)
def test_bad_ranges(tmp_path: Path, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        measured(tmp_path, **arguments)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
@settings(max_examples=40)
def test_a_range_refuses_what_is_outside_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], low: float, width: float
) -> None:
    high = low + width
    text = "v,y\n" + "".join(f"{value!r},{row % 2}\n" for row, value in enumerate(values))
    outside = [row for row, value in enumerate(values, 1) if not low <= value <= high]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "ROWS", 4)
        folder = tmp_path_factory.mktemp("table")
        if not outside:
            assert len(measured(folder, text, ranges={"v": (low, high)}).x) == len(values)
            return
        with pytest.raises(ValueError, match="outside their ranges") as refused:
            measured(folder, text, ranges={"v": (low, high)})
    told = f"'v' in {len(outside)} of {len(values)} rows is not from"
    assert told in str(refused.value)
    assert f"(first in row {outside[0]}: {values[outside[0] - 1]!r}".removesuffix(".0") in str(refused.value)


def test_a_study_says_classes_and_ranges(tmp_path: Path) -> None:
    csv(tmp_path, MEASURED)
    (tmp_path / "study.toml").write_text(
        """
        algorithms = ["fedavg"]
        [data]
        split = { learners = 2, test = "none" }
        [data.source]
        name = "from_csv"
        path = "patients.csv"
        label = "y"
        classes = [1, 0, 2]
        ranges = { height = [30, 250], weight = [0, inf] }
        """
    )
    (run,) = cells(read_study(tmp_path / "study.toml"))
    islands = build_data(run.study).islands
    assert (islands.classes, islands.y.tolist()) == (3, [1, 0, 1, 0])
    (run,) = cells(read_study(tmp_path / "study.toml", changes=["data.source.ranges={height=[30, 200]}"]))
    with pytest.raises(ValueError, match=r"'height' in 1 of 4 rows is not from 30 to 200 \(first in row 4: 250\)"):
        build_data(run.study)
    (run,) = cells(read_study(tmp_path / "study.toml", changes=['data.source.classes=["0", "2"]']))
    with pytest.raises(ValueError, match=r"label column 'y' holds '1' in row 2, which is not among the classes 0, 2"):
        build_data(run.study)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.floats(-1e6, 1e6, width=32), st.sampled_from("abc"), st.integers(-3, 3), st.sampled_from("PQ")),
        min_size=2,
        max_size=40,
    ),
    st.integers(1, 7),
)
@settings(max_examples=40)
def test_a_table_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, str, int, str]], block: int
) -> None:
    path = tmp_path_factory.mktemp("table") / "t.csv"
    path.write_text("v,k,y,s\n" + "".join(",".join(str(value) for value in row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "ROWS", block)
        patch.setattr(units, "UNITS", np.inf)
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


def test_a_large_table_stays_on_disk_and_leaves_nothing(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a,b,y\n" + "".join(f"{row},{row % 7},{row % 2}\n" for row in range(500))
    small = ap.data.from_csv(csv(tmp_path, text), "y")
    monkeypatch.setattr(lazy, "LARGE", 1000)
    monkeypatch.setattr(own, "ROWS", 64)
    large = ap.data.from_csv(tmp_path / "patients.csv", "y")
    assert torch.equal(large.x, small.x)
    large.x[0, 0] = 17
    assert cache() == ["decoded"]


# Parquet


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"from_parquet needs pyarrow: pip install '\.\[parquet\]'"):
        ap.data.from_parquet(tmp_path / "patients.parquet", "disease")


def test_parquet(tmp_path: Path) -> None:
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
    listed = ap.data.from_parquet(
        path, "disease", None, ["age"], classes=["yes", "late", "no"], ranges={"age": (0, 99)}
    )
    assert (listed.y.tolist(), listed.classes) == ([2, 0, 2, 0], 3)
    smokers = ap.data.from_parquet(path, "smoker", features=["age"], classes=[1, 0])
    assert smokers.y.tolist() == [0, 1, 1, 0]
    with pytest.raises(ValueError, match=r"from_parquet: label column 'disease' holds 'yes' in row 2, which is not"):
        ap.data.from_parquet(path, "disease", None, ["age"], classes=["no", "late"])
    with pytest.raises(
        ValueError, match=r"from_parquet: .* 'age' in 1 of 4 rows is not from 0 to 59 \(first in row 4: 60"
    ):
        ap.data.from_parquet(path, "disease", None, ["age"], ranges={"age": (0, 59)})
    with pytest.raises(ValueError, match=r"from_parquet: category 'ward' holds '2' in row 2, which is not among the"):
        ap.data.from_parquet(path, "disease", features=["ward"], categories={"ward": ["1", "3"]})
    parquet.write_table(arrow.table(columns | {"age": [30, None, 50, 60]}), path)
    with pytest.raises(ValueError, match=r"'age' in 1 rows \(first in row 2\)"):
        ap.data.from_parquet(path, "disease", categories=["sex"])
    parquet.write_table(arrow.table(columns | {"age": [[1], [2], [3], [4]]}), path)
    with pytest.raises(ValueError, match=r"column 'age' holds list, such as '\[1\]'; columns are numbers or text"):
        ap.data.from_parquet(path, "disease", categories=["sex"])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"patients.parquet is truncated, damaged or not Parquet"):
        ap.data.from_parquet(path, "disease")

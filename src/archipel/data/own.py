"""Sources from your own files and tables: CSV, Parquet, Hugging Face, and a folder of .npz files."""

from __future__ import annotations

import csv
import importlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.types import TextTask
from archipel.data.in_memory import as_numpy, check_shape, checked_targets, finite, kept_type
from archipel.data.lazy import RowBuffer, remembered
from archipel.data.source import Source
from archipel.data.table import ROWS, Block, Categories, Classes, TableReader
from archipel.data.texts import from_texts
from archipel.data.tokenizers import Tokenizer
from archipel.data.units import warn_of_units

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""Texts that mean a missing value in a CSV file."""


def from_csv(
    path: str | Path,
    label: str,
    site: str | None = None,
    features: Sequence[str] | None = None,
    categories: Categories = (),
    regression: bool = False,
    delimiter: str = ",",
    classes: Classes | None = None,
    ranges: Mapping[str, tuple[float, float]] = {},
) -> Source:
    """Make a source from a CSV file with a header: a column of labels, and optionally one that names the site.

    path: of the file.
    label: column of the labels, whole numbers or words, numbered in their order.
    site: column that names the site; None: there are no sites.
    features: columns of x; None: all others.
    categories: features that are categories, not quantities; each value gets a column of 0 and 1.
    regression: labels are quantities.
    delimiter: character between two columns.
    classes: all values of the label, in the order of their numbers; None: those in the file.
    ranges: lowest and highest plausible value of quantities, such as {"height_cm": [30, 250]}; others are refused.

    If sites have different values of a category, list all of them: `categories={"sex": ("f", "m")}`. If a site does not
    have every class, list the classes: `classes=("healthy", "ill")`.
    """
    path = Path(path)
    header = next(lines(path, delimiter))

    def blocks(columns: Sequence[str]) -> Iterator[Block]:
        places = [header.index(name) for name in columns]
        rows: list[list[str]] = []
        reader = lines(path, delimiter)
        next(reader)
        for row in reader:
            rows.append(row)
            if len(rows) == ROWS:
                yield text_block(rows, columns, places)
                rows = []
        if rows:
            yield text_block(rows, columns, places)

    return TableReader("from_csv", path.stem, header, blocks).source(
        label, site, features, categories, regression, classes, ranges
    )


def lines(path: Path, delimiter: str) -> Iterator[list[str]]:
    """Yield the header and the rows of a CSV file; refuse rows of another width."""
    if not path.is_file():
        raise FileNotFoundError(f"from_csv: there is no file {path}. Give the path of a CSV file with a header.")
    with path.open(newline="", encoding="utf-8-sig") as stream:
        reader = csv.reader(stream, delimiter=delimiter, skipinitialspace=True)
        header: list[str] | None = None
        for row in reader:
            if not row:
                continue
            if header is None:
                header = [name.strip() for name in row]
                twice = sorted({name for name in header if header.count(name) > 1})
                if twice:
                    raise ValueError(f"from_csv: {path} has more than one column {twice[0]!r}. Give each its own name.")
                yield header
                continue
            if len(row) != len(header):
                raise ValueError(
                    f"from_csv: line {reader.line_num} of {path} has {len(row)} fields, the header {len(header)}. "
                    "Is the file truncated, or the delimiter wrong?"
                )
            yield row
        if header is None:
            raise ValueError(f"from_csv: {path} is empty. The first line should name the columns.")


def text_block(rows: Sequence[Sequence[str]], columns: Sequence[str], places: Sequence[int]) -> Block:
    """Return columns of some rows of text; missing values are empty."""
    block = {}
    for name, place in zip(columns, places, strict=True):
        values = np.strings.strip(np.array([row[place] for row in rows]))
        values[np.isin(values, MISSING)] = ""
        block[name] = values
    return block


def from_parquet(
    path: str | Path,
    label: str,
    site: str | None = None,
    features: Sequence[str] | None = None,
    categories: Categories = (),
    regression: bool = False,
    classes: Classes | None = None,
    ranges: Mapping[str, tuple[float, float]] = {},
) -> Source:
    """Make a source from a Parquet file: a column of labels, and optionally one that names the site. Needs pyarrow.

    path: of the file.
    label: column of the labels, whole numbers or words, numbered in their order.
    site: column that names the site; None: there are no sites.
    features: columns of x; None: all others.
    categories: features that are categories, not quantities; each value gets a column of 0 and 1.
    regression: labels are quantities.
    classes: all values of the label, in the order of their numbers; None: those in the file.
    ranges: lowest and highest plausible value of quantities, such as {"height_cm": [30, 250]}; others are refused.
    """
    try:
        # imported late, and by name because it has no types: it is an extra
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(
            "from_parquet needs pyarrow: pip install '.[parquet]' in the source folder. "
            "Or write the table as CSV and use from_csv."
        ) from error
    path = Path(path)
    try:
        file = parquet.ParquetFile(path)
    except arrow.ArrowInvalid as error:
        raise ValueError(f"from_parquet: {path} is truncated, damaged or not Parquet: {error}.") from error

    def blocks(columns: Sequence[str]) -> Iterator[Block]:
        for batch in file.iter_batches(ROWS, columns=list(columns)):
            # by name: batches have columns in the order of the file
            yield {name: plain("from_parquet", name, batch.column(name).to_pylist()) for name in columns}

    return TableReader("from_parquet", path.stem, list(file.schema_arrow.names), blocks).source(
        label, site, features, categories, regression, classes, ranges
    )


def from_hf(
    dataset: Any,
    label: str = "label",
    site: str | None = None,
    features: Sequence[str] | None = None,
    categories: Categories = (),
    regression: bool = False,
    name: str = "hf",
    classes: Classes | None = None,
    ranges: Mapping[str, tuple[float, float]] = {},
    tokenizer: str | Path | Tokenizer | None = None,
    task: TextTask = "sequence-classification",
    length: int = 128,
) -> Source:
    """Make a source from a Hugging Face `datasets.Dataset`; the arguments are those of `from_csv`.

    tokenizer, task, length: of a column of texts, which `features` names, as for `from_texts`; None: no texts.

    If the only feature holds an image or an array in each row, images become [channels, height, width] with values from
    0 to 1, and arrays are stacked.
    """
    # duck typing: the package need not be installed
    if not isinstance(getattr(dataset, "column_names", None), list) or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"from_hf: a datasets.Dataset is needed, got {type(dataset).__name__}. Of a DatasetDict take a part, such "
            "as dataset['train']; convert a streamed one first, with datasets.Dataset.from_generator."
        )
    header = list(dataset.column_names)
    if tokenizer is not None:
        return _texts(dataset, label, site, features, name, classes, tokenizer, task, length)

    def pages(columns: Sequence[str]) -> Iterator[Mapping[str, Sequence[Any]]]:
        for start in range(0, len(dataset), ROWS // 16):
            rows = dataset[start : start + ROWS // 16]
            yield {column: rows[column] for column in columns}

    def blocks(columns: Sequence[str]) -> Iterator[Block]:
        for page in pages(columns):
            yield {column: plain("from_hf", column, page[column]) for column in columns}

    table = TableReader("from_hf", name, header, blocks)
    chosen = table.choose(label, site, features)
    if len(chosen) != 1 or not len(dataset) or scalar(dataset[0:1][chosen[0]][0]):
        return table.source(label, site, features, categories, regression, classes, ranges)
    if ranges:
        raise ValueError(
            f"from_hf: column {chosen[0]!r} holds images or arrays, and a range is for a column of numbers. Leave "
            "ranges out."
        )
    rest = table.source(label, site, (), (), regression, classes, {})
    entries = (entry for page in pages(chosen) for entry in page[chosen[0]])
    return replace(rest, x=stacked(entries, len(dataset)))


def _texts(
    dataset: Any,
    label: str,
    site: str | None,
    features: Sequence[str] | None,
    name: str,
    classes: Classes | None,
    tokenizer: str | Path | Tokenizer,
    task: TextTask,
    length: int,
) -> Source:
    """Return a source of the texts in one column."""
    (column,) = features if features is not None and len(features) == 1 else ("text",)
    wanted = [column, *([label] if task.endswith("classification") else []), *([] if site is None else [site])]
    lacking = [one for one in wanted if one not in dataset.column_names]
    if lacking:
        raise ValueError(
            f"from_hf: there is no column {lacking[0]!r} for texts of {task}; columns: "
            f"{', '.join(dataset.column_names)}. Name it with features=[...], label=... or site=...."
        )
    texts, *rest = (list(dataset[one]) for one in wanted)
    labels = rest.pop(0) if task.endswith("classification") else None
    return from_texts(texts, tokenizer, task, labels, rest[0] if rest else None, length, classes, name=name)


def stacked(entries: Iterator[Any], count: int) -> Tensor:
    """Return images or arrays of one shape as one tensor."""
    rows: RowBuffer | None = None
    for entry in entries:
        array = image(entry)
        if rows is None:
            rows = RowBuffer(array.shape, kept_type(array), expected=count)
        check_shape("from_hf", rows, array)
        rows.add(array[None])
    assert rows is not None, "there is a row"
    return finite("from_hf", rows)


def plain(owner: str, name: str, values: Sequence[Any]) -> NDArray[Any]:
    """Return a column of Python values as text or numbers."""
    present = [value for value in values if value is not None]
    if all(isinstance(value, str) for value in present) and present:
        return np.array(["" if value is None else value for value in values])
    if all(isinstance(value, bool | int | float | np.number) for value in present):
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    odd = next(value for value in present if not isinstance(value, bool | int | float | np.number))
    raise ValueError(
        f"{owner}: column {name!r} holds {type(odd).__name__}, such as {str(odd)[:40]!r}; columns are numbers or text. "
        "Convert it, or leave it out with features=[...]."
    )


def scalar(value: object) -> bool:
    """Return whether a value is a single number or text."""
    return value is None or isinstance(value, str | bool | int | float | np.number)


def image(value: Any) -> NDArray[Any]:
    """Return an array, or an image with its channels first and values from 0 to 1."""
    try:
        array = as_numpy(value)
    except ValueError as error:
        raise ValueError(
            f"from_hf: a row holds lists of different lengths: {error}. Cut them to one length."
        ) from error
    # only an image of PIL has bands
    if hasattr(value, "getbands"):
        array = (array[None] if array.ndim == 2 else array.transpose(2, 0, 1)).astype(np.float32) / 255
    return array


def from_npz_folder(folder: str | Path, name: str | None = None) -> Source:
    """Make a source from a folder of .npz files, one for each site, with arrays x and y.

    folder: of the files, whose names are the names of the sites.
    name: of the source; None: that of the folder.

    x becomes float32; whole-number y are classes, others quantities.
    """
    folder = Path(folder)
    files = sorted(folder.glob("*.npz")) if folder.is_dir() else []
    if len(files) < 2:
        there = f"{len(files)} .npz file" if folder.is_dir() else "no such folder"
        raise ValueError(
            f"from_npz_folder: {folder} should hold an .npz for each of two or more sites, got {there}. For a single "
            "array use from_arrays."
        )
    title = name or folder.resolve().name

    def decode(home: Path | None) -> Source:
        rows: RowBuffer | None = None
        targets: list[NDArray[Any]] = []
        for path in files:
            x, y = site_arrays(path)
            if rows is None:
                rows = RowBuffer(x.shape[1:], folder=home)
            elif x.shape[1:] != rows.shape or y.dtype.kind != targets[0].dtype.kind:
                raise ValueError(
                    f"from_npz_folder: {path} holds x of shape {x.shape} and y of {y.dtype}, but {files[0]} has "
                    f"examples of shape {rows.shape} and y of {targets[0].dtype}. All sites need the same."
                )
            rows.add(x)
            targets.append(y)
        assert rows is not None, "there are two files or more"
        y = np.concatenate(targets)
        where = np.repeat(np.arange(len(files)), [len(part) for part in targets])
        return Source(
            rows.tensor(),
            torch.from_numpy(y),
            int(y.max()) + 1 if y.dtype.kind == "i" else None,
            title,
            sites=torch.from_numpy(where),
            site_names=tuple(path.stem for path in files),
        )

    source = remembered("npz", files, title, decode)
    if source.x.ndim == 2 and source.sites is not None:
        columns = {str(at): at for at in range(source.x.shape[1])}
        warn_of_units("from_npz_folder", source.x, source.sites.numpy(), source.site_names, columns)
    return source


def site_arrays(path: Path) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return the examples and labels of one site."""
    try:
        with np.load(path) as content:
            if not {"x", "y"} <= set(content.files):
                raise ValueError(f"it holds {', '.join(content.files) or 'nothing'}, not x and y")
            x, y = content["x"], content["y"]
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise ValueError(f"from_npz_folder: {path} cannot be read: {error}.") from error
    if x.dtype.kind not in "fiub" or y.dtype.kind not in "fiub" or not len(x) or len(x) != len(y):
        raise ValueError(
            f"from_npz_folder: {path} should hold numbers x and y, one y for each x, got x of {x.dtype} and shape "
            f"{x.shape}, y of {y.dtype} and shape {y.shape}."
        )
    features = x.astype(np.float32)
    wrong = int((~np.isfinite(features)).sum() + (~np.isfinite(y)).sum())
    if wrong:
        raise ValueError(
            f"from_npz_folder: {path} has {wrong} values that are missing (NaN) or infinite. Fill them in, or leave "
            "those examples out."
        )
    return features, checked_targets("from_npz_folder", str(path), y)

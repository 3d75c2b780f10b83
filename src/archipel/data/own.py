"""Your own data: tables (CSV, Parquet, Hugging Face), a folder of .npz, any map-style torch Dataset."""

from __future__ import annotations

import csv
import importlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.data.lazy import Rows, remembered
from archipel.data.source import Source, as_numpy
from archipel.data.table import ROWS, Block, Categories, Classes, Table, code, in_order, warn_of_units

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""What stands for a missing value in a CSV."""


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
    """A source from a CSV file with a header: a column of labels, perhaps one that names the site.

    path: of the file.
    label: column of the labels, whole numbers or words, numbered in their order.
    site: column that names the site; None: there are no sites.
    features: columns of x; None: all others.
    categories: features that are kinds, not quantities; each value gets a column of 0 and 1.
    regression: labels are quantities.
    delimiter: between two columns.
    classes: all values of the label, in the order of their numbers; None: those that are there.
    ranges: lowest and highest plausible value of quantities, such as {"height_cm": [30, 250]}; others are refused.

    Where sites know different values of a category, list them all: `categories={"sex": ("f", "m")}`; and where one
    does not know every class, those: `classes=("healthy", "ill")`.
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

    return Table("from_csv", path.stem, header, blocks).source(
        label, site, features, categories, regression, classes, ranges
    )


def lines(path: Path, delimiter: str) -> Iterator[list[str]]:
    """The rows of a CSV file, all as wide as its header."""
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
                    "Is the file cut short, or the delimiter another one?"
                )
            yield row
        if header is None:
            raise ValueError(f"from_csv: {path} is empty. The first line should name the columns.")


def text_block(rows: Sequence[Sequence[str]], columns: Sequence[str], places: Sequence[int]) -> Block:
    """Columns of some rows of text, with missing values empty."""
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
    """A source from a Parquet file: a column of labels, perhaps one that names the site. Needs pyarrow.

    path: of the file.
    label: column of the labels, whole numbers or words, numbered in their order.
    site: column that names the site; None: there are no sites.
    features: columns of x; None: all others.
    categories: features that are kinds, not quantities; each value gets a column of 0 and 1.
    regression: labels are quantities.
    classes: all values of the label, in the order of their numbers; None: those that are there.
    ranges: lowest and highest plausible value of quantities, such as {"height_cm": [30, 250]}; others are refused.
    """
    try:
        # imported late and by name: it is an extra
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(
            "from_parquet needs pyarrow: pip install 'archipel[parquet]'. Or write the table as CSV and use from_csv."
        ) from error
    path = Path(path)
    try:
        file = parquet.ParquetFile(path)
    except arrow.ArrowInvalid as error:
        raise ValueError(f"from_parquet: {path} is cut short, damaged or not Parquet: {error}.") from error

    def blocks(columns: Sequence[str]) -> Iterator[Block]:
        for batch in file.iter_batches(ROWS, columns=list(columns)):
            # by name: Parquet gives columns in the order of the file
            yield {name: plain("from_parquet", name, batch.column(name).to_pylist()) for name in columns}

    return Table("from_parquet", path.stem, list(file.schema_arrow.names), blocks).source(
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
) -> Source:
    """A source from a Hugging Face `datasets.Dataset`; everything else as for `from_csv`.

    One feature may hold an image or an array in each row: images become [channels, height, width] from 0 to 1,
    arrays are stacked.
    """
    # known by what it does, not by its class: the package need not be installed
    if not isinstance(getattr(dataset, "column_names", None), list) or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"from_hf: a datasets.Dataset is needed, got {type(dataset).__name__}. Of a DatasetDict take a part, such "
            "as dataset['train']; make a streamed one a Dataset first, with datasets.Dataset.from_generator."
        )
    header = list(dataset.column_names)

    def pages(columns: Sequence[str]) -> Iterator[Mapping[str, Sequence[Any]]]:
        for start in range(0, len(dataset), ROWS // 16):
            rows = dataset[start : start + ROWS // 16]
            yield {column: rows[column] for column in columns}

    def blocks(columns: Sequence[str]) -> Iterator[Block]:
        for page in pages(columns):
            yield {column: plain("from_hf", column, page[column]) for column in columns}

    table = Table("from_hf", name, header, blocks)
    chosen = table.choose(label, site, features)
    if len(chosen) != 1 or not len(dataset) or scalar(dataset[0:1][chosen[0]][0]):
        return table.source(label, site, features, categories, regression, classes, ranges)
    if ranges:
        raise ValueError(
            f"from_hf: column {chosen[0]!r} holds images or arrays, and a range is for a column of numbers. Leave "
            "ranges out."
        )
    rest = table.source(label, site, (), (), regression, classes, {})
    first = image(dataset[0:1][chosen[0]][0])
    rows = Rows(first.shape, keep_whole(first), expected=len(dataset))
    for page in pages(chosen):
        for entry in page[chosen[0]]:
            array = image(entry)
            same_shape("from_hf", rows, array)
            rows.add(array[None])
    return Source(finite("from_hf", rows), rest.y, rest.classes, name, sites=rest.sites, site_names=rest.site_names)


def plain(owner: str, name: str, values: Sequence[Any]) -> NDArray[Any]:
    """A column of Python values as text or numbers."""
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
    """Whether a value is one number or text."""
    return value is None or isinstance(value, str | bool | int | float | np.number)


def image(value: Any) -> NDArray[Any]:
    """An array, or an image with its channels first and values from 0 to 1."""
    try:
        array = as_numpy(value)
    except ValueError as error:
        raise ValueError(
            f"from_hf: a row holds lists of different lengths: {error}. Cut them to one length."
        ) from error
    # an image of PIL says which bands it has
    if hasattr(value, "getbands"):
        array = (array[None] if array.ndim == 2 else array.transpose(2, 0, 1)).astype(np.float32) / 255
    return array


def from_npz_folder(folder: str | Path, name: str | None = None) -> Source:
    """A source from a folder of .npz files, one for each site, with arrays x and y.

    folder: of the files; sites are called by them.
    name: what the source is called; None: as the folder.

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
        rows: Rows | None = None
        targets: list[NDArray[Any]] = []
        for path in files:
            x, y = site_arrays(path)
            if rows is None:
                rows = Rows(x.shape[1:], folder=home)
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
    """The examples and labels of one site."""
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
    return features, targets_of("from_npz_folder", str(path), y)


def targets_of(owner: str, what: str, y: NDArray[Any]) -> NDArray[Any]:
    """Labels as int64, quantities as float32."""
    if y.dtype.kind == "f":
        if (y == np.round(y)).all():
            raise ValueError(
                f"{owner}: the labels of {what} are floats that are all whole numbers, such as {y.flat[0]}. For "
                "classes store them as int64."
            )
        return y.astype(np.float32)
    if y.ndim != 1 or y.min() < 0:
        raise ValueError(
            f"{owner}: the labels of {what} should be whole numbers from 0 in one dimension, got shape {y.shape} from "
            f"{y.min()} on. Number the classes from 0."
        )
    return y.astype(np.int64)


def from_dataset(dataset: Any, sites: Sequence[object] | None = None, name: str = "dataset") -> Source:
    """A source from a map-style torch Dataset whose items are pairs (x, y), such as torchvision's.

    x is a tensor, an array or a number; int64 stays (token ids), everything else becomes float32. `sites` names
    the site of every item.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"from_dataset: {type(dataset).__name__} has no length or no items by number. Only a map-style Dataset can "
            "be split; list() an iterable one first."
        )
    if len(dataset) == 0:
        raise ValueError("from_dataset: the dataset is empty. Give at least one item.")
    rows: Rows | None = None
    targets: list[Any] = []
    for place in range(len(dataset)):
        x, y = item(dataset, place)
        if rows is None:
            rows = Rows(x.shape, keep_whole(x), expected=len(dataset))
        same_shape("from_dataset", rows, x)
        rows.add(x[None])
        targets.append(y)
    assert rows is not None, "there is an item"
    y = targets_of("from_dataset", name, np.array(targets))
    features = finite("from_dataset", rows)
    codes, names = site_codes(sites, len(y))
    return Source(
        features,
        torch.from_numpy(y),
        int(y.max()) + 1 if y.dtype.kind == "i" else None,
        name,
        sites=codes,
        site_names=names,
    )


def item(dataset: Any, place: int) -> tuple[NDArray[Any], Any]:
    """One item as an array and a number."""
    pair = dataset[place]
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(
            f"from_dataset: item {place} should be a pair (x, y), got {type(pair).__name__}. Wrap the dataset "
            "in one that gives pairs."
        )
    x, y = pair
    array = as_numpy(x)
    values = as_numpy(y)
    target = values.item() if values.size == 1 else None
    if array.dtype.kind not in "fiub" or not isinstance(target, bool | int | float) or hasattr(x, "getbands"):
        raise ValueError(
            f"from_dataset: item {place} should be numbers and one label, got x of {type(x).__name__} and y of "
            f"{type(y).__name__}. For images pass transform=torchvision.transforms.ToTensor()."
        )
    return array, target


def keep_whole(x: NDArray[Any]) -> type[np.int64] | type[np.float32]:
    """The type in which x is kept."""
    return np.int64 if x.dtype == np.int64 and x.ndim else np.float32


def same_shape(owner: str, rows: Rows, x: NDArray[Any]) -> None:
    """Refuse an example that has another shape than the first."""
    if x.shape != rows.shape:
        raise ValueError(
            f"{owner}: item {rows.count} has shape {x.shape}, the first {rows.shape}. Scale or cut them to one shape."
        )


def finite(owner: str, rows: Rows) -> Tensor:
    """All examples, refused when a value is not finite."""
    x = rows.tensor()
    if x.is_floating_point() and not all(bool(part.isfinite().all()) for part in x.split(ROWS)):
        raise ValueError(f"{owner}: some x are NaN or infinite. Fill them in, or leave those items out.")
    return x


def site_codes(sites: Sequence[object] | None, examples: int) -> tuple[Tensor | None, tuple[str, ...]]:
    """The number of every example's site, and the names."""
    if sites is None:
        return None, ()
    if len(sites) != examples:
        raise ValueError(f"from_dataset: {len(sites)} sites for {examples} items. Name the site of every item.")
    told = np.array([str(site) for site in sites])
    names = in_order(dict.fromkeys(told.tolist()))
    if len(names) == 1:
        raise ValueError(
            f"from_dataset: all items are at one site, {names[0]!r}. Leave sites out and split the data over learners."
        )
    return torch.from_numpy(code(told, {site: place for place, site in enumerate(names)})), tuple(names)

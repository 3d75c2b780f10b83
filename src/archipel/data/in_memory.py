"""Sources from data in memory: arrays, tensors, and map-style torch datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.data.columns import code, in_order
from archipel.data.lazy import RowBuffer
from archipel.data.source import Source

Sites: TypeAlias = NDArray[Any] | Tensor | Sequence[object]
"""One label of any kind, such as a string or an int, for every example."""

CHUNK = 2**14
"""Examples checked at a time."""


def from_arrays(
    x: NDArray[Any] | Tensor,
    y: NDArray[Any] | Tensor,
    name: str = "arrays",
    sites: Sites | None = None,
    tokens: bool = False,
) -> Source:
    """Make a source from numpy arrays or tensors.

    x, y: examples and their labels; whole-number labels are classes, float labels a regression.
    name: of the source.
    sites: label of every example's site, such as a string or an int, for `natural`; None: there are no sites.
    tokens: keep x as int64, for token ids; otherwise x becomes float32.
    """
    features, labels = as_numpy(x), as_numpy(y)
    for what, values in (("x", features), ("y", labels)):
        if values.dtype.kind not in "fiub" or values.ndim == 0:
            raise ValueError(
                f"from_arrays: {what} must be an array of numbers, got {values.dtype} of shape "
                f"{values.shape}. Encode text and categories as numbers first."
            )
    if len(features) != len(labels):
        raise ValueError(
            f"from_arrays: x has {len(features)} examples, y has {len(labels)}. Give one label per example."
        )
    if len(features) == 0:
        raise ValueError("from_arrays: x and y are empty. Give at least one example.")
    codes, names = site_codes("from_arrays", sites, len(labels))
    inputs = int64_tokens(features) if tokens else float32("x", features)
    targets = array_targets(labels)
    classes = None if targets.is_floating_point() else int(targets.max()) + 1
    return Source(inputs, targets, classes, name, sites=codes, site_names=names)


def array_targets(labels: NDArray[Any]) -> Tensor:
    """Return class labels as int64 and targets of a regression as float32."""
    if labels.dtype.kind == "f":
        targets = float32("y", labels)
        if (labels == np.round(labels)).all():
            raise ValueError(
                f"from_arrays: y holds floats that are all whole numbers, such as {labels.flat[0]}. "
                "For classes pass y.astype('int64') (y.long() in torch); for a regression make "
                "Source(x, y, classes=None, name=...) directly."
            )
        return targets
    if labels.ndim != 1:
        raise ValueError(
            f"from_arrays: class labels must have one dimension, got shape {labels.shape}. "
            "Pass y.ravel(), or y.argmax(1) when the labels are one-hot."
        )
    if labels.min() < 0:
        raise ValueError(
            f"from_arrays: y holds the negative label {labels.min()}. Number the classes from 0, "
            "for example with np.unique(y, return_inverse=True)[1]."
        )
    return torch.from_numpy(labels.astype(np.int64))


def int64_tokens(features: NDArray[Any]) -> Tensor:
    """Return a copy of token ids as int64; refuse anything but whole numbers from 0."""
    if features.dtype.kind not in "iu" or features.min() < 0:
        raise ValueError(
            f"from_arrays: tokens=True needs x of whole numbers from 0, got {features.dtype} from {features.min()}. "
            "Leave tokens out for measurements."
        )
    return torch.from_numpy(features.astype(np.int64, order="C"))


def as_numpy(values: NDArray[Any] | Tensor) -> NDArray[Any]:
    """Return the values as a numpy array."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        # numpy has no bfloat16
        return (values.float() if values.is_floating_point() else values).numpy()
    return np.asarray(values)


def float32(what: str, values: NDArray[Any]) -> Tensor:
    """Return a copy of the values as a float32 tensor; refuse values that are not finite."""
    # a copy: later changes of the array must not change the data of a run
    tensor = torch.from_numpy(values.astype(np.float32, order="C"))
    wrong = int((~tensor.isfinite()).sum())
    if wrong:
        raise ValueError(
            f"from_arrays: {what} holds {wrong} values of {tensor.numel()} that are NaN or infinite in "
            "float32. Fill them in, or leave those examples out."
        )
    return tensor


def site_codes(owner: str, sites: Sites | None, examples: int) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return the number of every example's site, and the names of the sites."""
    if sites is None:
        return None, ()
    # arrays, tensors and columns of pandas
    labels = as_numpy(sites).tolist() if hasattr(sites, "__array__") else sites  # type: ignore[arg-type]
    if isinstance(labels, str) or not isinstance(labels, Sequence) or len(labels) != examples:
        got = f"{len(labels)} labels" if isinstance(labels, list | tuple) else repr(labels)[:60]
        raise ValueError(
            f"{owner}: sites should have one label for each of the {examples} examples, got {got}. Give the site of "
            "every example."
        )
    for place, label in enumerate(labels):
        if isinstance(label, list | tuple):
            raise ValueError(
                f"{owner}: the site of example {place} is {label!r}. Give one label, such as 'berlin' or 3."
            )
        if label is None or label == "" or label != label:
            raise ValueError(f"{owner}: the site of example {place} is missing. Name it, or leave the example out.")
    texts = np.array([str(label) for label in labels])
    names = in_order(dict.fromkeys(texts.tolist()))
    if len(names) == 1:
        raise ValueError(
            f"{owner}: all examples are at one site, {names[0]!r}. Leave sites out and split the data over learners."
        )
    return torch.from_numpy(code(texts, {site: place for place, site in enumerate(names)})), tuple(names)


def from_dataset(dataset: Any, sites: Sites | None = None, name: str = "dataset") -> Source:
    """Make a source from a map-style torch Dataset whose items are pairs (x, y), such as torchvision's.

    dataset: its x are tensors, arrays or numbers; int64 stays (token ids), everything else becomes float32.
    sites: label of every item's site, such as a string or an int; None: there are no sites.
    name: of the source.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"from_dataset: {type(dataset).__name__} has no length or no items by number. Only a map-style Dataset can "
            "be split; list() an iterable one first."
        )
    if len(dataset) == 0:
        raise ValueError("from_dataset: the dataset is empty. Give at least one item.")
    rows: RowBuffer | None = None
    targets: list[Any] = []
    for place in range(len(dataset)):
        x, y = item(dataset, place)
        if rows is None:
            rows = RowBuffer(x.shape, kept_type(x), expected=len(dataset))
        check_shape("from_dataset", rows, x)
        rows.add(x[None])
        targets.append(y)
    assert rows is not None, "there is an item"
    y = checked_targets("from_dataset", name, np.array(targets))
    features = finite("from_dataset", rows)
    codes, names = site_codes("from_dataset", sites, len(y))
    classes = int(y.max()) + 1 if y.dtype.kind == "i" else None
    return Source(features, torch.from_numpy(y), classes, name, sites=codes, site_names=names)


def item(dataset: Any, place: int) -> tuple[NDArray[Any], Any]:
    """Return one item of a dataset as an array and a number."""
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


def checked_targets(owner: str, what: str, y: NDArray[Any]) -> NDArray[Any]:
    """Return class labels as int64 and targets of a regression as float32."""
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


def kept_type(x: NDArray[Any]) -> type[np.int64] | type[np.float32]:
    """Return the dtype in which x is kept."""
    return np.int64 if x.dtype == np.int64 and x.ndim else np.float32


def check_shape(owner: str, rows: RowBuffer, x: NDArray[Any]) -> None:
    """Refuse an example whose shape differs from the first one's."""
    if x.shape != rows.shape:
        raise ValueError(
            f"{owner}: item {rows.count} has shape {x.shape}, the first {rows.shape}. Scale or cut them to one shape."
        )


def finite(owner: str, rows: RowBuffer) -> Tensor:
    """Return all examples; refuse values that are not finite."""
    x = rows.tensor()
    if x.is_floating_point() and not all(bool(part.isfinite().all()) for part in x.split(CHUNK)):
        raise ValueError(f"{owner}: some x are NaN or infinite. Fill them in, or leave those items out.")
    return x

"""Weighted sums of models, in C (`merge.c`) and in torch.

Both give the same bits: rows are added in order, each by a multiplication and an addition, fused if the processor can.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence, Sized
from ctypes import CDLL, c_double, c_float, c_int, c_long, c_void_p
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.checks import require
from archipel.core.layout import CHUNK, chunks
from archipel.kernels.native.library import library

Places: TypeAlias = NDArray[np.uint64]
"""Addresses of vectors in memory."""

IN_CACHE = 1 << 18
"""Numbers of a float64 sum that torch updates at a time: they stay in the cache from one operation to the next."""

WORTH_THREADS = 1 << 18
"""Numbers to add: one thread adds fewer before a second one wakes up."""


def place(vector: Tensor) -> int | None:
    """Return the address of a vector, or None if it is not contiguous float32 in memory."""
    return vector.data_ptr() if _contiguous(vector, torch.float32) else None


def add_rows(
    into: Tensor,
    rows: Sequence[Tensor],
    weights: Sequence[float],
    piece: slice = slice(None),
    *,
    from_nothing: bool = False,
) -> None:
    """Add weights x rows, row after row, to a sum or to a piece of it; from nothing: to zeros."""
    _require_as_many(rows, weights)
    if library() is None or not (_contiguous(into, torch.float32) and _all_contiguous(rows, into.numel())):
        add_rows_in_torch(into, rows, weights, piece, from_nothing=from_nothing)
    else:
        places = np.array([row.data_ptr() for row in rows], np.uint64)
        add_rows_at(into, places, weights, piece, from_nothing=from_nothing)


def add_rows_at(
    into: Tensor,
    places: Places,
    weights: Sequence[float],
    piece: slice = slice(None),
    *,
    from_nothing: bool = False,
) -> None:
    """Add rows given by their `place`; each must be as long as the sum."""
    _require_as_many(places, weights)
    require(
        _contiguous(into, torch.float32),
        "Rows given by their places can only be added to contiguous float32 in memory; this sum is "
        f"{into.dtype} with strides {into.stride()} on {into.device}. Use add_rows.",
    )
    native, numbers = library(), into.numel()
    if native is None:
        rows = [torch.frombuffer((c_float * numbers).from_address(at), dtype=torch.float32) for at in places.tolist()]
        add_rows_in_torch(into, rows, weights, piece, from_nothing=from_nothing)
        return
    start, stop, _ = piece.indices(numbers)
    factors = array("d", weights)
    _declared(native).archipel_add_rows(
        into.data_ptr(),
        places.ctypes.data,
        factors.buffer_info()[0],
        len(places),
        from_nothing,
        start,
        stop,
        _threads(stop - start, places),
    )


def add_rows_in_torch(
    into: Tensor, rows: Sequence[Tensor], weights: Sequence[float], piece: slice = slice(None), *, from_nothing: bool
) -> None:
    start, stop, _ = piece.indices(into.numel())
    for chunk in chunks([slice(start, stop)], CHUNK):
        running = into[chunk]
        if from_nothing:
            running.zero_()
        for row, p in zip(rows, weights, strict=True):
            running.add_(row[chunk], alpha=p)


def commit(
    total: Tensor,
    rows: Sequence[Tensor],
    weights: Sequence[float],
    *,
    from_nothing: bool = False,
    mean: Tensor | None = None,
    weight: float = 1.0,
) -> list[float]:
    """Add weights x rows to a float64 sum and write sum / weight to the mean, if given.

    Return the largest magnitude of each row.
    """
    _require_as_many(rows, weights)
    native = library()
    means = () if mean is None else (mean,)
    if native is None or not (_contiguous(total, torch.float64) and _all_contiguous((*means, *rows), total.numel())):
        return commit_in_torch(total, rows, weights, from_nothing=from_nothing, mean=mean, weight=weight)
    places, factors = array("Q", [row.data_ptr() for row in rows]), array("d", weights)
    largest = array("f", bytes(4 * len(rows)))
    _declared(native).archipel_commit(
        total.data_ptr(),
        places.buffer_info()[0],
        factors.buffer_info()[0],
        len(rows),
        from_nothing,
        total.numel(),
        largest.buffer_info()[0],
        None if mean is None else mean.data_ptr(),
        weight,
        _threads(total.numel(), rows),
    )
    return largest.tolist()


def commit_in_torch(
    total: Tensor,
    rows: Sequence[Tensor],
    weights: Sequence[float],
    *,
    from_nothing: bool,
    mean: Tensor | None,
    weight: float,
) -> list[float]:
    for piece in chunks([slice(0, len(total))], IN_CACHE):
        running = total[piece]
        scratch = torch.empty_like(running)
        if from_nothing:
            running.zero_()
        for row, p in zip(rows, weights, strict=True):
            running.add_(scratch.copy_(row[piece]), alpha=p)
        if mean is not None:
            mean[piece].copy_(torch.div(running, weight, out=scratch))
    return [_largest(row) for row in rows]


def _largest(row: Tensor) -> float:
    low, high = torch.aminmax(row)
    return max(-float(low), float(high))


def _require_as_many(rows: Sized, weights: Sized) -> None:
    require(len(rows) == len(weights), f"There are {len(rows)} rows and {len(weights)} weights; each row needs one.")


def _contiguous(vector: Tensor, dtype: torch.dtype) -> bool:
    """Return whether the numbers are of this type, in memory and contiguous."""
    return vector.dtype is dtype and vector.is_contiguous() and vector.is_cpu


def _all_contiguous(vectors: Iterable[Tensor], numbers: int) -> bool:
    """Return whether C can access so many numbers of each; if not, torch adds them or raises an error."""
    return all(_contiguous(vector, torch.float32) and vector.numel() == numbers for vector in vectors)


def _threads(numbers: int, rows: Sized) -> int:
    return torch.get_num_threads() if numbers * len(rows) >= WORTH_THREADS else 1


@cache
def _declared(native: CDLL) -> CDLL:
    """Return the library with the argument types of these functions."""
    sums: list[Any] = [c_void_p, c_void_p, c_void_p, c_long, c_int]
    native.archipel_add_rows.argtypes = [*sums, c_long, c_long, c_int]
    native.archipel_commit.argtypes = [*sums, c_long, c_void_p, c_void_p, c_double, c_int]
    return native

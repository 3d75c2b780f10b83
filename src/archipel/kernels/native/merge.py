"""`merge.c` from Python, and the same in torch: sums of models.

Every number has the same bits in both: rows are added in their order, each by a multiplication and an addition that are
rounded once if the processor can.
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
"""Where vectors begin in memory."""

IN_CACHE = 1 << 18
"""Numbers of a wide sum that torch changes at a time: they stay in the cache from one operation to the next."""

WORTH_THREADS = 1 << 18
"""Numbers to be added: fewer are added before another thread is awake."""


def place(vector: Tensor) -> int | None:
    """Where a vector begins in memory; None if it is not there as float32 numbers, one behind the other."""
    return vector.data_ptr() if _in_one_piece(vector, torch.float32) else None


def add_rows(
    into: Tensor,
    rows: Sequence[Tensor],
    weights: Sequence[float],
    piece: slice = slice(None),
    *,
    from_nothing: bool = False,
) -> None:
    """Add weights x rows, one row after the other, all of them or a piece; from nothing: to zeros."""
    _as_many(rows, weights)
    if library() is None or not (_in_one_piece(into, torch.float32) and _lie_well(rows, into.numel())):
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
    """The same, if it is known of every row where its `place` is and that it is as long as the sum."""
    _as_many(places, weights)
    require(
        _in_one_piece(into, torch.float32),
        "Rows by their places can be added to float32 numbers in memory, one behind the other; this sum is of "
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
    """The same to a sum in float64, which is divided by a weight into the mean, if there is one to be written.

    How large the largest number of each row is.
    """
    _as_many(rows, weights)
    native = library()
    means = () if mean is None else (mean,)
    if native is None or not (_in_one_piece(total, torch.float64) and _lie_well((*means, *rows), total.numel())):
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
        wide = torch.empty_like(running)
        if from_nothing:
            running.zero_()
        for row, p in zip(rows, weights, strict=True):
            running.add_(wide.copy_(row[piece]), alpha=p)
        if mean is not None:
            mean[piece].copy_(torch.div(running, weight, out=wide))
    return [_largest(row) for row in rows]


def _largest(row: Tensor) -> float:
    low, high = torch.aminmax(row)
    return max(-float(low), float(high))


def _as_many(rows: Sized, weights: Sized) -> None:
    require(len(rows) == len(weights), f"There are {len(rows)} rows and {len(weights)} weights; each row needs one.")


def _in_one_piece(vector: Tensor, kind: torch.dtype) -> bool:
    """In memory, of this type, one number behind the other."""
    return vector.dtype is kind and vector.is_contiguous() and vector.is_cpu


def _lie_well(vectors: Iterable[Tensor], numbers: int) -> bool:
    """C can read or write so many numbers of each; if not, torch knows what to do or say."""
    return all(_in_one_piece(vector, torch.float32) and vector.numel() == numbers for vector in vectors)


def _threads(numbers: int, rows: Sized) -> int:
    return torch.get_num_threads() if numbers * len(rows) >= WORTH_THREADS else 1


@cache
def _declared(native: CDLL) -> CDLL:
    """The library, once it knows of what type these functions' arguments are."""
    sums: list[Any] = [c_void_p, c_void_p, c_void_p, c_long, c_int]
    native.archipel_add_rows.argtypes = [*sums, c_long, c_long, c_int]
    native.archipel_commit.argtypes = [*sums, c_long, c_void_p, c_void_p, c_double, c_int]
    return native

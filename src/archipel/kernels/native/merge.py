"""The kernels in C (`merge.c`). Where a vector is not contiguous in memory, torch takes over with the same bits."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import CDLL, c_double, c_int, c_long, c_void_p
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.kernels.interface import Rows
from archipel.kernels.reference import TorchKernels, check_counts, chunks
from archipel.kernels.rows import MemoryRows, contiguous

WORTH_THREADS = 1 << 18
"""Numbers to be added: fewer are added before another thread is awake."""


class NativeKernels(TorchKernels):
    def __init__(self, library: CDLL) -> None:
        sums: list[Any] = [c_void_p, c_void_p, c_void_p, c_long, c_int]
        library.archipel_add_rows.argtypes = [*sums, c_long, c_long, c_int]
        library.archipel_commit.argtypes = [*sums, c_long, c_void_p, c_void_p, c_double, c_int]
        self._library = library

    def weighted_sum(self, out: Tensor, rows: Rows, weights: Sequence[float], piece: slice) -> None:
        check_counts(rows, weights)
        if not contiguous(out, torch.float32):
            super().weighted_sum(out, rows, weights, piece)
        elif isinstance(rows, MemoryRows) and rows.numbers == out.numel():
            self._add(out, rows, weights, piece, restart=True)
        else:
            for chunk in chunks(piece):  # one row at a time: they may lie on a disk, and be many
                running = out[chunk]
                whole = slice(0, running.numel())
                for row, weight in enumerate(weights):
                    self._add(running, _alone(rows, row, chunk), [weight], whole, restart=row == 0)

    def _add(self, out: Tensor, rows: MemoryRows, weights: Sequence[float], piece: slice, restart: bool) -> None:
        factors = array("d", weights)
        self._library.archipel_add_rows(
            out.data_ptr(),
            rows.addresses.ctypes.data,
            factors.buffer_info()[0],
            len(rows),
            restart,
            piece.start,
            piece.stop,
            _threads(piece, rows),
        )

    def replace_terms(
        self,
        total: Tensor,
        rows: Rows,
        weights: Sequence[float],
        piece: slice,
        *,
        restart: bool = False,
        mean: Tensor | None = None,
        divisor: float = 1.0,
    ) -> list[float]:
        check_counts(rows, weights)
        if not weights or not _writable(total, mean):
            return super().replace_terms(total, rows, weights, piece, restart=restart, mean=mean, divisor=divisor)
        if isinstance(rows, MemoryRows) and rows.numbers == total.numel():
            return self._replace(total, rows, weights, piece, restart, mean, divisor)
        largest = np.zeros(len(weights))
        for chunk in chunks(piece):  # one row at a time: they may lie on a disk, and be many
            running, into = total[chunk], None if mean is None else mean[chunk]
            whole = slice(0, running.numel())
            for row, weight in enumerate(weights):
                anew, written = restart and row == 0, into if row == len(weights) - 1 else None
                (found,) = self._replace(running, _alone(rows, row, chunk), [weight], whole, anew, written, divisor)
                largest[row] = np.maximum(largest[row], found)
        return [float(size) for size in largest]

    def _replace(
        self,
        total: Tensor,
        rows: MemoryRows,
        weights: Sequence[float],
        piece: slice,
        restart: bool,
        mean: Tensor | None,
        divisor: float,
    ) -> list[float]:
        starts = rows.addresses + np.uint64(4 * piece.start)
        factors, largest = array("d", weights), array("f", bytes(4 * len(rows)))
        self._library.archipel_commit(
            total.data_ptr() + 8 * piece.start,
            starts.ctypes.data,
            factors.buffer_info()[0],
            len(rows),
            restart,
            piece.stop - piece.start,
            largest.buffer_info()[0],
            None if mean is None else mean.data_ptr() + 4 * piece.start,
            divisor,
            _threads(piece, rows),
        )
        return largest.tolist()


def _alone(rows: Rows, row: int, chunk: slice) -> MemoryRows:
    """Return a chunk of one row as C can read it."""
    numbers = rows.read(row, chunk).float().contiguous()
    if numbers.numel() != chunk.stop - chunk.start:
        raise ValueError(f"Row {row} has {numbers.numel()} numbers in {chunk}; the sum has {chunk.stop - chunk.start}.")
    alone = MemoryRows.of([numbers])
    assert alone is not None, "it is contiguous float32 now"
    return alone


def _writable(total: Tensor, mean: Tensor | None) -> bool:
    """Return whether C can write the sum and its mean."""
    return contiguous(total, torch.float64) and (
        mean is None or (contiguous(mean, torch.float32) and mean.numel() == total.numel())
    )


def _threads(piece: slice, rows: MemoryRows) -> int:
    return torch.get_num_threads() if (piece.stop - piece.start) * len(rows) >= WORTH_THREADS else 1

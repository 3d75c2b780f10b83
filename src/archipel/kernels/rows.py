"""Rows for the kernels: vectors in memory, or read by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class MemoryRows:
    """Contiguous float32 vectors in memory, with their addresses: C reads them without asking each tensor."""

    tensors: Sequence[Tensor]
    addresses: NDArray[np.uint64]
    numbers: int
    """Length of every vector."""

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> MemoryRows | None:
        """Return these tensors as rows; None unless all are contiguous float32 in memory and of one length."""
        addresses = [address(tensor) for tensor in tensors]
        if not tensors or None in addresses or len({tensor.numel() for tensor in tensors}) > 1:
            return None
        return MemoryRows(tensors, np.array(addresses, np.uint64), tensors[0].numel())

    def __len__(self) -> int:
        return len(self.tensors)

    def read(self, row: int, piece: slice) -> Tensor:
        return self.tensors[row][piece]

    def select(self, rows: Sequence[int]) -> MemoryRows:
        return MemoryRows([self.tensors[row] for row in rows], self.addresses[list(rows)], self.numbers)


@dataclass(frozen=True, eq=False)
class NamedRows:
    """Vectors of a store, each piece read when it is needed."""

    names: Sequence[str]
    reader: Callable[[str, slice], Tensor]

    def __len__(self) -> int:
        return len(self.names)

    def read(self, row: int, piece: slice) -> Tensor:
        return self.reader(self.names[row], piece)

    def select(self, rows: Sequence[int]) -> NamedRows:
        return NamedRows([self.names[row] for row in rows], self.reader)


def address(vector: Tensor) -> int | None:
    """Return where a vector begins in memory; None unless it is contiguous float32 on the CPU."""
    return vector.data_ptr() if contiguous(vector, torch.float32) else None


def contiguous(vector: Tensor, dtype: torch.dtype) -> bool:
    """Return whether C can read the vector: on the CPU, of this type, without gaps."""
    return vector.dtype is dtype and vector.is_contiguous() and vector.is_cpu

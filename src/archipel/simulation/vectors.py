"""Vectors in memory and, above a stated size, in a file that is mapped into it."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import IO

import numpy as np
import torch
from torch import Tensor

from archipel.kernels.interface import Rows
from archipel.kernels.rows import MemoryRows, NamedRows, address

IN_MEMORY = 1 << 29
"""Bytes of vectors that a store holds in memory; further ones go to its file."""

AWAKE = 1 << 28
"""Bytes of the file's vectors that may be read before their memory is released."""

SEGMENT = 1 << 26
"""Bytes of the file that are mapped at a time: a process may have some ten thousand mappings, and more vectors."""


class MemoryModels:
    """The store of a simulation. Results do not depend on where a vector is stored."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._vectors: dict[str, Tensor] = {}
        self._in_memory = in_memory
        self._held = 0
        self._file = _File()
        self._filed: set[str] = set()
        self._addresses: dict[int, dict[str, int]] = defaultdict(dict)
        """By length: where contiguous float32 vectors begin in memory."""

    def read(self, name: str, piece: slice | None = None) -> Tensor:
        vector = self._vectors[name]
        if piece is not None and piece != slice(0, vector.numel()):
            vector = vector[piece]
        if name in self._filed:
            self._file.wake(vector)
        return vector

    def rows(self, names: Sequence[str]) -> Rows:
        if names:
            numbers = self._vectors[names[0]].numel()
            known = self._addresses[numbers]
            if all(map(known.__contains__, names)):
                addresses = np.fromiter(map(known.__getitem__, names), np.uint64, len(names))
                return MemoryRows([self._vectors[name] for name in names], addresses, numbers)
        return NamedRows(names, self.read)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._vectors[name].shape)

    def write(self, name: str, vector: Tensor) -> None:
        self.drop(name)
        if self._held + vector.nbytes <= self._in_memory:
            self._held += vector.nbytes
            begins = address(vector)
            if begins is not None:
                self._addresses[vector.numel()][name] = begins
        else:
            vector = self._file.keep(vector)
            self._filed.add(name)
        self._vectors[name] = vector

    def complete(self, name: str, base: str, pieces: Sequence[slice]) -> None:
        vector, other = self.read(name), self.read(base)
        for piece in pieces:
            vector[piece] = other[piece]

    def drop(self, name: str) -> None:
        vector = self._vectors.pop(name, None)
        if name in self._filed:
            self._filed.remove(name)
        elif vector is not None:
            self._held -= vector.nbytes
            self._addresses[vector.numel()].pop(name, None)

    def names(self) -> list[str]:
        return list(self._vectors)


class _File:
    """A file without a name, so that nothing is left behind, whose segments are mapped into memory.

    Vectors are in the system's page cache and on the disk, not in this process's own memory: the system may evict them
    and reloads what is read.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0
        self._segments: list[mmap.mmap] = []
        self._free: dict[int, list[tuple[mmap.mmap, int, int]]] = defaultdict(list)
        """By size: a segment, and where a vector may begin in it and in the file."""
        self._awake = 0

    def keep(self, vector: Tensor) -> Tensor:
        """Return the same numbers, in the file."""
        room = -(-vector.nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        free = self._free[room]
        if not free:
            self._grow(room)
        segment, start, place = free.pop()
        # not through the mapping: a full disk is an error here and would be a signal there
        self._write(vector.contiguous().numpy().data.cast("B"), place)
        numbers = memoryview(segment)[start : start + vector.nbytes]
        # the room is free when the last tensor that uses it is gone, which may be after the name was dropped
        weakref.finalize(numbers, free.append, (segment, start, place)).atexit = False
        return torch.frombuffer(numbers, dtype=vector.dtype)

    def wake(self, vector: Tensor) -> None:
        """Note that a vector is read: its pages count as this process's memory until they are released."""
        self._awake += vector.nbytes
        if self._awake > AWAKE:
            for segment in self._segments:
                segment.madvise(mmap.MADV_DONTNEED)  # shared with the file, so nothing is lost
            self._awake = vector.nbytes

    def _grow(self, room: int) -> None:
        if self._file is None:
            # where /tmp is memory, /var/tmp is not
            self._file = tempfile.TemporaryFile(dir=os.environ.get("TMPDIR", "/var/tmp"))  # noqa: SIM115
        count = max(1, SEGMENT // room)
        os.ftruncate(self._file.fileno(), self._end + count * room)
        segment = mmap.mmap(self._file.fileno(), count * room, offset=self._end)
        self._segments.append(segment)
        self._free[room].extend((segment, i * room, self._end + i * room) for i in reversed(range(count)))
        self._end += count * room

    def _write(self, numbers: memoryview, place: int) -> None:
        assert self._file is not None
        while numbers:
            written = os.pwrite(self._file.fileno(), numbers, place)
            numbers, place = numbers[written:], place + written

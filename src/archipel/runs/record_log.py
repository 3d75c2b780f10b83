"""Records of a run as it goes on: the latest in memory, earlier ones in a temporary file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import IO, overload

from archipel.core.records import Stamped
from archipel.runs.record_lines import parse_record, record_line

KEPT = 1 << 17
"""Records in memory at most; half of them are written to the file when there are more."""

BLOCK = 1 << 20
"""Bytes of the file that are read at a time."""


class RecordLog(Sequence[Stamped]):
    """All records in order; memory does not grow with their number."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._filed = 0
        """Records in the file."""
        self._latest: list[Stamped] = []

    def append(self, stamped: Stamped) -> None:
        """Add a record at the end."""
        self._latest.append(stamped)
        if len(self._latest) > KEPT:
            self._file_away(KEPT // 2)

    def _file_away(self, count: int) -> None:
        if self._file is None:
            # where /tmp is memory, /var/tmp is not
            self._file = tempfile.TemporaryFile(dir=os.environ.get("TMPDIR", "/var/tmp"))  # noqa: SIM115
        self._file.writelines(record_line(stamped).encode() + b"\n" for stamped in self._latest[:count])
        self._file.flush()
        self._filed += count
        del self._latest[:count]

    def finished(self) -> Sequence[Stamped]:
        """Return the records of a run that has ended: a tuple if all are in memory."""
        return tuple(self._latest) if self._file is None else self

    def __len__(self) -> int:
        return self._filed + len(self._latest)

    def __iter__(self) -> Iterator[Stamped]:
        yield from self._from_file()
        yield from self._latest

    def _from_file(self) -> Iterator[Stamped]:
        if self._file is None:
            return
        left, place, rest = self._filed, 0, b""
        while left:
            # by place: the file's own position is that of the writer
            block = os.pread(self._file.fileno(), BLOCK, place)
            place += len(block)
            *lines, rest = (rest + block).split(b"\n")
            yield from (parse_record(line.decode()) for line in lines[:left])
            left -= len(lines[:left])

    @overload
    def __getitem__(self, place: int) -> Stamped: ...

    @overload
    def __getitem__(self, place: slice) -> list[Stamped]: ...

    def __getitem__(self, place: int | slice) -> Stamped | list[Stamped]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if start >= self._filed and step > 0:
                return self._latest[start - self._filed : max(0, stop - self._filed) : step]
            return list(islice(self, start, stop, step)) if step > 0 else list(self)[place]
        place = range(len(self))[place]
        if place >= self._filed:
            return self._latest[place - self._filed]
        return next(islice(self, place, None))

"""Files named by the hash of their contents: written once and atomically, and never changed.

The name is the SHA-256 of all bytes, or a hash of hashes that another one has compared with what came.

A file is written under another name, brought to the disk, renamed, and its folder is brought to the disk: whoever knows
its name after a crash finds all of it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from archipel.storage.atomic_files import fsync_directory

Buffer: TypeAlias = bytes | bytearray | memoryview

BLOCK = 1 << 20
"""Bytes that are read or written at a time."""
EARLY = 1 << 22
"""Bytes of a file that the disk is given to write while the rest of it is still on its way."""
SYNC_FILE_RANGE_WRITE = 2
"""Of Linux: begin to write, and wait for nothing."""


class Blobs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unfinished = folder / "unfinished"
        self.unfinished.mkdir(parents=True, exist_ok=True)
        self.written: set[str] = set()
        """Files that this process has written or compared with their hash; others are checked when they are read."""
        self._own = 0
        self._pins: Counter[str] = Counter()
        self._lock = threading.Lock()

    def path(self, digest: str) -> Path:
        return self.folder / digest

    def __contains__(self, digest: str) -> bool:
        return self.path(digest).exists()

    def put(self, pieces: Sequence[Buffer]) -> str:
        """Store these bytes; return the name of the file."""
        found = hashlib.sha256()
        for piece in pieces:
            found.update(piece)
        name = found.hexdigest()
        if self._whole(name, sum(len(memoryview(piece).cast("B")) for piece in pieces)):
            # as after a kill, when what was done since the last snapshot is done again
            fsync_directory(self.folder)  # whoever wrote it may have ended before this
            return name
        self._own += 1
        parcel = Parcel(self, f"own.{os.getpid()}.{self._own}")
        parcel.begin_anew()
        for piece in pieces:
            parcel.write(piece)
        parcel.finish(name)
        return name

    def _whole(self, name: str, size: int) -> bool:
        """Whether it is there and undamaged: one that was cut short or changed is written again."""
        try:
            if self.path(name).stat().st_size != size:
                return False
            if name not in self.written:
                with open(self.path(name), "rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != name:
                        return False
                self.written.add(name)
            return True
        except FileNotFoundError:
            return False

    def parcel(self, label: str) -> Parcel:
        """Open a file that arrives in pieces; pieces that arrived before are kept."""
        return Parcel(self, label)

    def digests(self) -> set[str]:
        return {path.name for path in self.folder.iterdir() if path.is_file()}

    def pin(self, digest: str) -> None:
        """Not to be collected until `unpin`: it is on its way, and nothing says yet that it is needed."""
        with self._lock:
            self._pins[digest] += 1

    def unpin(self, digest: str) -> None:
        with self._lock:
            self._pins[digest] -= 1
            if not self._pins[digest]:
                del self._pins[digest]

    def collect(self, needed: Collection[str]) -> int:
        """Remove the files that are no longer needed; return how many."""
        unneeded = self.digests() - set(needed)
        removed = 0
        for digest in unneeded:
            with self._lock:  # what is pinned from now on arrives after this
                if digest not in self._pins:
                    self.path(digest).unlink()
                    self.written.discard(digest)
                    removed += 1
        return removed


class Parcel:
    """One file on its way in."""

    def __init__(self, blobs: Blobs, label: str) -> None:
        self.blobs = blobs
        self.path = blobs.unfinished / label
        self.size = self.path.stat().st_size if self.path.exists() else 0
        """Bytes that have arrived."""
        self._file: int | None = None
        self._early = self.size
        """Bytes that the disk was given."""

    def begin_anew(self) -> None:
        self.path.unlink(missing_ok=True)
        self.size = self._early = 0

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        file = self._open()
        self.size += len(view)
        while view:
            view = view[os.write(file, view) :]
        if self.size - self._early >= EARLY:
            _begin_to_write(file, self._early, self.size)
            self._early = self.size

    def blocks(self) -> Iterator[bytes]:
        """Yield what has arrived, block by block."""
        if self.size:
            with open(self.path, "rb") as file:
                while block := file.read(BLOCK):
                    yield block

    def finish(self, name: str) -> None:
        """Fsync it and rename it to the hash of its contents."""
        os.fsync(self._open())
        self.close()
        os.replace(self.path, self.blobs.path(name))
        self.blobs.written.add(name)
        fsync_directory(self.blobs.folder)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def discard(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    def _open(self) -> int:
        """Go on behind what is there."""
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return self._file


def _begin_to_write(file: int, start: int, stop: int) -> None:
    """Have the system bring a piece of a file to the disk: nothing is promised, but `fsync` finds less to do."""
    if sys.platform == "linux":
        offset, length = ctypes.c_int64(start), ctypes.c_int64(stop - start)
        ctypes.CDLL(None).sync_file_range(file, offset, length, SYNC_FILE_RANGE_WRITE)

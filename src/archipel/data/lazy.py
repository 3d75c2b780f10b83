"""One tensor for all examples: in memory, or memory-mapped from a file if it is large.

Laws:
  1. Up to LARGE bytes the examples are in memory; above, they are in a file in the user's cache, and only the parts in
     use are read.
  2. A mapped tensor may be written to like any other, but the file does not change (copy on write).
  3. A large decoded source is cached. Its key is the path, size and time of every file, the options, and the code that
     decodes. A cache folder without a leading dot in its name is complete.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from archipel.core.checks import ArchipelWarning
from archipel.data.fetch import cache
from archipel.data.source import Source

LARGE = 256 * 2**20
"""Bytes above which examples are kept on disk."""

CHUNK = 4096
"""Images converted at a time: a large set is never in memory as a whole."""


class RowBuffer:
    """Collect examples block by block into one tensor."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: DTypeLike = np.float32,
        folder: Path | None = None,
        expected: int = 0,
    ) -> None:
        self.shape = shape
        """Shape of one example."""
        self.dtype = np.dtype(dtype)
        self.folder = folder
        """Where a large tensor is kept; None: in a temporary file."""
        self.count = 0
        self._blocks: list[NDArray[Any]] = []
        self._bytes = 0
        self._file: BinaryIO | None = None
        self._in_memory = False
        self._array: NDArray[Any] | None = None
        """All examples, if their number is known in advance and they fit into memory."""
        if expected * math.prod(shape) * self.dtype.itemsize <= LARGE and expected:
            self._array = np.empty((expected, *shape), self.dtype)

    def add(self, block: NDArray[Any]) -> None:
        """Add examples at the end."""
        if block.shape[1:] != self.shape:
            raise ValueError(f"examples of shape {block.shape[1:]} do not match those of shape {self.shape}")
        if self._array is not None:
            self._array[self.count : self.count + len(block)] = block
            self.count += len(block)
            return
        block = np.ascontiguousarray(block, dtype=self.dtype)
        self.count += len(block)
        self._bytes += block.nbytes
        if self._file is None:
            self._blocks.append(block)
            if self._bytes > LARGE and not self._in_memory:
                self._spill()
        else:
            self._file.write(block.data)

    def add_images(self, images: NDArray[np.uint8]) -> None:
        """Add images of bytes, scaled to values from 0 to 1."""
        for start in range(0, len(images), CHUNK):
            block = images[start : start + CHUNK].reshape(-1, *self.shape).astype(np.float32)
            block /= 255
            self.add(block)

    def tensor(self) -> Tensor:
        """Return all examples; none can be added afterwards."""
        if self._array is not None:
            assert self.count == len(self._array), "as many examples as were expected"
            return torch.from_numpy(self._array)
        if self._file is None:
            if not self._blocks:
                return torch.from_numpy(np.empty((0, *self.shape), self.dtype))
            # one block is not copied
            return torch.from_numpy(self._blocks[0] if len(self._blocks) == 1 else np.concatenate(self._blocks))
        if self.folder is not None:
            self._head()
            self._file.close()
            return mapped(self.folder / "x.npy")
        self._file.flush()
        shape = (self.count, *self.shape)
        with self._file:
            return torch.from_numpy(np.memmap(self._file, self.dtype, "c", shape=shape))

    def _spill(self) -> None:
        try:
            if self.folder is not None:
                self._file = (self.folder / "x.npy").open("wb")
                self._head()
            else:
                # an unnamed file is removed by the operating system however the process ends
                self._file = cast(BinaryIO, tempfile.TemporaryFile(dir=decoded()))  # noqa: SIM115  (closed by `tensor`)
        except OSError as error:
            self._in_memory = True
            warnings.warn(
                f"the examples take more than {LARGE // 2**20} MB and should be kept on disk, but {cache()} cannot be "
                f"written: {error}. They are kept in memory; set XDG_CACHE_HOME to a folder with free space.",
                ArchipelWarning,
                stacklevel=4,
            )
            return
        for block in self._blocks:
            self._file.write(block.data)
        self._blocks = []

    def _head(self) -> None:
        """Write the .npy header, which numpy pads so that the number of examples can grow."""
        assert self._file is not None
        self._file.seek(0)
        header = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self.count, *self.shape),
        }
        np.lib.format.write_array_header_1_0(self._file, header)


def mapped(path: Path) -> Tensor:
    """Map the array of a .npy file into memory, copy on write."""
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def decoded() -> Path:
    """Return the folder of cached sources; delete unfinished ones that are older than a day."""
    folder = cache() / "decoded"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as fresh:
        now = os.fstat(fresh.fileno()).st_mtime  # the file system's clock may differ from this machine's
    for left in folder.glob(".*"):
        with contextlib.suppress(OSError):
            if now - left.stat().st_mtime > 24 * 3600:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    return folder


def remembered(name: str, files: Sequence[Path], options: object, decode: Callable[[Path | None], Source]) -> Source:
    """Return the source that `decode` makes of these files; cache a large one.

    name: first part of the cache folder's name; options: anything else that the source depends on.
    decode: gets the folder for its `RowBuffer`.
    """
    home = cache() / "decoded" / f"{name}-{key(files, options)}"
    if home.is_dir():
        try:
            return recall(home)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            shutil.rmtree(home, ignore_errors=True)
    with workspace(name) as folder:
        source = decode(folder)
        if folder is not None and (folder / "x.npy").exists():
            keep(source, folder)
            # another process may have finished first: its folder has the same content
            with contextlib.suppress(OSError):
                os.rename(folder, home)
    return source


@contextlib.contextmanager
def workspace(name: str) -> Iterator[Path | None]:
    """Make a folder in the cache, deleted afterwards unless it was renamed; None if the cache cannot be written."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=decoded()))
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep(source: Source, folder: Path) -> None:
    """Write everything but x into the folder."""
    parts: dict[str, NDArray[Any]] = {
        "name": np.array(source.name),
        "classes": np.array(-1 if source.classes is None else source.classes),
        "y": source.y.numpy(),
        "site_names": np.array(source.site_names, dtype=np.str_),
    }
    if source.test is not None:
        parts["test"] = source.test.numpy()
    if source.sites is not None:
        parts["sites"] = source.sites.numpy()
    parts |= {f"category {feature}": codes.numpy() for feature, codes in source.categories.items()}
    with (folder / "rest.npz").open("wb") as stream:
        np.savez(stream, **parts)  # type: ignore[arg-type]


def recall(folder: Path) -> Source:
    """Read the source in a cache folder."""
    x = mapped(folder / "x.npy")
    with np.load(folder / "rest.npz") as parts:
        classes = int(parts["classes"])
        return Source(
            x,
            torch.from_numpy(parts["y"]),
            None if classes < 0 else classes,
            str(parts["name"]),
            test=torch.from_numpy(parts["test"]) if "test" in parts else None,
            sites=torch.from_numpy(parts["sites"]) if "sites" in parts else None,
            site_names=tuple(str(site) for site in parts["site_names"]),
            categories={
                part.removeprefix("category "): torch.from_numpy(parts[part])
                for part in parts.files
                if part.startswith("category ")
            },
        )


def key(files: Sequence[Path], options: object) -> str:
    """Return the cache key of a decoded source."""
    stats = [(path, path.stat()) for path in files]
    known = [(str(path.resolve()), stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    return hashlib.sha256(repr((known, options, readers())).encode()).hexdigest()[:16]


@functools.cache
def readers() -> str:
    """Return a checksum of the code that decodes, so that sources decoded by older code are not reused."""
    here = Path(__file__)
    files = [
        here,
        here.with_name("own.py"),
        here.with_name("in_memory.py"),
        *sorted((here.parent / "sources").glob("*.py")),
    ]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

"""The store of a federation: updates lie in files as they came, everything else in memory.

A vector is a row of runs, each a piece of a tensor or of a file. So an update that brought two layers is those two, and
the model it stands on for the rest; nothing is copied, and a merge reads it slice by slice.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from archipel.core.layout import Layout
from archipel.federation.storage.blobs import Blobs
from archipel.kernels.interface import Rows
from archipel.kernels.memory import empty
from archipel.kernels.rows import MemoryRows, NamedRows

Digest: TypeAlias = str
"""SHA-256 of a layer's numbers, in hexadecimal."""

IN_MEMORY = 1 << 25
"""Bytes of versions that stay in memory beside the newest one."""
EARLIER = 1 << 24
"""Bytes of earlier versions that stay in memory; those that a snapshot has written stay in their files."""
SPACES, EACH = (1, 10, 100, 1000), 4
"""Of the versions that are multiples of each of these, so many of the last ones are kept for a rollback."""
VERSION = re.compile(r"v\d+")
PIECE = 1 << 18
"""Numbers that are read at a time to hash a layer."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What came with an update: a file, and where in it which layers are."""

    blob: Digest
    """The file; "" if no layer had changed."""
    start: int
    """Where in it the numbers begin."""
    inside: tuple[int, ...]
    """Places of the layers that are in it, one behind the other."""
    digests: dict[str, Digest]
    """Of every layer that was sent, those among them that had not changed and so are not in the file."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Numbers [start, stop) of a vector, and where they lie."""

    start: int
    stop: int
    source: Tensor | Digest
    offset: int
    """Numbers in a tensor, bytes in a file, before the first of them."""

    def cut(self, start: int, stop: int) -> Segment:
        skipped = start - self.start
        return Segment(start, stop, self.source, self.offset + skipped * (4 if isinstance(self.source, str) else 1))


@dataclass(slots=True)
class Kept:
    """A vector under its name."""

    runs: tuple[Segment, ...]
    digests: tuple[Digest, ...] | None = None
    """Of its layers; None for what a part remembers, which nobody is sent."""
    blob: Digest | None = None
    """The file that holds it since the last snapshot."""
    checked: set[int] = field(default_factory=set)
    """Layers that were compared with their digests since this process found them in a file."""

    @property
    def tensor(self) -> Tensor | None:
        """The vector itself, if it lies in memory in one piece."""
        (first, *more) = self.runs
        return first.source if isinstance(first.source, Tensor) and not more and first.offset == 0 else None


class StoredModels:
    """Vectors by name. Names of parts' vectors have a slash in them; those may be changed in place."""

    def __init__(self, layout: Layout, blobs: Blobs) -> None:
        self.layout = layout
        self.blobs = blobs
        self.fresh: dict[str, Digest] = {}
        """Versions that were written since somebody last looked, by their digests; who looks clears them."""
        self._kept: dict[str, Kept] = {}
        self._earlier: dict[str, Kept] = {}
        """Versions that nobody needs, and to which an operator may roll back."""

    # ------------------------------------------------------------------------------------------- what the parts use

    def read(self, name: str, piece: slice | None = None) -> Tensor:
        kept = self._kept[name]
        whole = kept.tensor
        if whole is not None:
            return whole if piece is None else whole[piece]
        start, stop = (0, self.layout.size) if piece is None else (piece.start, piece.stop)
        self._check(kept, start, stop)
        return self._read(kept, start, stop)

    def in_memory(self, name: str) -> bool:
        """Return whether a vector is stored and can be read without a file."""
        kept = self._kept.get(name)
        return kept is not None and kept.tensor is not None

    def rows(self, names: Sequence[str]) -> Rows:
        tensors = [self._kept[name].tensor for name in names]
        in_memory = MemoryRows.of([tensor for tensor in tensors if tensor is not None])
        return in_memory if in_memory is not None and None not in tensors else NamedRows(names, self.read)

    def shape(self, name: str) -> tuple[int, ...]:
        return (self._kept[name].runs[-1].stop,)

    def write(self, name: str, vector: Tensor) -> None:
        kept = Kept((Segment(0, len(vector), vector, 0),))
        if "/" not in name:
            kept.digests = tuple(self._digest(vector, layer) for layer in range(len(self.layout.layers)))
            self.fresh[name] = digest_of(kept.digests)
        self._kept[name] = kept

    def complete(self, name: str, base: str, pieces: Sequence[slice]) -> None:
        starts = {layer.start: place for place, layer in enumerate(self.layout.layers)}
        layers = {starts[start] for start in starts if any(piece.start <= start < piece.stop for piece in pieces)}
        self._kept[name] = self._with(self._kept[name], self._kept[base], layers)

    def drop(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None and VERSION.fullmatch(name):
            self._retain(name, kept)

    def names(self) -> list[str]:
        return list(self._kept)

    # ------------------------------------------------------------------------------------------ what the engine uses

    def adopt(self, name: str, base: str, delivery: Delivery) -> None:
        """Keep an update; layers that did not come stand as in the model that its task carried."""
        runs: list[Segment] = []
        digests: list[Digest] = []
        theirs = self._kept[base]
        assert theirs.digests is not None
        place = delivery.start
        for layer in range(len(self.layout.layers)):
            start, stop = self._span(layer)
            if layer in delivery.inside:
                runs.append(Segment(start, stop, delivery.blob, place))
                place += 4 * (stop - start)
                digests.append(delivery.digests[self.layout.names[layer]])
            else:
                runs.extend(_between(theirs.runs, start, stop))
                digests.append(theirs.digests[layer])
        self._kept[name] = Kept(_joined(runs), tuple(digests))

    def digests(self, name: str) -> tuple[Digest, ...]:
        """Of all layers of a model; those of a part's vector are computed when they are asked for."""
        digests = self._kept[name].digests
        return digests or tuple(self._digest(self.read(name), layer) for layer in range(len(self.layout.layers)))

    def numbers(self, name: str, layers: Sequence[int], skip: int, size: int) -> Iterator[bytes | memoryview]:
        """Yield the numbers of these layers as bytes, without the first `skip`, in pieces of at most `size`."""
        for layer in layers:
            start, stop = self._span(layer)
            passed = min(skip, 4 * (stop - start))
            skip -= passed
            first, behind = start + passed // 4, passed % 4
            for at in range(first, stop, size // 4):
                piece = self.read(name, slice(at, min(at + size // 4, stop)))
                yield as_bytes(piece)[behind:]
                behind = 0

    def file_older_ones(self) -> None:
        """In a stream every learner may be at a version of its own: those that are many bytes together go to files.

        To be called when an event that made a version has been handled: by then nobody needs the last round's any more,
        which would be written for nobody.
        """
        versions = [kept for name, kept in self._kept.items() if kept.tensor is not None and "/" not in name]
        room = IN_MEMORY
        for kept in reversed(versions[:-1]):  # the latest first
            whole = kept.tensor
            assert whole is not None
            room -= whole.nbytes
            if room < 0:
                kept.blob = kept.blob or self._put(whole, None)
                kept.runs = (Segment(0, len(whole), kept.blob, 0),)

    # ---------------------------------------------------------------------------------------------- earlier versions

    def earlier(self) -> list[int]:
        """Return the versions that can be restored."""
        return sorted(_number(name) for name in self._earlier)

    def restore(self, version: int) -> Delivery:
        """Write an earlier version to a file of its own, and pin it until it is journalled."""
        kept = self._earlier[f"v{version}"]
        assert kept.digests is not None
        self._check(kept, 0, self.layout.size)
        blob = self.blobs.put([as_bytes(self._read(kept, 0, self.layout.size))])
        self.blobs.pin(blob)
        digests = dict(zip(self.layout.names, kept.digests, strict=True))
        return Delivery(blob, 0, tuple(range(len(self.layout.layers))), digests)

    def _retain(self, name: str, kept: Kept) -> None:
        """Keep a version that nobody needs: in its file if a snapshot has written one, in memory if it is small."""
        if kept.blob is not None:
            kept.runs = (Segment(0, self.layout.size, kept.blob, 0),)
        self._earlier[name] = kept
        spaced = _spaced(self.earlier())
        self._earlier = {name: kept for name, kept in self._earlier.items() if _number(name) in spaced}
        room = EARLIER
        for name in sorted(self._earlier, key=_number, reverse=True):
            if any(isinstance(run.source, Tensor) for run in self._earlier[name].runs):
                room -= 4 * self.layout.size
                if room < 0:
                    del self._earlier[name]

    # ----------------------------------------------------------------------------------------------------- snapshots

    def save(self) -> dict[str, Any]:
        """Have all vectors on disk, and say where; what is there already is not written again."""
        places: dict[int, Digest] = {}
        found: dict[str, Any] = {}
        everything = {**self._earlier, **self._kept}
        for name, kept in everything.items():
            whole = kept.tensor
            if whole is not None:
                if kept.blob is None or "/" in name:
                    kept.blob = self._put(whole, kept.blob)
                places[id(whole)] = kept.blob
        for name, kept in everything.items():
            runs = []
            for run in kept.runs:
                blob, offset = run.source, run.offset
                if isinstance(blob, Tensor):  # its own, or that of a version that nobody needs but for this
                    if id(blob) not in places:
                        places[id(blob)] = self._put(blob, None)
                    offset *= blob.element_size()
                    blob = places[id(blob)]
                runs.append([run.start, run.stop, blob, offset])
            whole = kept.tensor
            dtype = None if whole is None else str(whole.dtype).removeprefix("torch.")
            found[name] = {"runs": runs, "digests": kept.digests and list(kept.digests), "in memory": dtype}
            if name not in self._kept:
                found[name]["earlier"] = True
        return found

    def load(self, saved: dict[str, Any]) -> None:
        """Models stay in their files until somebody asks for them: a controller that was killed is back sooner."""
        self._kept.clear()
        self._earlier.clear()
        for name, told in saved.items():
            runs = tuple(Segment(*run) for run in told["runs"])
            digests = None if told["digests"] is None else tuple(told["digests"])
            if told["in memory"] is not None and "/" in name:  # a part's own, which it may change in place
                (only,) = runs
                assert isinstance(only.source, str)
                vector = torch.empty(only.stop, dtype=getattr(torch, told["in memory"]))
                self._fill(vector, only.source, only.offset)
                if hashlib.sha256(as_bytes(vector)).hexdigest() != only.source:
                    raise _damaged(str(self.blobs.path(only.source)), only.source)
                self._kept[name] = Kept((replace(only, source=vector, offset=0),), digests, only.source)
            elif told.get("earlier"):
                self._earlier[name] = Kept(runs, digests)
            else:
                self._kept[name] = Kept(runs, digests)

    # -------------------------------------------------------------------------------------------------- small things

    def _span(self, layer: int) -> tuple[int, int]:
        return self.layout.layers[layer].start, self.layout.layers[layer].stop

    def _digest(self, vector: Tensor, layer: int) -> Digest:
        start, stop = self._span(layer)
        return hashlib.sha256(as_bytes(vector[start:stop])).hexdigest()

    def _with(self, mine: Kept, theirs: Kept, layers: set[int]) -> Kept:
        """Return a vector with these layers of another one."""
        assert mine.digests is not None
        assert theirs.digests is not None
        runs: list[Segment] = []
        digests: list[Digest] = []
        for layer in range(len(self.layout.layers)):
            owner = theirs if layer in layers else mine
            assert owner.digests is not None
            runs.extend(_between(owner.runs, *self._span(layer)))
            digests.append(owner.digests[layer])
        return Kept(_joined(runs), tuple(digests))

    def _read(self, kept: Kept, start: int, stop: int) -> Tensor:
        vector = empty(stop - start)
        for run in _between(kept.runs, start, stop):
            into = vector[run.start - start : run.stop - start]
            if isinstance(run.source, Tensor):
                into.copy_(run.source[run.offset : run.offset + len(into)])
            else:
                self._fill(into, run.source, run.offset)
        return vector

    def _check(self, kept: Kept, start: int, stop: int) -> None:
        """Compare the layers between these numbers with their digests, once, if another process wrote their file."""
        found = {run.source for run in _between(kept.runs, start, stop) if isinstance(run.source, str)}
        if found <= self.blobs.written or kept.digests is None:
            return
        for layer, expected in enumerate(kept.digests):
            first, last = self._span(layer)
            if last <= start or first >= stop or layer in kept.checked:
                continue
            digest = hashlib.sha256()
            for at in range(first, last, PIECE):
                digest.update(as_bytes(self._read(kept, at, min(at + PIECE, last))))
            if digest.hexdigest() != expected:
                raise _damaged(", ".join(str(self.blobs.path(file)) for file in sorted(found)), expected)
            kept.checked.add(layer)

    def _fill(self, into: Tensor, blob: Digest, offset: int) -> None:
        numbers = as_bytes(into)
        path = self.blobs.path(blob)
        file = os.open(path, os.O_RDONLY)
        try:
            while numbers:
                read = os.preadv(file, [numbers], offset)
                if read == 0:
                    raise OSError(f"{path} ends before byte {offset + len(numbers)}: it was cut short.")
                numbers, offset = numbers[read:], offset + read
        finally:
            os.close(file)

    def _put(self, vector: Tensor, before: Digest | None) -> Digest:
        numbers = as_bytes(vector)
        if before is not None and hashlib.sha256(numbers).hexdigest() == before:
            return before
        return self.blobs.put([numbers])


@lru_cache(maxsize=256)
def digest_of(layers: tuple[Digest, ...]) -> Digest:
    """Return the digest of a model, from those of its layers."""
    return hashlib.sha256(b"".join(bytes.fromhex(layer) for layer in layers)).hexdigest()


def as_bytes(vector: Tensor) -> memoryview:
    """Return a vector's own memory."""
    numbers = vector.contiguous().numpy()
    return numbers.data.cast("B") if numbers.size else memoryview(b"")


def _number(name: str) -> int:
    return int(name.removeprefix("v"))


def _spaced(versions: Sequence[int]) -> set[int]:
    """Return the versions to keep: all of the last ones, and fewer the further back."""
    return {version for space in SPACES for version in [v for v in versions if v % space == 0][-EACH:]}


def _damaged(file: str, expected: Digest) -> OSError:
    return OSError(
        f"{file} was damaged or changed: the SHA-256 of its numbers is not {expected}, as it was when it was written. "
        "Restore the state's folder from a copy; its numbers were not used."
    )


def _between(runs: Iterable[Segment], start: int, stop: int) -> Iterator[Segment]:
    for run in runs:
        if run.start < stop and run.stop > start:
            yield run.cut(max(run.start, start), min(run.stop, stop))


def _joined(runs: Iterable[Segment]) -> tuple[Segment, ...]:
    """Neighbours that lie one behind the other are one."""
    joined: list[Segment] = []
    for run in runs:
        before = joined[-1] if joined else None
        if before is not None and before.source is run.source and before.cut(run.start, run.stop).offset == run.offset:
            joined[-1] = Segment(before.start, run.stop, before.source, before.offset)
        else:
            joined.append(run)
    return tuple(joined)

"""The file that holds a split, so that two people can train on the same islands.

It is a safetensors file without data. Its header holds, as readable JSON, the learners, the number of examples in each
part, and a SHA-256 of x and y; its only tensor holds the indices. Ascending indices have small differences, so the
differences are written and compressed: half a million examples take half a megabyte. Nothing is pickled, and a digest
over the whole content detects a damaged file.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from archipel.core.checks import require
from archipel.data.island import Island

HEADER = "archipel split"
FORMAT = 1
"""Raise it when an older Archipel could not read the file."""


@dataclass(frozen=True, eq=False)
class SavedSplit:
    """The content of a split file."""

    source: str
    """Name of the source that was split."""
    examples: int
    classes: int | None
    checksum: str
    """SHA-256 of x and y, as `checksum` computes it."""
    learners: Sequence[Island]
    test: Tensor
    stimuli: Tensor


def write_split(split: SavedSplit, path: Path) -> None:
    """Write a split file; an existing file is replaced atomically."""
    learners = tuple(split.learners)
    parts = [part for learner in learners for part in (learner.train, learner.test)]
    packed = pack([*parts, split.test, split.stimuli])
    contents = {
        "source": split.source,
        "examples": split.examples,
        "classes": split.classes,
        "checksum": split.checksum,
        "learners": [[one.name, one.role, len(one.train), len(one.test)] for one in learners],
        "test": len(split.test),
        "stimuli": len(split.stimuli),
    }
    header = {"format": FORMAT, "digest": digest(contents, packed), "contents": contents}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    # one key of metadata: safetensors writes several in no fixed order, and equal splits should be equal files
    save_file({"indices": torch.frombuffer(packed, dtype=torch.uint8)}, unfinished, {HEADER: json.dumps(header)})
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def read_split(path: Path) -> SavedSplit:
    """Read a split file; refuse a damaged one and one of a newer format."""
    contents, packed = read_contents(path)
    try:
        lengths = [length for _, _, *both in contents["learners"] for length in both]
        parts = unpack(packed, [*lengths, contents["test"], contents["stimuli"]])
        learners = tuple(
            Island(name, train, test, role)
            for (name, role, *_), train, test in zip(contents["learners"], parts[:-2:2], parts[1:-2:2], strict=True)
        )
        return SavedSplit(
            contents["source"],
            contents["examples"],
            contents["classes"],
            contents["checksum"],
            learners,
            parts[-2],
            parts[-1],
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, zlib.error) as error:
        # its digest is right, so it was written like this
        raise ValueError(f"{path} is not a split file of Archipel: {error}. Save the split again.") from None


def read_contents(path: Path) -> tuple[dict[str, Any], bytearray]:
    """Return the header's contents and the packed indices; refuse them if the digest differs."""
    damaged = f"{path} is not a split file of Archipel, or it is damaged: "
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[HEADER])
            written = int(header["format"])
            packed = bytearray(file.get_tensor("indices").numpy()) if written <= FORMAT else bytearray()
            contents, expected = header.get("contents"), header.get("digest")
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{damaged}{error}. Save or copy it again.") from None
    require(
        written <= FORMAT,
        f"{path} was saved by a newer Archipel: its format is {written}, this one reads up to {FORMAT}. "
        "Update Archipel, or save the split again with this version.",
    )
    found = digest(contents, packed)
    require(
        found == expected,
        f"{damaged}its contents have the digest {found}, but {expected} was written. Save or copy it again.",
    )
    return contents, packed


def pack(parts: Iterable[Tensor]) -> bytearray:
    """Compress the differences between successive indices."""
    steps = np.concatenate([np.diff(part.numpy(), prepend=0) for part in parts]).astype("<i8")
    # transposed, all first bytes before all second bytes …: small differences leave long runs of zeros
    return bytearray(zlib.compress(steps.view(np.uint8).reshape(-1, 8).T.tobytes()))


def unpack(packed: bytearray, lengths: list[int]) -> list[Tensor]:
    """Return the parts of these lengths, as they were packed; no more is unpacked, however small it was packed."""
    numbers = sum(lengths)
    if not all(isinstance(length, int) and length >= 0 for length in lengths):
        raise ValueError(f"lengths {lengths}")
    unpacking = zlib.decompressobj()
    whole = unpacking.decompress(packed, 8 * numbers + 1)
    if len(whole) != 8 * numbers or not unpacking.eof:
        raise ValueError(f"{len(whole)} bytes of indices, expected {8 * numbers}")
    planes = np.frombuffer(whole, dtype=np.uint8).reshape(8, -1)
    steps = np.ascontiguousarray(planes.T).view("<i8").ravel().astype(np.int64)
    return [torch.from_numpy(part.cumsum()) for part in np.split(steps, np.cumsum(lengths)[:-1])]


def checksum(x: Tensor, y: Tensor) -> str:
    """Return the SHA-256 of the types, shapes and bytes of x and y."""
    sha = hashlib.sha256()
    for tensor in (x, y):
        sha.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        # in chunks: x may be mapped from a disk, and larger than memory
        for some in tensor.split(4096):
            sha.update(some.contiguous().flatten().view(torch.uint8).numpy())
    return sha.hexdigest()


def digest(contents: object, packed: bytearray) -> str:
    """Return the SHA-256 of the header's contents and the packed indices."""
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode() + packed).hexdigest()

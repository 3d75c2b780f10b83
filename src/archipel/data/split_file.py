"""A split in one small file, so that two people train on the same islands.

The file is a safetensors file without data: the header holds, as JSON that anybody can read, who the learners are, how
many examples each part has, and a SHA-256 of x and y; the only tensor holds the indices. Parts that ascend are small
steps, so indices are written as steps and compressed: half a million examples take half a megabyte. Nothing is pickled,
and a digest over all of it tells a damaged file.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from archipel.core.checks import require
from archipel.data.islands import Island, Islands

if TYPE_CHECKING:
    from archipel.data.source import Source

HEADER = "archipel split"
FORMAT = 1
"""Raise it when an older Archipel could not read the file."""


def save_split(islands: Islands, path: str | os.PathLike[str]) -> None:
    """Save who has which examples, but no data; the file is replaced whole or not at all."""
    path = Path(path)
    parts = [part for learner in islands.learners for part in (learner.train, learner.test)]
    packed = pack([*parts, islands.test, islands.stimuli])
    contents = {
        "source": islands.name,
        "examples": len(islands.x),
        "classes": islands.classes,
        "checksum": checksum(islands.x, islands.y),
        "learners": [[one.name, one.role, len(one.train), len(one.test)] for one in islands.learners],
        "test": len(islands.test),
        "stimuli": len(islands.stimuli),
    }
    header = {"format": FORMAT, "digest": digest(contents, packed), "contents": contents}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    # one key of metadata: safetensors writes several in no fixed order, and equal splits should be equal files
    save_file({"indices": torch.frombuffer(packed, dtype=torch.uint8)}, unfinished, {HEADER: json.dumps(header)})
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def load_split(source: Source, path: str | os.PathLike[str]) -> Islands:
    """The islands that were saved, to the bit, on the data of this source: it has to be the one they were split from.

    A split of a source whose x was changed, by colours or by standardising, loads from a source with the same change.
    """
    contents, packed = read(Path(path))
    mine = checksum(source.x, source.y)
    require(
        mine == contents["checksum"],
        f"{path} is a split of another source.\n"
        f"  saved:  {contents['source']!r}, {contents['examples']} examples, checksum {contents['checksum']}\n"
        f"  given:  {source.name!r}, {len(source.x)} examples, checksum {mine}\n"
        "Load it with the source it was split from, prepared in the same way; save it before standardising.",
    )
    lengths = [length for _, _, *both in contents["learners"] for length in both]
    parts = unpack(packed, [*lengths, contents["test"], contents["stimuli"]])
    learners = tuple(
        Island(name, train, test, role)
        for (name, role, *_), train, test in zip(contents["learners"], parts[:-2:2], parts[1:-2:2], strict=True)
    )
    return Islands(source.x, source.y, learners, parts[-2], parts[-1], contents["classes"], contents["source"])


def read(path: Path) -> tuple[dict[str, Any], bytearray]:
    """What the header says and the packed indices, refused when they are not as they were written."""
    damaged = f"{path} is no split of Archipel, or it is damaged: "
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[HEADER])
            written = int(header["format"])
            packed = bytearray(file.get_tensor("indices").numpy()) if written <= FORMAT else bytearray()
            contents, expected = header.get("contents"), header.get("digest")
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{damaged}{error}. Have it saved or copied again.") from None
    require(
        written <= FORMAT,
        f"{path} was saved by a newer Archipel: its format is {written}, this one reads up to {FORMAT}. "
        "Update Archipel, or have the split saved by this version.",
    )
    found = digest(contents, packed)
    require(
        found == expected,
        f"{damaged}its contents have the digest {found}, written was {expected}. Have it saved or copied again.",
    )
    return contents, packed


def pack(parts: Iterable[Tensor]) -> bytearray:
    """Indices as steps from one to the next, compressed."""
    steps = np.concatenate([np.diff(part.numpy(), prepend=0) for part in parts]).astype("<i8")
    # first bytes of all steps, then second bytes …: small steps leave long runs of zeros
    return bytearray(zlib.compress(steps.view(np.uint8).reshape(-1, 8).T.tobytes()))


def unpack(packed: bytearray, lengths: list[int]) -> list[Tensor]:
    """The parts of these lengths, as they were packed."""
    planes = np.frombuffer(zlib.decompress(packed), dtype=np.uint8).reshape(8, -1)
    steps = np.ascontiguousarray(planes.T).view("<i8").ravel().astype(np.int64)
    return [torch.from_numpy(part.cumsum()) for part in np.split(steps, np.cumsum(lengths)[:-1])]


def checksum(x: Tensor, y: Tensor) -> str:
    """SHA-256 of the examples: kinds of number, shapes and every bit of x and y."""
    sha = hashlib.sha256()
    for tensor in (x, y):
        sha.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        # some at a time: x may be mapped from a disk, and larger than memory
        for some in tensor.split(4096):
            sha.update(some.contiguous().flatten().view(torch.uint8).numpy())
    return sha.hexdigest()


def digest(contents: object, packed: bytearray) -> str:
    """SHA-256 of what the file says."""
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode() + packed).hexdigest()

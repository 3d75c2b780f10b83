"""GTSRB, the German traffic signs: 39,209 + 12,630 photographs in 43 classes.

The files are the three official archives, the folders in them, or an .npz with x_train, y_train, track_train, x_test
and y_test (uint8, [examples, 32, 32, 3]). The official photographs have many sizes: each is scaled as a whole, without
cutting out the sign, to 32 x 32 (bilinear, with antialiasing). Values are between 0 and 1, shape [examples, 3, 32, 32].

A track is one physical sign, photographed 30 times from a passing car: tracks are the sites, named `<class>/<track>`.
The tracks of the official test images are not published: these images share a last site, `test`.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from archipel.data.fetch import DataFiles, File, Found, fetch
from archipel.data.lazy import RowBuffer, remembered
from archipel.data.source import Source
from archipel.data.sources.cifar import npz_arrays
from archipel.data.sources.images import image_array

ADDRESS = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370/"
CLASSES = 43
SIZE = 32
TRAINING = "GTSRB/Final_Training/Images"
TESTING = "GTSRB/Final_Test/Images"
TRUTH = "GT-final_test.csv"

ARCHIVES = tuple(
    File(name, (ADDRESS + name,), f"md5:{digest}")
    for name, digest in (
        ("GTSRB_Final_Training_Images.zip", "f33fd80ac59bff73c82d25ab499e03a3"),
        ("GTSRB_Final_Test_Images.zip", "c7e4e6327067d32654124b0fe9e82185"),
        ("GTSRB_Final_Test_GT.zip", "fe31e9c9270bbcd7b84b7f21a9d9d9e5"),
    )
)
FOLDERS = (
    File(TRAINING, also=("Final_Training/Images",)),
    File(TESTING, also=("Final_Test/Images",)),
    File(TRUTH, also=(f"{TESTING}/{TRUTH}", f"Final_Test/Images/{TRUTH}", f"GTSRB/{TRUTH}")),
)
NPZ = (File("gtsrb*.npz"),)
WANTED = DataFiles("gtsrb", (ARCHIVES, FOLDERS, NPZ))

ReadFile = Callable[[str], bytes]
"""Returns the contents of a file by name."""


def gtsrb(verify: bool = True) -> Source:
    """Load 51,839 German traffic signs of 32 x 32 in 43 classes; sites are tracks, the official test set comes last.

    verify: refuse files that are not the official ones.
    """
    found = fetch(WANTED, verify)

    def decode(folder: Path | None) -> Source:
        rows = RowBuffer((3, SIZE, SIZE), folder=folder)
        if found.files is NPZ:
            labels, tracks, tested = from_npz(found.paths[0], rows)
        else:
            labels, tracks, tested = from_official(found, rows)
        pairs, codes = np.unique(
            np.stack([labels[: len(tracks)], tracks.astype(np.int64)], axis=1), axis=0, return_inverse=True
        )
        names = [f"{label:02}/{track:03}" for label, track in pairs.tolist()]
        sites = np.concatenate([codes.ravel(), np.full(tested, len(names))])
        return Source(
            rows.tensor(),
            torch.from_numpy(labels),
            CLASSES,
            "gtsrb",
            test=torch.arange(len(tracks), len(labels)),
            sites=torch.from_numpy(sites),
            site_names=(*names, "test"),
        )

    return remembered("gtsrb", found.paths, verify, decode)


def from_npz(path: Path, rows: RowBuffer) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Add the images of an .npz file; return labels, tracks, and the number of test images."""
    arrays = npz_arrays(path, "x_train", "y_train", "track_train", "x_test", "y_test")
    for part in ("train", "test"):
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if images.dtype != np.uint8 or images.shape[1:] != (SIZE, SIZE, 3) or labels.shape != images.shape[:1]:
            raise ValueError(
                f"{path}: x_{part} should be uint8 of shape (examples, {SIZE}, {SIZE}, 3) with a label each, got "
                f"{images.dtype} of shape {images.shape} and labels of shape {labels.shape}."
            )
        rows.add_images(images.transpose(0, 3, 1, 2))
    both = np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(np.int64)
    return both, arrays["track_train"].astype(np.int64), len(arrays["y_test"])


def from_official(found: Found, rows: RowBuffer) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Add the images of the official archives or folders; return labels, tracks, and the number of test images."""
    labels, tracks = [], []
    with ExitStack() as stack:
        training, testing, truth = readers(found, stack)
        for label in range(CLASSES):
            folder = f"{label:05}"
            listing = table(training(f"{folder}/GT-{folder}.csv"), f"{TRAINING}/{folder}/GT-{folder}.csv")
            names = [row["Filename"] for row in listing]
            labels += [int(row["ClassId"]) for row in listing]
            tracks += [int(name.split("_")[0]) for name in names]
            for block in blocks(names, lambda name, folder=folder: training(f"{folder}/{name}")):  # type: ignore[misc]
                rows.add(block)
        listing = table(truth(TRUTH), TRUTH)
        labels += [int(row["ClassId"]) for row in listing]
        for block in blocks([row["Filename"] for row in listing], testing):
            rows.add(block)
    return np.array(labels, np.int64), np.array(tracks, np.int64), len(listing)


def readers(found: Found, stack: ExitStack) -> tuple[ReadFile, ReadFile, ReadFile]:
    """Return functions that read files of the training part, of the test part, and the test labels."""
    prefixes = (TRAINING, TESTING, "")
    reads: list[ReadFile] = []
    for number, prefix in enumerate(prefixes):
        path = found.check(number) if found.files is ARCHIVES else found.paths[number]
        if found.files is ARCHIVES:
            try:
                archive = stack.enter_context(zipfile.ZipFile(path))
            except zipfile.BadZipFile as error:
                raise ValueError(
                    f"{path} is truncated or damaged: {error}. Delete it and copy or download it again."
                ) from error
            reads.append(from_zip(archive, path, f"{prefix}/" if prefix else ""))
        else:
            reads.append(from_folder(path if path.is_dir() else path.parent))
    return reads[0], reads[1], reads[2]


def from_zip(archive: zipfile.ZipFile, path: Path, prefix: str) -> ReadFile:
    """Return a function that reads files of an archive."""

    def read(name: str) -> bytes:
        try:
            return archive.read(prefix + name)
        except (KeyError, zipfile.BadZipFile, EOFError) as error:
            raise ValueError(
                f"{path} is truncated or damaged at {prefix + name}: {error}. Delete it and copy or download it again."
            ) from error

    return read


def from_folder(folder: Path) -> ReadFile:
    """Return a function that reads files of a folder."""

    def read(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except FileNotFoundError as error:
            raise ValueError(f"gtsrb: {folder / name} is missing. Unpack the official archives again.") from error

    return read


def table(data: bytes, what: str) -> list[dict[str, str]]:
    """Return the rows of an official annotation."""
    rows = list(csv.DictReader(io.StringIO(data.decode()), delimiter=";"))
    if not rows or not {"Filename", "ClassId"} <= rows[0].keys():
        raise ValueError(f"gtsrb: {what} is not an annotation with Filename and ClassId. Use the official file.")
    return rows


def blocks(names: list[str], read: ReadFile) -> Iterator[NDArray[np.float32]]:
    """Yield the images with these names, scaled to one size, in blocks."""
    for start in range(0, len(names), 512):
        images = [scaled(image_array(read(name), f"gtsrb: {name}", "PPM")) for name in names[start : start + 512]]
        yield torch.cat(images).numpy()


def scaled(image: NDArray[np.uint8]) -> Tensor:
    """Scale one image to [1, 3, SIZE, SIZE] with values from 0 to 1."""
    colours = torch.tensor(image, dtype=torch.float32).permute(2, 0, 1)[None] / 255
    small: Tensor = functional.interpolate(colours, (SIZE, SIZE), mode="bilinear", antialias=True)
    return small.clamp(0, 1)

"""EMNIST: handwritten digits and letters of 28 x 28 from NIST's Special Database 19.

The files are the official archive of idx files (gzip.zip), or the four idx files of a split. The files hold images
transposed; here they are upright, as MNIST's. Values are between 0 and 1, shape [examples, 1, 28, 28]; the official
test images come last and are the source's test set.

  byclass   62 classes: 0-9, A-Z, a-z    697,932 + 116,323
  bymerge   47 classes, capital and small letters of one shape merged, the same images
  balanced  47 classes, as many of each  112,800 + 18,800
  letters   26 classes, a to z           124,800 + 20,800; numbered from 1 in the file, from 0 here
  digits    10 classes                   240,000 + 40,000
  mnist     10 classes                    60,000 + 10,000
"""

from __future__ import annotations

import gzip
import zipfile
from functools import partial
from pathlib import Path

import numpy as np

from archipel.core.checks import one_of
from archipel.data.fetch import DataFiles, File, Found, fetch, read_complete
from archipel.data.lazy import remembered
from archipel.data.source import Source
from archipel.data.sources.idx import LabelledImages, idx_array, official_split, pair

CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}

ARCHIVE = File(
    "gzip.zip",
    ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
    "md5:58c8d27c78d21e728a6bc7b3cc06412e",
    also=("emnist-gzip.zip", "emnist.zip"),
)


def emnist(split: str = "byclass", verify: bool = True) -> Source:
    """Load 814,255 handwritten digits and letters of 28 x 28 in 62 classes, or another of the six official splits.

    split: byclass, bymerge, balanced, letters, digits or mnist; verify: refuse files that are not the official ones.
    """
    one_of("emnist", "split", split, CLASSES)
    names = idx_names(split)
    found = fetch(wanted(split), verify)

    def decode(folder: Path | None) -> Source:
        contents = members(found, names) if found.files[0] is ARCHIVE else [found.read(n) for n in range(4)]
        arrays = [
            idx_array(data, f"{found.paths[0].parent / name}") for name, data in zip(names, contents, strict=True)
        ]
        train, test = pair(arrays[0], arrays[1], names[0]), pair(arrays[2], arrays[3], names[2])
        first = 1 if split == "letters" else 0
        return official_split(f"emnist-{split}", CLASSES[split], upright(train, first), upright(test, first), folder)

    return remembered(f"emnist-{split}", found.paths, verify, decode)


def idx_names(split: str) -> list[str]:
    """Return the names of the four files of a split."""
    return [
        f"emnist-{split}-{part}-{kind}-ubyte.gz"
        for part in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    ]


def wanted(split: str) -> DataFiles:
    """Return the files of a split: the archive of all six, or four idx files."""
    return DataFiles("emnist", ((ARCHIVE,), tuple(File(name, also=(f"gzip/{name}",)) for name in idx_names(split))))


def upright(part: LabelledImages, first: int) -> LabelledImages:
    """Return upright images, and labels from 0."""
    images, labels = part
    return images.swapaxes(1, 2), labels - np.uint8(first)


def members(found: Found, names: list[str]) -> list[bytes]:
    """Return the contents of the archive's files with these names, in any folder."""
    path = found.check()
    try:
        with zipfile.ZipFile(path) as archive:
            inside = {Path(name).name: name for name in archive.namelist()}
            missing = [name for name in names if name not in inside]
            if missing:
                raise ValueError(f"{path} lacks {', '.join(missing)}. Is it EMNIST's archive of idx files?")
            packed = [archive.read(inside[name]) for name in names]
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"{path} is truncated or damaged: {error}. Delete it and copy or download it again."
        ) from error
    return [read_complete(path, partial(gzip.decompress, data)) for data in packed]

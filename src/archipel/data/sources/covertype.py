"""Covertype (UCI): 581,012 patches of forest ground of 30 x 30 m, 54 numbers each, in seven classes of trees.

x keeps the values of the file; standardise after splitting. The wilderness areas are the sites. Ten of the 54 columns
are quantities; the others encode one of 4 wilderness areas and one of 40 soil types, one-hot. RADFed's COVFEAT skews
"categorical features" (formula 2) without naming them; here they are those two, with all their values, and the columns
stay in x. RADFed's Table I (4,920 rows a learner, 100 learners) implies classes 1 and
2 only: `covertype(classes=(1, 2))`, 495,141 rows where the paper has 492,000 (docs/decisions/0029).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from archipel.core.checks import require
from archipel.data.fetch import DataFiles, File, fetch
from archipel.data.source import Source

WANTED = DataFiles(
    "covertype",
    (
        (
            File(
                "covtype.data.gz",
                ("https://archive.ics.uci.edu/ml/machine-learning-databases/covtype/covtype.data.gz",),
                "sha256:0a9371cef7c964b5475d6053cc3e0894a5aa6f65ad1ed3ecb01c45aa96217945",
            ),
        ),
    ),
)
COLUMNS = 54
AREAS, SOILS = slice(10, 14), slice(14, 54)
WILDERNESS = ("Rawah", "Neota", "Comanche Peak", "Cache la Poudre")
KINDS = 7
BLOCK = 2**22


def covertype(classes: Sequence[int] | None = None, verify: bool = True) -> Source:
    """Load 581,012 patches of forest ground with 54 numbers each, in 7 classes of trees; wilderness areas are sites.

    classes: classes 1 to 7 that are kept, numbered from 0 in the order given; None: all.
    verify: refuse files that are not the official ones.
    """
    kept = tuple(range(1, KINDS + 1)) if classes is None else tuple(classes)
    require(
        len(kept) >= 2 and len(set(kept)) == len(kept) and all(kind in range(1, KINDS + 1) for kind in kept),
        f"covertype: classes should be two or more different numbers from 1 to {KINDS}, got {classes!r}.",
    )
    found = fetch(WANTED, verify)
    x, kinds = table(found.read(), str(found.paths[0]))
    number = np.full(KINDS + 1, -1)
    number[list(kept)] = np.arange(len(kept))
    labels = number[kinds]
    if len(kept) < KINDS:
        x, labels = x[labels >= 0], labels[labels >= 0]
    areas, soils = x[:, AREAS].argmax(1), x[:, SOILS].argmax(1)
    return Source(
        torch.from_numpy(x),
        torch.from_numpy(labels),
        len(kept),
        "covertype",
        sites=torch.from_numpy(areas),
        site_names=WILDERNESS,
        categories={"wilderness": torch.from_numpy(areas), "soil": torch.from_numpy(soils)},
    )


def table(data: bytes, what: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the 54 numbers of every line, and its class."""
    lines = data.count(b"\n")
    x, kinds = np.empty((lines, COLUMNS), np.float32), np.empty(lines, np.int64)
    start = row = 0
    # in parts: the text, integers and floats together take several times the memory of the table
    while start < len(data):
        end = data.find(b"\n", start + BLOCK) + 1 or len(data)
        part = data[start:end]
        with warnings.catch_warnings():
            # numpy warns of text that is not a number; later versions raise
            warnings.simplefilter("error", DeprecationWarning)
            try:
                values = np.fromstring(part.replace(b"\n", b","), dtype=np.int32, sep=",")
            except (ValueError, DeprecationWarning):
                values = np.empty(0, np.int32)
        count = part.count(b"\n")
        if len(values) != count * (COLUMNS + 1):
            raise ValueError(
                f"{what} is truncated or damaged: the {count} lines from line {row + 1} on should be {COLUMNS + 1} "
                f"whole numbers each, and are not. Copy or download it again."
            )
        rows = slice(row, row + count)
        x[rows], kinds[rows] = values.reshape(count, -1)[:, :-1], values[COLUMNS :: COLUMNS + 1]
        start, row = end, row + count
    wrong = np.flatnonzero((kinds < 1) | (kinds > KINDS) | (x[:, AREAS].sum(1) != 1) | (x[:, SOILS].sum(1) != 1))
    if len(wrong):
        raise ValueError(
            f"{what} is damaged: line {wrong[0] + 1} should have one wilderness area, one soil type, and a class "
            f"from 1 to {KINDS}. Copy or download it again."
        )
    return x, kinds

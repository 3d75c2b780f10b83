"""FEMNIST: EMNIST by writer, as LEAF's scripts make it (62 classes: 0-9, A-Z, a-z; 3,550 writers).

Images are [examples, 1, 28, 28] with values between 0 and 1 as in LEAF's files: the background is 1, where MNIST's is
0. Writers are the sites. If LEAF's files have a test part, it is the test set.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from archipel.data.fetch import DataFiles
from archipel.data.lazy import RowBuffer, remembered
from archipel.data.source import Source
from archipel.data.sources.leaf import FORMS, find_leaf, users

WANTED = DataFiles(
    "femnist",
    FORMS,
    how=(
        "FEMNIST is made by LEAF (https://github.com/TalwalkarLab/leaf): run data/femnist/preprocess.sh there, "
        "for instance with `-s niid --sf 1.0 -k 0 -t sample`."
    ),
)
PIXELS = 28 * 28
CLASSES = 62


def femnist() -> Source:
    """Load handwritten digits and letters of 28 x 28 in 62 classes; LEAF's 3,550 writers are the sites."""
    leaf = find_leaf(WANTED)

    def decode(folder: Path | None) -> Source:
        rows = RowBuffer((1, 28, 28), folder=folder)
        writers: dict[str, int] = {}
        labels, sites, tested = [], [], []
        for user in users(leaf):
            try:
                images = np.asarray(user.x, dtype=np.float32).reshape(-1, PIXELS)
                kinds = np.asarray(user.y, dtype=np.int64)
            except ValueError as error:
                raise ValueError(
                    f"{user.path}: the images of writer {user.name!r} should be lists of {PIXELS} numbers: {error}."
                ) from error
            if len(images) != len(kinds) or not np.isfinite(images).all():
                raise ValueError(f"{user.path}: writer {user.name!r} has images that are not {PIXELS} numbers each.")
            rows.add(images.reshape(-1, 1, 28, 28))
            labels.append(kinds)
            sites.append(np.full(len(kinds), writers.setdefault(user.name, len(writers))))
            tested.append(np.full(len(kinds), user.test))
        test = np.flatnonzero(np.concatenate(tested))
        return Source(
            rows.tensor(),
            torch.from_numpy(np.concatenate(labels)),
            CLASSES,
            "femnist",
            test=torch.from_numpy(test) if len(test) else None,
            sites=torch.from_numpy(np.concatenate(sites)),
            site_names=tuple(writers),
        )

    return remembered("femnist", leaf.paths, None, decode)

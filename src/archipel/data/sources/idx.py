"""The idx format of MNIST and EMNIST: two zero bytes, a type, the number of dimensions, the dimensions, the values."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from archipel.data.lazy import RowBuffer
from archipel.data.source import Source

UNSIGNED_BYTE = 8

LabelledImages = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Images, [examples, height, width], and their labels."""


def idx_array(data: bytes, what: str) -> NDArray[np.uint8]:
    """Return the array of bytes in an idx file."""
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != UNSIGNED_BYTE:
        raise ValueError(
            f"{what} is not an idx file of bytes: it begins with {data[:4].hex(' ') or 'nothing'}, not with "
            "00 00 08. Copy or download it again."
        )
    head = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[place : place + 4], "big") for place in range(4, head, 4))
    wanted = head + math.prod(shape)
    if len(data) != wanted:
        raise ValueError(
            f"{what} is truncated or damaged: its header says {shape}, {wanted} bytes, but it has {len(data)}. "
            "Copy or download it again."
        )
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def pair(images: NDArray[np.uint8], labels: NDArray[np.uint8], what: str) -> LabelledImages:
    """Return images and their labels; refuse them if their shapes do not match."""
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{what}: images of shape {images.shape} and labels of shape {labels.shape} do not match. "
            "Take both files from the same set."
        )
    return images, labels


def official_split(
    name: str, classes: int, train_part: LabelledImages, test_part: LabelledImages, folder: Path | None
) -> Source:
    """Return a source of grey images, [examples, 1, height, width], whose last examples are the official test set."""
    (train, train_labels), (test, test_labels) = train_part, test_part
    rows = RowBuffer((1, *train.shape[1:]), folder=folder, expected=len(train) + len(test))
    rows.add_images(train)
    rows.add_images(test)
    labels = np.concatenate([train_labels, test_labels]).astype(np.int64)
    held_out = torch.arange(len(train), len(labels))
    return Source(rows.tensor(), torch.from_numpy(labels), classes, name, test=held_out)

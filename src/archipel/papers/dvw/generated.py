"""Files of CIFAR-100 and of EMNIST ByClass in their official formats, made of noise: they show that a study runs.

They are read as the official ones are. Nothing can be learned from them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from archipel.core.randomness import generator
from archipel.data.fetch import File, Found
from archipel.data.lazy import RowBuffer
from archipel.data.source import Source
from archipel.data.sources.cifar import CIFAR100, from_binary
from archipel.data.sources.emnist import CLASSES, upright
from archipel.data.sources.idx import LabelledImages, idx_array, official_split, pair


def cifar100(each: int) -> Source:
    """Two .bin files: a coarse and a fine label before the pixels of an image.

    each: training images of every class; there is one test image of each.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = (*CIFAR100.train, CIFAR100.test)
        paths = tuple(Path(folder) / name for name in names)
        for path, count in zip(paths, (each, 1), strict=True):
            fine = _labels(CIFAR100.classes, count)
            path.write_bytes(np.column_stack([fine // 5, fine, _noise(len(fine), 3 * 32 * 32)]).tobytes())
        rows = RowBuffer((3, 32, 32))
        known, held_out = from_binary(CIFAR100, Found(tuple(map(File, names)), paths, verify=True), rows, label=1)
    labels = torch.from_numpy(np.concatenate([known, held_out]).astype(np.int64))
    return Source(rows.tensor(), labels, CIFAR100.classes, "noise as cifar100", torch.arange(len(known), len(labels)))


def emnist(each: int) -> Source:
    """Four idx files: images and labels, for training and test.

    each: training images of every class; there is one test image of each.
    """
    return official_split("noise as emnist-byclass", CLASSES["byclass"], _emnist_part(each), _emnist_part(1), None)


def _emnist_part(each: int) -> LabelledImages:
    labels = _labels(CLASSES["byclass"], each)
    images = _noise(len(labels), 28, 28)
    return upright(pair(idx_array(_idx(images), "images"), idx_array(_idx(labels), "labels"), "noise"), first=0)


def _idx(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.tobytes()


def _labels(classes: int, each: int) -> NDArray[np.uint8]:
    return np.tile(np.arange(classes, dtype=np.uint8), each)


def _noise(*shape: int) -> NDArray[np.uint8]:
    return generator(0, "generated").integers(0, 256, shape, dtype=np.uint8)

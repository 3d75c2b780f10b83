"""Colour skew (D&C section 4.1): images of one half of the classes are mostly grey, those of the other mostly not.

"To skew the data further using a 95-5% skew pattern, 95% of images in the first group are converted to gray-scale and
5% of images in the second group." The first group is the first half of the classes, so that
`source.colour_skew(0.95).split(learners=2, classes="disjoint(5)")` puts each group at one collaborator.

The paper leaves open, and here it is: grey is the luma of ITU-R 601, 0.299 R + 0.587 G + 0.114 B, in three equal
channels; the shares hold for each class, exact to the image; the official test images are converted alike, or one half
of every class (FedMA's code, on which D&C's experiments rest), or stay in colour, or are all grey.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from archipel.core.checks import one_of, require
from archipel.core.randomness import generator
from archipel.data.array_types import BoolArray, IntArray
from archipel.data.forms import a_number, span
from archipel.data.splits import draw

LUMA = (0.299, 0.587, 0.114)
CHUNK = 4096
"""Images converted at a time: x may be larger than memory."""


def grey_images(
    name: str, labels: IntArray, classes: int | None, official: Tensor | None, share: float, test: str, seed: int
) -> BoolArray:
    """Mark the images that become grey; `Source.colour_skew` documents the arguments.

    name: of the source, for errors; official: indices of its official test set.
    """
    if classes is None or classes < 2 or classes % 2:
        raise ValueError(f"colour_skew: two groups need an even number of classes, but {name!r} has {classes}.")
    one_of("colour_skew", "test", test, ("alike", "half", "colour", "grey"))
    require(
        test == "alike" or official is not None,
        f"colour_skew: test={test!r}, but {name!r} has no official test set, and the test set of a split is not known "
        "yet. Pass test='alike'.",
    )
    tested = np.zeros(len(labels), dtype=bool)
    if official is not None:
        tested[official.numpy()] = True
    grey = tested & (test == "grey")
    grey[~tested] = drawn_grey(labels[~tested], share, classes, (seed, "data", "colour", "train"))
    if test in ("alike", "half"):
        part = share if test == "alike" else 0.5
        grey[tested] = drawn_grey(labels[tested], part, classes, (seed, "data", "colour", "test"))
    return grey


def with_grey(x: Tensor, grey: BoolArray) -> Tensor:
    """Return a copy of x in which the marked images are grey."""
    skewed = torch.empty_like(x)
    for start in range(0, len(x), CHUNK):
        some = slice(start, start + CHUNK)
        skewed[some] = x[some]
        mine = torch.from_numpy(start + np.flatnonzero(grey[some]))
        skewed[mine] = luma(x[mine])
    return skewed


def drawn_grey(labels: IntArray, share: float, classes: int, key: tuple[int | str, ...]) -> BoolArray:
    """Mark the share of every class in the first half of the classes, and 1 - share of the others."""
    shares = np.where(np.arange(classes) < classes // 2, share, 1 - share)
    counts = np.floor(shares * np.bincount(labels, minlength=classes) + 0.5 + 1e-9).astype(np.int64)
    return draw(labels, counts, generator(*key))


def luma(images: Tensor) -> Tensor:
    """Return grey images of the same shape and dtype."""
    weights = torch.tensor(LUMA, dtype=torch.float64).reshape(1, 3, 1, 1)
    grey = (images * weights).sum(1, keepdim=True)
    if not images.is_floating_point():
        grey = grey.round()
    return grey.to(images.dtype).expand_as(images)


def grey_share(share: float | str) -> float:
    """Return the first group's share of grey images from 0.95, or from "95-5" as D&C writes it."""
    value: object = share
    if isinstance(share, str):
        ends = span(share)
        value = ends[0] / 100 if ends is not None and sum(ends) == 100 else a_number(share)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"colour_skew: share should be from 0 to 1, or two percentages such as '95-5', got {share!r}.")
    return float(value)

"""Colour skew (D&C section 4.1): two groups of classes, the images of one mostly grey, those of the other mostly not.

"To skew the data further using a 95-5% skew pattern, 95% of images in the first group are converted to gray-scale and
5% of images in the second group." The first group is the first half of the classes, so that
`source.colour_skew(0.95).split(learners=2, classes="disjoint(5)")` puts each group at one collaborator.

Not said in the paper, and read so: grey is the luma of ITU-R 601, 0.299 R + 0.587 G + 0.114 B, in three equal channels;
the shares hold class by class, to the image; the official test images are turned alike, or stay in colour, or are all
grey.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from archipel.core.checks import one_of, require
from archipel.core.randomness import generator
from archipel.data.classes import Held
from archipel.data.forms import a_number, span
from archipel.data.sizes import Counts
from archipel.data.splits import draw

if TYPE_CHECKING:
    from archipel.data.source import Source

LUMA = (0.299, 0.587, 0.114)
CHUNK = 4096
"""So many images are turned at a time: x may be larger than memory."""


def colour_skewed(source: Source, share: float | str, test: str, seed: int) -> Source:
    """The source with some of its images grey; `Source.colour_skew` documents it."""
    x, name, part = source.x, source.name, grey_share(share)
    require(
        x.ndim == 4 and x.shape[1] == 3,
        f"colour_skew: {name!r} has no colour images: x should have the shape [examples, 3, height, width], got "
        f"{tuple(x.shape)}.",
    )
    classes = source.classes or 0
    require(
        classes >= 2 and classes % 2 == 0,
        f"colour_skew: two groups need an even number of classes, but {name!r} has {source.classes}.",
    )
    one_of("colour_skew", "test", test, ("alike", "colour", "grey"))
    tested = np.zeros(len(x), dtype=bool)
    if source.test is not None:
        tested[source.test.numpy()] = True
    require(
        test == "alike" or source.test is not None,
        f"colour_skew: test={test!r}, but {name!r} has no official test set, and which images a split will hold out is "
        "not known before. Say test='alike'.",
    )
    labels, grey = source.y.numpy(), tested & (test == "grey")
    grey[~tested] = turned(labels[~tested], part, classes, (seed, "data", "colour", "train"))
    if test == "alike":
        grey[tested] = turned(labels[tested], part, classes, (seed, "data", "colour", "test"))
    skewed = torch.empty_like(x)
    for start in range(0, len(x), CHUNK):
        some = slice(start, start + CHUNK)
        skewed[some] = x[some]
        mine = torch.from_numpy(start + np.flatnonzero(grey[some]))
        skewed[mine] = luma(x[mine])
    return replace(source, x=skewed, name=f"{name}, {part:.0%} and {1 - part:.0%} grey")


def turned(labels: Counts, share: float, classes: int, key: tuple[int | str, ...]) -> Held:
    """Mark the images that are turned to grey: the share of every class of the first half, 1 - share of the others."""
    shares = np.where(np.arange(classes) < classes // 2, share, 1 - share)
    counts = np.floor(shares * np.bincount(labels, minlength=classes) + 0.5 + 1e-9).astype(np.int64)
    return draw(labels, counts, generator(*key))


def luma(images: Tensor) -> Tensor:
    """Grey images of the same shape and kind of number."""
    weights = torch.tensor(LUMA, dtype=torch.float64).reshape(1, 3, 1, 1)
    grey = (images * weights).sum(1, keepdim=True)
    if not images.is_floating_point():
        grey = grey.round()
    return grey.to(images.dtype).expand_as(images)


def grey_share(share: float | str) -> float:
    """The first group's share of grey images: 0.95, or "95-5" as D&C writes it."""
    value: object = share
    if isinstance(share, str):
        ends = span(share)
        value = ends[0] / 100 if ends is not None and sum(ends) == 100 else a_number(share)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(
            f"colour_skew: share should be from 0 to 1, or two parts of a hundred such as '95-5', got {share!r}."
        )
    return float(value)

"""The images of the small scale's long runs: of half their side, for a network that sees nothing but pixels."""

from __future__ import annotations

from dataclasses import replace

from torch.nn.functional import avg_pool2d

from archipel.data.source import Source
from archipel.reproduce.subset import first_of_each


def half_side(of: str, train: int, test: int) -> Source:
    """The first training and test images of each class, every pixel the mean of four.

    of: the data set, by name; train, test: images of each class.
    """
    part = first_of_each(of, train, test)
    return replace(part, x=avg_pool2d(part.x, 2), name=f"{part.name}, half side")

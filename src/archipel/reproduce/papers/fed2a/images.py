"""The images of the small scale: a quarter of the pixels, so that an MLP on them is four times as fast."""

from __future__ import annotations

from dataclasses import replace

from torch.nn.functional import avg_pool2d

from archipel import data
from archipel.checks import one_of
from archipel.data.source import Source
from archipel.data.sources.catalogue import FILES


def half_side(of: str) -> Source:
    """A data set of images of half their side: every pixel is the mean of four.

    of: the data set, by name.
    """
    one_of("half_side", "of", of, FILES)
    whole: Source = getattr(data, of)()
    return replace(whole, x=avg_pool2d(whole.x, 2), name=f"{of}, half side")

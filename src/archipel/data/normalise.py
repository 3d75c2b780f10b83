"""Normalisation of images by given numbers, one for each channel; `standardise.py` takes them from the data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from archipel.core.checks import more_than, require

IMAGES = 4096
"""Images converted at a time: x may be larger than memory."""


def normalised(x: Tensor, mean: Sequence[float], deviation: Sequence[float], name: str) -> Tensor:
    """Return (x - mean) / deviation, channel by channel; name: of the source, for errors."""
    channels = x.shape[1] if x.ndim == 4 else 0
    require(
        x.is_floating_point() and channels == len(mean) == len(deviation),
        f"normalised: {name!r} has {channels} channels of {x.dtype}, and there are {len(mean)} means and "
        f"{len(deviation)} deviations; give one of each for every channel of images of floating point.",
    )
    for number in deviation:
        more_than(0, "normalised", deviation=number)
    centre, scale = (torch.tensor(list(each), dtype=x.dtype).reshape(1, -1, 1, 1) for each in (mean, deviation))
    found = torch.empty_like(x)
    for start in range(0, len(x), IMAGES):
        some = slice(start, start + IMAGES)
        found[some] = (x[some] - centre) / scale
    return found

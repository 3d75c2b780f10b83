"""Augmentation: training images that are cropped and flipped at random, differently in every epoch.

Draws are a function of the task's key, the epoch and the example's position at its learner, so that an image is changed
in the same way whatever the order, the batches or the execution. Images are scored as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.core.checks import at_least, require
from archipel.core.randomness import generator


@dataclass(frozen=True)
class Augment:
    """Pad an image by reflection, crop it to its size at a random place, and flip it with a probability of one half."""

    pad: int = 4
    """Pixels of padding on each side, filled by reflection at the edge; 0: images are not cropped."""
    flip: bool = True
    """Flip half of the images, left to right."""

    def __post_init__(self) -> None:
        at_least(0, "Augment", pad=self.pad)
        require(self.pad > 0 or self.flip, "Augment: pad=0 and flip=False change nothing; leave augment out.")

    def check(self, x: Tensor, name: str) -> None:
        """Refuse examples that are no images of a sufficient size."""
        require(
            x.ndim == 4 and x.is_floating_point(),
            f"Augment: {name!r} has no images: x should have the shape [examples, channels, height, width] and be of "
            f"floating point, got {tuple(x.shape)} and {x.dtype}.",
        )
        side = min(x.shape[2:])
        require(
            self.pad < side,
            f"Augment: pad={self.pad} cannot be reflected from images whose shorter side is {side}; give less than "
            f"{side}.",
        )

    def draws(self, key: int, epoch: int, examples: int) -> Tensor:
        """Draw for each example of an epoch: rows and columns by which it is shifted, and 1 if it is flipped."""
        source = generator(key, "augment", epoch)
        shifts = torch.from_numpy(source.integers(-self.pad, self.pad + 1, size=(examples, 2)))
        flips = torch.from_numpy(source.integers(0, 2, size=(examples, 1)))
        return torch.cat([shifts, flips if self.flip else torch.zeros_like(flips)], dim=1)

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return the images, each changed by its row of draws."""
        height, width = images.shape[2:]
        down, right, flipped = draws.to(images.device).T[:, :, None]
        rows = _reflected(torch.arange(height, device=images.device) + down, height)
        columns = torch.arange(width, device=images.device).expand(len(images), width)
        columns = _reflected(torch.where(flipped > 0, columns.flip(1), columns) + right, width)
        chosen = torch.arange(len(images), device=images.device)[:, None, None, None]
        channels = torch.arange(images.shape[1], device=images.device)[None, :, None, None]
        return images[chosen, channels, rows[:, None, :, None], columns[:, None, None, :]]


def _reflected(places: Tensor, length: int) -> Tensor:
    """Return the pixels that padding by reflection shows at these places; the edge itself is not repeated."""
    return (length - 1) - ((length - 1) - places.abs()).abs()

"""The network of the small scale."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def half_side_cnn(channels: int, size: int, classes: int) -> nn.Module:
    """Build a 2-CNN for images of half their side, about twenty times as fast as the tutorial's.

    channels: of the images, 1 for grey ones; size: side of the images; classes: how many there are.
    """
    return nn.Sequential(
        OrderedDict(
            halve=nn.AvgPool2d(2),
            conv1=nn.Conv2d(channels, 16, 3, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(16, 32, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            head=nn.Linear(32 * (size // 8) ** 2, classes),
        )
    )

"""The network of the small scale."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def half_side_vgg9(classes: int = 10) -> nn.Module:
    """VGG9 with an eighth of its widths (conv1 a quarter), on images of half their side: nine layers to divide.

    classes: how many there are.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(halve=nn.AvgPool2d(2))
    width = 3
    for number, wider in enumerate((8, 8, 16, 16, 32, 32), start=1):
        layers[f"conv{number}"] = nn.Conv2d(width, wider, 3, padding=1)
        layers[f"relu{number}"] = nn.ReLU()
        width = wider
        if number % 2 == 0:
            layers[f"pool{number // 2}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["fc1"] = nn.Linear(width * 2 * 2, 64)
    layers["relu7"] = nn.ReLU()
    layers["fc2"] = nn.Linear(64, 64)
    layers["relu8"] = nn.ReLU()
    layers["head"] = nn.Linear(64, classes)
    return nn.Sequential(layers)

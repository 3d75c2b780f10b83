"""Residual networks for 32 x 32 images, as TensorFlow's official models (r1.13) build them for CIFAR.

A network of depth 6n + 2 has three stages of n blocks with 16, 32 and 64 filters; a block is two 3 x 3
convolutions, each after batch normalisation and ReLU (version 2, pre-activation). Metis does not say which version it
used. Version 2 is the default of that code's model class; the default of its training script is version 1 since
September 2018.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional

from archipel.core.checks import at_least


def resnet50_cifar(classes: int = 100) -> nn.Module:
    """Build the ResNet-50 that Metis trains on CIFAR-100 (section VI, footnote 2), in TensorFlow's form for CIFAR.

    classes: number of classes.

    That code takes size 50 as 6n + 2, so there are n = 8 basic blocks in each stage: 764,468 parameters, not the 23
    million of the bottleneck ResNet-50 for ImageNet.
    """
    at_least(2, "resnet50_cifar", classes=classes)
    return resnet_cifar(50, classes)


def resnet_cifar(depth: int, classes: int, in_channels: int = 3, momentum: float = 0.003) -> nn.Module:
    """Build a network of the family of Metis' ResNet-50, at any depth of 6n + 2 and for images of any side.

    depth: 8, 14, 20 or another 6n + 2; classes: number of classes; in_channels: channels of the images, 3 for colours.
    momentum: weight of a new batch in the running statistics of batch normalisation.

    TensorFlow's code keeps 0.997 of the old statistics at each step. Runs of fewer than a thousand steps need a
    momentum above 0.003.
    """
    if depth < 8 or depth % 6 != 2:
        raise ValueError(f"resnet_cifar: depth should be 6n + 2 (8, 14, 20, 26, 32, …, 50), got {depth}.")
    at_least(2, "resnet_cifar", classes=classes)
    at_least(1, "resnet_cifar", in_channels=in_channels)
    if not 0.0 < momentum <= 1.0:
        raise ValueError(f"resnet_cifar: momentum should be more than 0 and at most 1, got {momentum}.")
    blocks = (depth - 2) // 6
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(in_channels, 16, 3, padding=1, bias=False),
            stage1=_stage(blocks, 16, 16, stride=1, momentum=momentum),
            stage2=_stage(blocks, 16, 32, stride=2, momentum=momentum),
            stage3=_stage(blocks, 32, 64, stride=2, momentum=momentum),
            norm=nn.BatchNorm2d(64, momentum=momentum),
            relu=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            head=nn.Linear(64, classes),
        )
    )


def small_resnet(classes: int = 10, in_channels: int = 3) -> nn.Module:
    """Build the family's smallest network, of depth 8, whose running statistics converge within tens of steps.

    classes: number of classes; in_channels: channels of the images, 3 for colours.
    """
    at_least(2, "small_resnet", classes=classes)
    at_least(1, "small_resnet", in_channels=in_channels)
    return resnet_cifar(8, classes, in_channels, momentum=0.1)


def _stage(blocks: int, filters_in: int, filters: int, stride: int, momentum: float) -> nn.Module:
    stage: OrderedDict[str, nn.Module] = OrderedDict()
    # the first block of every stage projects its shortcut, even if the shape does not change (stage 1)
    stage["block1"] = _Block(filters_in, filters, stride, momentum, projects=True)
    for number in range(2, blocks + 1):
        stage[f"block{number}"] = _Block(filters, filters, 1, momentum, projects=False)
    return nn.Sequential(stage)


class _Block(nn.Module):
    """Two convolutions and a shortcut; a projected shortcut starts after the first normalisation too."""

    def __init__(self, filters_in: int, filters: int, stride: int, momentum: float, *, projects: bool) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(filters_in, momentum=momentum)
        self.shortcut = nn.Conv2d(filters_in, filters, 1, stride, bias=False) if projects else None
        self.conv1 = nn.Conv2d(filters_in, filters, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(filters, momentum=momentum)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        active = functional.relu(self.norm1(images))
        kept: Tensor = images if self.shortcut is None else self.shortcut(active)
        change: Tensor = self.conv2(functional.relu(self.norm2(self.conv1(active))))
        return change + kept

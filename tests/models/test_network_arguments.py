"""Nonsense is refused where it is given, with the value and what would do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from archipel import models


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: models.logistic_regression(0, 2),
            "logistic_regression: features should be at least 1, got 0.",
        ),
        (
            lambda: models.logistic_regression(5, 1),
            "logistic_regression: classes should be at least 2, got 1.",
        ),
        (lambda: models.mlp(-3, 2), "mlp: features should be at least 1, got -3."),
        (lambda: models.mlp(5, 1), "mlp: classes should be at least 2, got 1."),
        (lambda: models.mlp(5, 2, hidden=(64, 0)), "mlp: hidden widths should be at least 1, got (64, 0)."),
        (
            lambda: models.mlp(5, 2, hidden=()),
            "mlp: hidden should have at least one width, got none. "
            "A network without hidden layers is logistic_regression(features, classes).",
        ),
        (lambda: models.small_mlp(features=0), "small_mlp: features should be at least 1, got 0."),
        (lambda: models.small_mlp(classes=1), "small_mlp: classes should be at least 2, got 1."),
        (lambda: models.cifar10_2cnn(classes=0), "cifar10_2cnn: classes should be at least 2, got 0."),
        (
            lambda: models.cifar10_2cnn(size=30),
            "cifar10_2cnn: size should be a multiple of 4 (two pools halve it), got 30. "
            "CIFAR-10 has 32, the tutorial's crop 24.",
        ),
        (
            lambda: models.cifar10_2cnn(size=0),
            "cifar10_2cnn: size should be a multiple of 4 (two pools halve it), got 0. "
            "CIFAR-10 has 32, the tutorial's crop 24.",
        ),
        (lambda: models.femnist_cnn(classes=1), "femnist_cnn: classes should be at least 2, got 1."),
        (lambda: models.femnist_cnn(hidden=0), "femnist_cnn: hidden should be at least 1, got 0."),
        (lambda: models.hdafl_cnn(classes=1), "hdafl_cnn: classes should be at least 2, got 1."),
        (lambda: models.cifar10_2cnn(width=0), "cifar10_2cnn: width should be more than 0, got 0."),
        (lambda: models.vgg9(classes=1), "vgg9: classes should be at least 2, got 1."),
        (lambda: models.vgg9(in_channels=0), "vgg9: in_channels should be at least 1, got 0."),
        (lambda: models.vgg9(dropout=1.0), "vgg9: dropout should be at least 0 and below 1, got 1.0."),
        (lambda: models.vgg9(dropout=-0.1), "vgg9: dropout should be at least 0 and below 1, got -0.1."),
        (lambda: models.vgg9(width=0), "vgg9: width should be more than 0, got 0."),
        (lambda: models.small_vgg(classes=1), "small_vgg: classes should be at least 2, got 1."),
        (lambda: models.small_vgg(in_channels=0), "small_vgg: in_channels should be at least 1, got 0."),
        (lambda: models.packet_cnn(1), "packet_cnn: classes should be at least 2, got 1."),
        (
            lambda: models.packet_cnn(35, length=5),
            "packet_cnn: length should be at least 6 (two convolutions and a pool shorten it), got 5.",
        ),
        (lambda: models.small_cnn(channels=0), "small_cnn: channels should be at least 1, got 0."),
        (
            lambda: models.small_cnn(size=3),
            "small_cnn: size should be at least 4 (two pools halve it), got 3.",
        ),
        (lambda: models.small_cnn(classes=1), "small_cnn: classes should be at least 2, got 1."),
        (lambda: models.resnet50_cifar(classes=1), "resnet50_cifar: classes should be at least 2, got 1."),
        (
            lambda: models.resnet_cifar(18, 10),
            "resnet_cifar: depth should be 6n + 2 (8, 14, 20, 26, 32, …, 50), got 18.",
        ),
        (
            lambda: models.resnet_cifar(2, 10),
            "resnet_cifar: depth should be 6n + 2 (8, 14, 20, 26, 32, …, 50), got 2.",
        ),
        (lambda: models.resnet_cifar(8, 1), "resnet_cifar: classes should be at least 2, got 1."),
        (
            lambda: models.resnet_cifar(8, 10, in_channels=0),
            "resnet_cifar: in_channels should be at least 1, got 0.",
        ),
        (
            lambda: models.resnet_cifar(8, 10, momentum=0.0),
            "resnet_cifar: momentum should be more than 0 and at most 1, got 0.0.",
        ),
        (lambda: models.small_resnet(classes=1), "small_resnet: classes should be at least 2, got 1."),
        (
            lambda: models.small_resnet(in_channels=0),
            "small_resnet: in_channels should be at least 1, got 0.",
        ),
        (
            lambda: models.shakespeare_lstm(vocabulary=1),
            "shakespeare_lstm: vocabulary should be at least 2, got 1.",
        ),
        (
            lambda: models.shakespeare_lstm(embedding=0),
            "shakespeare_lstm: embedding should be at least 1, got 0.",
        ),
        (lambda: models.shakespeare_lstm(hidden=0), "shakespeare_lstm: hidden should be at least 1, got 0."),
        (lambda: models.shakespeare_lstm(layers=0), "shakespeare_lstm: layers should be at least 1, got 0."),
        (lambda: models.small_lstm(vocabulary=1), "small_lstm: vocabulary should be at least 2, got 1."),
    ],
)
def test_a_bad_size_is_named(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match="should") as refusal:
        build()
    assert str(refusal.value) == message

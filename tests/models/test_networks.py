"""What every network promises: shapes, gradients, layers listed as they run, the same start from a seed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from archipel import models

Case = tuple[Callable[[], nn.Module], Callable[[], Tensor], int]


def images(channels: int, side: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(2, channels, side, side)


def characters() -> Tensor:
    return torch.randint(0, 80, (2, 80))


OF_EXTRAS = {"from_hf"}
"""Networks of packages that may not be installed; tests/transformers has their tests."""
NETWORKS: dict[str, Case] = {
    "logistic_regression": (lambda: models.logistic_regression(54, 7), lambda: torch.randn(2, 54), 7),
    "mlp": (lambda: models.mlp(54, 7), lambda: torch.randn(2, 54), 7),
    "mlp on images": (lambda: models.mlp(64, 10), images(1, 8), 10),
    "mnist_mlp": (models.mnist_mlp, images(1, 28), 10),
    "small_mlp": (models.small_mlp, images(1, 8), 10),
    "cifar10_2cnn": (models.cifar10_2cnn, images(3, 32), 10),
    "cifar10_2cnn cropped": (lambda: models.cifar10_2cnn(size=24), images(3, 24), 10),
    "femnist_cnn": (models.femnist_cnn, images(1, 28), 62),
    "hdafl_cnn": (models.hdafl_cnn, images(1, 28), 62),
    "fed2a_cnn_fmnist": (models.fed2a_cnn_fmnist, images(1, 28), 10),
    "fed2a_cnn_cifar10": (models.fed2a_cnn_cifar10, images(3, 32), 10),
    "fed2a_cnn_germants": (models.fed2a_cnn_germants, images(3, 32), 43),
    "vgg9": (models.vgg9, images(3, 32), 10),
    "vgg9 with dropout": (lambda: models.vgg9(dropout=0.1, in_channels=1), images(1, 32), 10),
    "small_vgg": (models.small_vgg, images(3, 32), 10),
    "packet_cnn": (lambda: models.packet_cnn(35), lambda: torch.randn(2, 10), 35),
    "packet_cnn, one channel": (lambda: models.packet_cnn(35), lambda: torch.randn(2, 1, 10), 35),
    "packet_cnn, shortest": (lambda: models.packet_cnn(2, length=6), lambda: torch.randn(2, 6), 2),
    "small_cnn": (models.small_cnn, images(1, 28), 10),
    "small_cnn, odd side": (lambda: models.small_cnn(3, 9, 5), images(3, 9), 5),
    "resnet50_cifar": (models.resnet50_cifar, images(3, 32), 100),
    "resnet_cifar": (lambda: models.resnet_cifar(14, 10), images(3, 32), 10),
    "small_resnet": (models.small_resnet, images(3, 32), 10),
    "shakespeare_lstm": (models.shakespeare_lstm, characters, 80),
    "small_lstm": (models.small_lstm, characters, 80),
}


def test_every_network_is_tested() -> None:
    assert {name.split(",")[0].split()[0] for name in NETWORKS} == set(models.__all__) - OF_EXTRAS


@pytest.mark.slow
@pytest.mark.parametrize(("build", "batch", "classes"), NETWORKS.values(), ids=NETWORKS)
def test_a_batch_goes_through_and_back_and_layers_run_as_they_are_listed(
    build: Callable[[], nn.Module], batch: Callable[[], Tensor], classes: int
) -> None:
    torch.manual_seed(0)
    network = build()
    listed = [name for name, module in network.named_modules() if any(True for _ in module.parameters(recurse=False))]
    ran: list[str] = []
    for name in listed:
        network.get_submodule(name).register_forward_hook(lambda *_, name=name: ran.append(name))

    logits = network(batch())
    loss = nn.functional.cross_entropy(logits, torch.tensor([0, classes - 1]))
    gradients = torch.autograd.grad(loss, list(network.parameters()))

    assert logits.shape == (2, classes)
    assert ran == listed
    assert listed[-1] == "head"
    for (name, _), gradient in zip(network.named_parameters(), gradients, strict=True):
        assert torch.isfinite(gradient).all(), name
        assert gradient.any(), name


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    build = NETWORKS[name][0]
    torch.manual_seed(1990)
    first = build().state_dict()
    torch.manual_seed(1990)
    second = build().state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)

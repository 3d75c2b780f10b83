"""Shortcuts through a network give the same numbers, and are taken only where no hook observes them."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from archipel.executors.shortcuts import ConvolvedMaxima, with_shortcuts
from archipel.kernels.native import convolution

relu = nn.ReLU()
NETWORKS = {
    "one after the other": nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2)),
    "overlapping, with a margin": nn.Sequential(nn.Conv2d(2, 4, 3), relu, nn.MaxPool2d(3, 2, 1, ceil_mode=True)),
    "the same module twice": nn.Sequential(
        nn.Conv2d(2, 4, 3), relu, nn.MaxPool2d(2), nn.Conv2d(4, 3, 1), relu, nn.MaxPool2d(2)
    ),
    "two pools": nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.MaxPool2d(2)),
    "a sequence in a sequence": nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2)), nn.Flatten()
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("numbers", ["any", "ties"])
@pytest.mark.parametrize("library", ["there", "not there"])
def test_outputs_and_gradients_are_the_same(
    name: str, numbers: Any, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the library to the bit."""
    if library == "not there":
        monkeypatch.setattr(convolution, "_native", lambda: None)
    torch.manual_seed(0)
    plain = copy.deepcopy(NETWORKS[name])
    x = torch.randn(5, 2, 11, 11)
    if numbers == "ties":
        x.round_()
        for parameter in plain.parameters():
            parameter.data.round_()
    changed = with_shortcuts(copy.deepcopy(plain))
    outcomes = []
    for network in (plain, changed):
        out = network(x)
        (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
        outcomes.append([out, *(parameter.grad for parameter in network.parameters())])
    for mine, theirs in zip(*outcomes, strict=True):
        if library == "there":
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(mine, theirs)
    assert [type(layer) for layer in changed.modules()] != [type(layer) for layer in plain.modules()]


def kinds(network: nn.Module) -> list[type[nn.Module]]:
    return [type(layer) for layer in with_shortcuts(network).children()]


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU()),
        (nn.Conv2d(1, 2, (3, 1), padding=(2, 0), bias=False), nn.ReLU(inplace=True), nn.MaxPool2d((2, 2), (2, 2))),
    ],
)
def test_a_convolution_its_maxima_and_rectifying_are_one_layer(layers: Any) -> None:
    assert kinds(nn.Sequential(*layers, nn.Flatten())) == [ConvolvedMaxima, nn.Flatten]


class OwnConvolution(nn.Conv2d):
    pass


@pytest.mark.parametrize(
    "convolution",
    [
        nn.Conv2d(2, 2, 3, stride=2),
        nn.Conv2d(2, 2, 3, dilation=2),
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        OwnConvolution(2, 2, 3),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 2, 3)),
    ],
)
def test_another_convolution_stays_as_it_is(convolution: Any) -> None:
    layers = (convolution, nn.MaxPool2d(2), nn.ReLU())
    assert kinds(nn.Sequential(*layers)) == [type(layer) for layer in layers]


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d((2, 1)),
    ],
)
def test_other_maxima_stay_as_they_are(pool: Any) -> None:
    assert kinds(nn.Sequential(nn.Conv2d(2, 2, 3), pool, nn.ReLU())) == [nn.Conv2d, nn.MaxPool2d, nn.ReLU]


def test_names_stay() -> None:
    layers = OrderedDict(
        conv=nn.Conv2d(1, 2, 3), relu=nn.ReLU(), pool=nn.MaxPool2d(2), other=nn.ReLU(), last=nn.MaxPool2d(2)
    )
    changed = with_shortcuts(nn.Sequential(layers))
    assert list(dict(changed.named_children())) == ["conv", "last", "other"]
    assert list(changed.state_dict()) == ["conv.weight", "conv.bias"]


@pytest.mark.parametrize("listened_to", [0, 1, 2])
def test_a_convolution_that_somebody_listens_to_stays_as_it_is(listened_to: Any) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU())
    network[listened_to].register_forward_hook(lambda module, inputs, output: None)
    assert kinds(network) == [nn.Conv2d, nn.MaxPool2d, nn.ReLU]


def test_what_somebody_listens_to_stays_as_it_is() -> None:
    heard = []
    network = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    network[0].register_forward_hook(lambda module, inputs, output: heard.append(output.shape))
    with_shortcuts(network)(torch.randn(1, 1, 4, 4))
    assert heard == [(1, 1, 4, 4)]


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(2)

    def forward(self, x: Any) -> Any:
        return self.pool(self.relu(x)) + self.pool(-x)


def test_a_module_with_a_forward_of_its_own_stays_as_it_is() -> None:
    own = Own()
    assert with_shortcuts(own) is own
    assert list(dict(own.named_children())) == ["relu", "pool"]

"""Maxima before rectifying: the same numbers, and only where nobody looks in between."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn

from archipel.engines.rectifying import pool_first

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
def test_outputs_and_gradients_are_the_same_to_the_bit(name, numbers):
    torch.manual_seed(0)
    plain = copy.deepcopy(NETWORKS[name])
    x = torch.randn(5, 2, 11, 11)
    if numbers == "ties":
        x.round_()
        for parameter in plain.parameters():
            parameter.data.round_()
    changed = pool_first(copy.deepcopy(plain))
    outcomes = []
    for network in (plain, changed):
        out = network(x)
        (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
        outcomes.append([out, *(parameter.grad for parameter in network.parameters())])
    for mine, theirs in zip(*outcomes, strict=True):
        assert torch.equal(mine, theirs)
    assert [type(layer) for layer in changed.modules()] != [type(layer) for layer in plain.modules()]


def test_names_stay():
    layers = OrderedDict(conv=nn.Conv2d(1, 2, 3), relu=nn.ReLU(), pool=nn.MaxPool2d(2), flatten=nn.Flatten())
    changed = pool_first(nn.Sequential(layers))
    assert list(dict(changed.named_children())) == ["conv", "pool", "relu", "flatten"]
    assert list(changed.state_dict()) == ["conv.weight", "conv.bias"]


def test_what_somebody_listens_to_stays_as_it_is():
    heard = []
    network = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    network[0].register_forward_hook(lambda module, inputs, output: heard.append(output.shape))
    pool_first(network)(torch.randn(1, 1, 4, 4))
    assert heard == [(1, 1, 4, 4)]


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(2)

    def forward(self, x):
        return self.pool(self.relu(x)) + self.pool(-x)


def test_a_module_with_a_forward_of_its_own_stays_as_it_is():
    own = Own()
    assert pool_first(own) is own
    assert list(dict(own.named_children())) == ["relu", "pool"]

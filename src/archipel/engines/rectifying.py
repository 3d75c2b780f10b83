"""A network that does the same with less to do."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def pool_first(module: nn.Module) -> nn.Module:
    """Where a network rectifies and then takes maxima, take the maxima first and rectify them in place.

    The largest of some rectified numbers is the largest of the numbers, rectified, and its gradient goes the same way:
    the same to the bit, of a quarter as many for a pool of 2. The network is changed, in sequences only: what another
    module's `forward` does is its own business, and so is what somebody listens to.
    """
    layers = [(name, pool_first(child)) for name, child in module._modules.items() if child is not None]
    if type(module) is not nn.Sequential or _watched(module):
        for name, layer in layers:
            setattr(module, name, layer)
        return module
    for place in range(len(layers) - 1):
        (relu, first), (pool, second) = layers[place : place + 2]
        if type(first) is nn.ReLU and type(second) is nn.MaxPool2d and not (_watched(first) or _watched(second)):
            layers[place : place + 2] = [(pool, second), (relu, nn.ReLU(inplace=True))]
    return nn.Sequential(OrderedDict(layers))


def _watched(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )

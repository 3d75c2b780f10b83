"""Rewrite a network into an equivalent one that computes less."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeGuard, cast

from torch import Tensor, nn

from archipel.executors.self_attention import SelfAttention, suits
from archipel.kernels.native.convolution import Padding, convolved_maxima
from archipel.kernels.products import linear


def with_shortcuts(module: nn.Module) -> nn.Module:
    """Swap ReLU and max pooling, fuse them with a convolution before them, replace self-attention and linear layers.

    Layers are fused in `Sequential` only, since another module's `forward` may do anything, and never if they have
    hooks. Parameters keep their names.
    """
    if type(module) is nn.MultiheadAttention and not watched(module):
        return SelfAttention(module) if suits(module) else module
    if type(module) is nn.Linear and not watched(module):
        module.__class__ = LargeLinear
        return module
    layers = [(name, with_shortcuts(child)) for name, child in module._modules.items() if child is not None]
    if type(module) is not nn.Sequential or watched(module):
        for name, layer in layers:
            setattr(module, name, layer)
        return module
    _pool_first(layers)
    return nn.Sequential(OrderedDict(_joined(layers)))


def _pool_first(layers: list[tuple[str, nn.Module]]) -> None:
    """Apply ReLU in place after max pooling instead of before it.

    Both orders give the same result and gradient to the bit; a pool of 2 leaves a quarter as many numbers.
    """
    for place in range(len(layers) - 1):
        (relu, first), (pool, second) = layers[place : place + 2]
        if type(first) is nn.ReLU and type(second) is nn.MaxPool2d and not (watched(first) or watched(second)):
            layers[place : place + 2] = [(pool, second), (relu, nn.ReLU(inplace=True))]


def _joined(layers: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Fuse a convolution, 2 x 2 max pooling and ReLU into one layer; equal up to rounding."""
    joined: list[tuple[str, nn.Module]] = []
    for layer in layers:
        joined.append(layer)
        if len(joined) < 3 or any(watched(part) for _, part in joined[-3:]):
            continue
        (name, first), (_, second), (_, third) = joined[-3:]
        if _steps_by_one(first) and _is_two_by_two(second) and type(third) is nn.ReLU:
            joined[-3:] = [(name, ConvolvedMaxima(first))]
    return joined


class LargeLinear(nn.Linear):
    """A linear layer with faster products, equal up to rounding."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class ConvolvedMaxima(nn.Module):
    """A convolution, 2 x 2 max pooling and ReLU."""

    bias: Tensor | None

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self.padding = cast(Padding, convolution.padding)

    def forward(self, x: Tensor) -> Tensor:
        return convolved_maxima(x, self.weight, self.bias, self.padding)


def _steps_by_one(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    return (
        type(layer) is nn.Conv2d
        and layer.stride == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


def _is_two_by_two(layer: nn.Module) -> bool:
    return (
        type(layer) is nn.MaxPool2d
        and layer.kernel_size in (2, (2, 2))
        and layer.stride in (2, (2, 2))
        and layer.padding in (0, (0, 0))
        and layer.dilation in (1, (1, 1))
        and not (layer.ceil_mode or layer.return_indices)
    )


def watched(module: nn.Module) -> bool:
    """Return whether a module has hooks."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )

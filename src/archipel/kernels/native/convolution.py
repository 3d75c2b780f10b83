"""Convolution, 2 x 2 max pooling and ReLU as one operation of torch's autograd."""

from __future__ import annotations

from ctypes import CDLL, POINTER, byref, c_int
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, max_pool2d

from archipel.kernels.native import structs
from archipel.kernels.native.library import library

Padding: TypeAlias = tuple[int, int]
"""Rows of zeros above and below an image, and columns on either side."""

MAX_OFFSET = 2**31 - 1
"""Of a number in a padded image or in the weights: C has 32 bits for it."""
MAX_LANES = 16
"""C pads the rows of filters to whole vectors, of at most so many numbers."""


def convolved_maxima(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Padding) -> Tensor:
    """relu(max_pool2d(conv2d(x, weight, bias, padding=padding), 2)).

    Its gradients leave out products with zero, so that an infinite number or NaN does not spread from a position that
    is not a maximum.
    """
    native = _native()
    if native is None or not _suits(x, weight, bias, padding):
        return convolved_maxima_in_torch(x, weight, bias, padding)
    out: Tensor = _ConvolvedMaxima.apply(x, weight, bias, padding, native)  # type: ignore[no-untyped-call]
    return out


def convolved_maxima_in_torch(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Padding) -> Tensor:
    return max_pool2d(conv2d(x, weight, bias, padding=padding), 2).relu_()


@cache
def _native() -> CDLL | None:
    """Return the library if it is faster than torch here: vectors of four numbers are too short."""
    native = library()
    if native is None or torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return None
    for function in (native.archipel_convolve, native.archipel_convolve_back):
        function.argtypes, function.restype = [POINTER(structs.ConvolutionStruct)], c_int
    return native


def _suits(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Padding) -> bool:
    """Return whether C can do it: float32 images in memory, of at least one window, with offsets of 32 bits."""
    given = (x, weight) if bias is None else (x, weight, bias)
    if x.dim() != 4 or any(tensor.dtype != torch.float32 or tensor.device.type != "cpu" for tensor in given):
        return False
    (_, channels, height, width), (filters, depth, rows, columns) = x.shape, weight.shape
    height, width = height + 2 * padding[0], width + 2 * padding[1]
    return (
        channels == depth
        and height > rows
        and width > columns
        and height * width * channels <= MAX_OFFSET
        and filters * (columns * channels + MAX_LANES) <= MAX_OFFSET
    )


class _ConvolvedMaxima(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Padding, native: CDLL) -> Tensor:
        x, weight, bias = _channels_last(x), _channels_last(weight), None if bias is None else bias.contiguous()
        (batch, _, height, width), (filters, _, rows, columns) = x.shape, weight.shape
        high, wide = (height + 2 * padding[0] - rows + 1) // 2, (width + 2 * padding[1] - columns + 1) // 2
        out = torch.empty((batch, filters, high, wide), memory_format=torch.channels_last)
        argmax = torch.empty((batch, high, wide, filters), dtype=torch.uint8)
        record = _record(x, weight, padding, argmax=argmax, bias=bias, out=out)
        _require_memory(native.archipel_convolve(byref(record)))
        ctx.save_for_backward(x, weight, argmax)
        ctx.padding, ctx.native = padding, native
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, argmax = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        of_x = torch.empty_like(x) if wants_x else None
        of_weight = torch.empty_like(weight) if wants_weight else None
        of_bias = torch.empty(len(weight)) if wants_bias else None
        gradient = _channels_last(gradient)
        record = _record(
            x,
            weight,
            ctx.padding,
            argmax=argmax,
            out_gradient=gradient,
            images_gradient=of_x,
            weight_gradient=of_weight,
            bias_gradient=of_bias,
        )
        _require_memory(ctx.native.archipel_convolve_back(byref(record)))
        return of_x, of_weight, of_bias, None, None


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _record(x: Tensor, weight: Tensor, padding: Padding, **tensors: Tensor | None) -> structs.ConvolutionStruct:
    batch, channels, height, width = x.shape
    filters, _, rows, columns = weight.shape
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
    shape = (batch, height, width, channels, filters, rows, columns, *padding)
    return structs.ConvolutionStruct(*shape, x.data_ptr(), weight.data_ptr(), **addresses)


def _require_memory(allocated: int) -> None:
    if not allocated:
        raise MemoryError("There is not enough memory for a convolution: use a smaller batch.")

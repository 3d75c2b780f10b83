"""A convolution, the largest of every two by two of its places, rectified: one operation of torch's autograd."""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, byref, c_int, c_int64, c_void_p
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, max_pool2d

from archipel.kernels.native.library import library

Margins: TypeAlias = tuple[int, int]
"""Rows of zeros above and below an image, and columns on either side."""


def convolved_maxima(x: Tensor, weight: Tensor, bias: Tensor | None, margins: Margins) -> Tensor:
    """relu(max_pool2d(conv2d(x, weight, bias, padding=margins), 2)).

    Its gradients leave out what is multiplied by zero, so that an infinite or missing number does not spread from a
    place that no maximum comes from.
    """
    native = _native()
    if native is None or not _suits(x, weight, bias, margins):
        return convolved_maxima_in_torch(x, weight, bias, margins)
    out: Tensor = _ConvolvedMaxima.apply(x, weight, bias, margins, native)  # type: ignore[no-untyped-call]
    return out


def convolved_maxima_in_torch(x: Tensor, weight: Tensor, bias: Tensor | None, margins: Margins) -> Tensor:
    return max_pool2d(conv2d(x, weight, bias, padding=margins), 2).relu_()


@cache
def _native() -> CDLL | None:
    """The library, if there is one, on a processor where it is faster: registers of four numbers are too small."""
    native = library()
    if native is None or torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return None
    for function in (native.archipel_convolve, native.archipel_convolve_back):
        function.argtypes, function.restype = [POINTER(_Convolution)], c_int
    return native


def _suits(x: Tensor, weight: Tensor, bias: Tensor | None, margins: Margins) -> bool:
    """Are they images of these channels on the CPU, with at least one window of two by two places?"""
    given = (x, weight) if bias is None else (x, weight, bias)
    return (
        x.dim() == 4
        and x.shape[1] == weight.shape[1]
        and x.shape[2] + 2 * margins[0] > weight.shape[2]
        and x.shape[3] + 2 * margins[1] > weight.shape[3]
        and all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in given)
    )


class _ConvolvedMaxima(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, margins: Margins, native: CDLL) -> Tensor:
        x, weight, bias = _channels_last(x), _channels_last(weight), None if bias is None else bias.contiguous()
        (batch, _, height, width), (filters, _, rows, columns) = x.shape, weight.shape
        high, broad = (height + 2 * margins[0] - rows + 1) // 2, (width + 2 * margins[1] - columns + 1) // 2
        out = torch.empty((batch, filters, high, broad), memory_format=torch.channels_last)
        where = torch.empty((batch, high, broad, filters), dtype=torch.uint8)
        record = _record(x, weight, margins, where=where, bias=bias, out=out)
        _require_memory(native.archipel_convolve(byref(record)))
        ctx.save_for_backward(x, weight, where)
        ctx.margins, ctx.native = margins, native
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, where = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        to_x = torch.empty_like(x) if wants_x else None
        to_weight = torch.empty_like(weight) if wants_weight else None
        to_bias = torch.empty(len(weight)) if wants_bias else None
        slopes = _channels_last(slopes)
        record = _record(
            x, weight, ctx.margins, where=where, slopes=slopes, to_x=to_x, to_weight=to_weight, to_bias=to_bias
        )
        _require_memory(ctx.native.archipel_convolve_back(byref(record)))
        return to_x, to_weight, to_bias, None, None


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _record(x: Tensor, weight: Tensor, margins: Margins, **tensors: Tensor | None) -> _Convolution:
    batch, channels, height, width = x.shape
    filters, _, rows, columns = weight.shape
    places = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
    return _Convolution(
        batch, height, width, channels, filters, rows, columns, *margins, x.data_ptr(), weight.data_ptr(), **places
    )


def _require_memory(there: int) -> None:
    if not there:
        raise MemoryError("There is no memory left for a convolution; give fewer examples a batch.")


# ---------------------------------------------------------------------------------------- as `convolution.c` has it

_SHAPE = ("batch", "height", "width", "channels", "filters", "rows", "columns", "margin_rows", "margin_columns")
_TENSORS = ("x", "weight", "bias", "out", "where", "slopes", "to_x", "to_weight", "to_bias")


class _Convolution(Structure):
    _fields_ = (*((name, c_int64) for name in _SHAPE), *((name, c_void_p) for name in _TENSORS))

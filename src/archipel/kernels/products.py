"""Products of matrices with torch's other library, where that is faster.

Torch multiplies matrices with MKL, which on AMD processors uses vectors of 8 numbers though they have 16. oneDNN, which
torch uses for convolutions, has no such limit: a large product takes half the time.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

LARGE = 1 << 21
"""Multiplications of a product from which oneDNN is faster; a call of it takes 10 microseconds more."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x weight^T + bias, equal to torch's up to rounding; it cannot be differentiated twice."""
    if x.numel() * len(weight) < LARGE or not one_dnn_is_faster() or not _suits(x, weight, bias):
        return functional.linear(x, weight, bias)
    out: Tensor = _Product.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


@cache
def one_dnn_is_faster() -> bool:
    """Return whether this is a processor whose vectors oneDNN uses and MKL does not."""
    there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not there or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    processors = Path("/proc/cpuinfo")
    return processors.exists() and "AuthenticAMD" in processors.read_text()


def _suits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    given = (x, weight) if bias is None else (x, weight, bias)
    plain = all(type(one) in (Tensor, torch.nn.Parameter) for one in given)
    return (
        plain
        and all(one.dtype == torch.float32 and one.device.type == "cpu" for one in given)
        and not torch.is_autocast_enabled("cpu")
    )


def _multiplied(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return left right^T + bias."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return out


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiplied(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        rows = gradient.reshape(-1, len(weight))
        of_x = _multiplied(gradient, weight.t()) if wants_x else None
        of_weight = _multiplied(rows.t(), x.reshape(len(rows), -1).t()) if wants_weight else None
        return of_x, of_weight, rows.sum(0) if wants_bias else None

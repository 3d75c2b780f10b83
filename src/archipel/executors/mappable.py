"""Torch functions that `torch.func.vmap` cannot map over learners, rewritten in operations that it can.

Results differ by rounding only; the trial in `stackable.py` compares them before a stack is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


def bilinear(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return first x weight x second for every output."""
    product = torch.einsum("...i,oij,...j->...o", first, weight, second)
    return product if bias is None else product + bias


def weight_norm(direction: Tensor, length: Tensor, dim: int = 0) -> Tensor:
    """Return weights of these directions and lengths."""
    others = [place for place in range(direction.dim()) if place != dim]
    return direction * (length / direction.square().sum(others, keepdim=True).sqrt())


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, *args: Any, **kwargs: Any) -> Tensor:
    """Return embedded words; the padding's row has no gradient."""
    if padding_idx is not None:
        rows = torch.arange(weight.shape[0], device=weight.device).unsqueeze(1)
        weight = torch.where(rows == padding_idx % weight.shape[0], weight.detach(), weight)
    found: Tensor = functional.embedding(input, weight, None, *args, **kwargs)
    return found


def embedding_bag(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return the sum, mean or maximum of embedded words for each row, a bag of words."""
    names = ("offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    mode = given.pop("mode", "mean")
    ruled = any(given.get(name) for name in ("max_norm", "scale_grad_by_freq", "sparse", "include_last_offset"))
    rest = any(given.get(name) is not None for name in ("offsets", "per_sample_weights", "padding_idx"))
    if ruled or rest or input.dim() != 2:
        found: Tensor = functional.embedding_bag(input, weight, mode=mode, **given)
        return found
    embedded = functional.embedding(input, weight)
    return embedded.amax(dim=1) if mode == "max" else embedded.sum(dim=1) if mode == "sum" else embedded.mean(dim=1)


def gru_cell(x: Tensor, before: Tensor, into: Tensor, again: Tensor, *biases: Tensor | None) -> Tensor:
    """Return the next state of a GRU."""
    offset, more = biases or (None, None)
    x_reset, x_kept, x_new = functional.linear(x, into, offset).chunk(3, dim=-1)
    reset, kept, new = functional.linear(before, again, more).chunk(3, dim=-1)
    candidate = torch.tanh(x_new + torch.sigmoid(x_reset + reset) * new)
    return candidate + torch.sigmoid(x_kept + kept) * (before - candidate)


def lstm_cell(
    x: Tensor, before: Sequence[Tensor], into: Tensor, again: Tensor, *biases: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the next output and state of an LSTM."""
    offset, more = biases or (None, None)
    gates = functional.linear(x, into, offset) + functional.linear(before[0], again, more)
    entry, kept, new, out = gates.chunk(4, dim=-1)
    state = torch.sigmoid(kept) * before[1] + torch.sigmoid(entry) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(state), state


def rnn_cell(activation: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return the cell of a plain recurrent layer."""

    def cell(x: Tensor, before: Tensor, into: Tensor, again: Tensor, *biases: Tensor | None) -> Tensor:
        offset, more = biases or (None, None)
        return activation(functional.linear(x, into, offset) + functional.linear(before, again, more))

    return cell


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Tensor:
    """Return vectors of length one."""
    found = functional.normalize(input, p, dim, eps)
    return found if out is None else out.copy_(found)


INSTEAD: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.bilinear: bilinear,
    functional.bilinear: bilinear,
    torch._weight_norm: weight_norm,
    functional.embedding: embedding,
    functional.embedding_bag: embedding_bag,
    torch.gru_cell: gru_cell,
    torch.lstm_cell: lstm_cell,
    torch.rnn_tanh_cell: rnn_cell(torch.tanh),
    torch.rnn_relu_cell: rnn_cell(torch.relu),
    functional.normalize: normalize,
}
MADE: dict[Callable[..., Any], Callable[..., Tensor]] = {
    torch.zeros: Tensor.new_zeros,
    torch.ones: Tensor.new_ones,
    torch.empty: Tensor.new_empty,
    torch.full: Tensor.new_full,
}
"""Functions that create a tensor, and the methods that create one for each learner."""


class MappableFunctions(TorchFunctionMode):
    """Replaces functions within a block; tensors created there may have a copy for each learner, to change in place."""

    def __init__(self, like: Tensor | None) -> None:
        """like: a tensor that is mapped over the learners; None: created tensors are the same for all of them."""
        super().__init__()
        self._like = like

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in MADE and self._like is not None and not {"out", "layout", "names"} & kwargs.keys():
            fill = args[1] if func is torch.full and len(args) > 1 else kwargs.get("fill_value")
            if isinstance(fill, bool | int):
                return func(*args, **kwargs)
            settings = {**kwargs, "dtype": kwargs.get("dtype") or torch.get_default_dtype()}
            sizes = args if func is torch.full or not all(isinstance(one, int) for one in args) else (args,)
            return MADE[func](self._like, *sizes, **settings)
        return INSTEAD.get(func, func)(*args, **kwargs)

"""GRUs and plain recurrent layers in operations that `torch.func.vmap` can map over learners, unlike torch's own.

Results differ from torch's by rounding only; the trial in `stackable.py` compares them before a stack is used. LSTMs
are not replaced: torch computes one in a single fused operation, which is faster than a stack of its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from archipel.executors.shortcuts import watched


class Unrolled(nn.RNNBase):
    """A recurrent layer with its steps written out; subclasses define `cell`."""

    def cell(self, x: Tensor, before: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output of a step; x: the input's part of all gates, before: the previous output."""
        raise NotImplementedError

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the outputs of the last layer and the last output of every layer, as torch does."""
        if input.dim() != 3:
            raise RuntimeError("a recurrent layer in a stack takes a batch of sequences")
        time, examples = (1, 0) if self.batch_first else (0, 1)
        nothing = input.new_zeros(input.shape[examples], self.hidden_size)
        steps: Sequence[Tensor] = input.unbind(time)
        ends: list[Tensor] = []
        for layer in range(self.num_layers):
            ways = []
            for suffix in ("", "_reverse") if self.bidirectional else ("",):
                before = nothing if hx is None else hx[len(ends)]
                outputs = self._run(steps[::-1] if suffix else steps, before, f"l{layer}{suffix}")
                ends.append(outputs[-1])
                ways.append(outputs[::-1] if suffix else outputs)
            steps = ways[0] if len(ways) == 1 else [torch.cat(both, dim=-1) for both in zip(*ways, strict=True)]
        return torch.stack([*steps], dim=time), torch.stack(ends)

    def _run(self, steps: Sequence[Tensor], output: Tensor, name: str) -> list[Tensor]:
        """Return the outputs of one layer in one direction."""
        into, again = getattr(self, f"weight_ih_{name}"), getattr(self, f"weight_hh_{name}")
        offset, more = (getattr(self, f"bias_{kind}_{name}") if self.bias else None for kind in ("ih", "hh"))
        outputs = []
        for x in linear(torch.stack([*steps]), into, offset).unbind():
            output = self.cell(x, output, again, more)
            outputs.append(output)
        return outputs


class UnrolledGRU(Unrolled, nn.GRU):  # type: ignore[misc]
    def cell(self, x: Tensor, before: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x_reset, x_kept, x_new = x.chunk(3, dim=-1)
        reset, kept, new = linear(before, weight, bias).chunk(3, dim=-1)
        candidate = torch.tanh(x_new + torch.sigmoid(x_reset + reset) * new)
        return candidate + torch.sigmoid(x_kept + kept) * (before - candidate)


class UnrolledRNN(Unrolled, nn.RNN):  # type: ignore[misc]
    def cell(self, x: Tensor, before: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        total = x + linear(before, weight, bias)
        return total.tanh() if self.nonlinearity == "tanh" else total.relu()


def with_unrolled_layers(module: nn.Module) -> None:
    """Replace recurrent layers inside a module by ones that can be mapped.

    Layers with dropout between them are kept: torch draws its masks in another order.
    """
    for name, child in module.named_children():
        if type(child) in (nn.GRU, nn.RNN) and isinstance(child, nn.RNNBase):
            if not child.dropout and not watched(child):
                setattr(module, name, _unrolled(child))
        else:
            with_unrolled_layers(child)


def _unrolled(layer: nn.RNNBase) -> Unrolled:
    settings: dict[str, Any] = {
        name: getattr(layer, name)
        for name in ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "bidirectional")
    }
    if isinstance(layer, nn.RNN):
        return UnrolledRNN(nonlinearity=layer.nonlinearity, **settings)
    return UnrolledGRU(**settings)

"""A learner's training as a `Descent` sees it: trainable parameters, gradients, and kept vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from archipel.core.layout import Layout
from archipel.core.parts.descent import Values


class LocalPoint:
    """The trainable parameters of a bound network in a phase."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        pieces: Callable[[Tensor], list[Tensor]],
        backward: Callable[[Tensor, Tensor], None],
        loss: Callable[[Tensor, Tensor], Tensor],
        kept: Mapping[str, Tensor],
        rate: float,
        step: int,
    ) -> None:
        """Start from the learner's kept vectors.

        pieces: returns views of a vector for the parameters; backward: writes the loss's gradient on a mini-batch to
        them.
        """
        self.rate, self.step = rate, step
        self._parameters, self._pieces, self._backward, self._loss = parameters, pieces, backward, loss
        self._kept = dict(kept)
        self._changed: dict[str, Values] = {}

    def values(self) -> Values:
        """Return a copy of the model's trainable parameters."""
        return [parameter.detach().clone() for parameter in self._parameters]

    def gradient(self, x: Tensor, y: Tensor, at: Values | None = None) -> Values:
        """Return the gradient of the loss on a mini-batch, at the model or at other values."""
        before = None if at is None else self.values()
        self._set(at)
        for parameter in self._parameters:
            parameter.grad = None
        self._backward(x, y)
        self._set(before)
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]

    def curvature(self, x: Tensor, y: Tensor, along: Values) -> Values:
        """Return the product of the Hessian of the loss on a mini-batch, at the model, with a direction."""
        gradients = torch.autograd.grad(
            self._loss(x, y), list(self._parameters), create_graph=True, materialize_grads=True
        )
        slope = torch.stack([(g * a).sum() for g, a in zip(gradients, along, strict=True)]).sum()
        if not slope.requires_grad:  # the loss is linear in all parameters
            return [torch.zeros_like(p) for p in self._parameters]
        return [*torch.autograd.grad(slope, list(self._parameters), materialize_grads=True)]

    def kept(self, name: str) -> Values | None:
        """Return a vector that the learner keeps; None if there is none of that name yet."""
        if name in self._changed:
            return [value.clone() for value in self._changed[name]]
        vector = self._kept.get(name)
        return None if vector is None else [piece.clone() for piece in self._pieces(vector)]

    def keep(self, name: str, values: Values) -> None:
        """Keep a vector whose trainable parameters have these values."""
        self._changed[name] = values

    def forget(self, name: str) -> None:
        """Forget a kept vector."""
        self._kept.pop(name, None)
        self._changed.pop(name, None)

    def kept_number(self, name: str) -> float | None:
        """Return a number that the learner keeps; None if there is none of that name yet."""
        number = self._kept.get(name)
        return None if number is None else float(number)

    def keep_number(self, name: str, value: float) -> None:
        """Keep a number."""
        self._kept[name] = torch.tensor([value], dtype=torch.float64)

    def collected(self, layout: Layout, model: Tensor) -> dict[str, Tensor]:
        """Return the kept vectors; parameters that do not train here keep their values, or take those of the model."""
        kept = dict(self._kept)
        buffers = layout.slices(place for place, layer in enumerate(layout.layers) if layer.buffers)
        for name, values in self._changed.items():
            vector = kept.get(name, model).to(model.device, copy=True)
            for piece in buffers:  # running statistics are those of the last passes
                vector[piece] = model[piece]
            for place, value in zip(self._pieces(vector), values, strict=True):
                place.copy_(value)
            kept[name] = vector
        return kept

    def _set(self, values: Values | None) -> None:
        if values is not None:
            for parameter, value in zip(self._parameters, values, strict=True):
                parameter.data.copy_(value)

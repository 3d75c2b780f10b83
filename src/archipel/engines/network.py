"""A network for many learners at once: every tensor has a leading dimension, one slice a learner.

A plain sequence of linear layers and activations is stepped by batched products. Where it ends in class scores its
step is written out, because small batches would spend most of their time on autograd's graph, and every gradient goes
into its tensor in the product that makes it. Other networks go through `torch.func.vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from archipel.learner.learner import Loss

Tensors = Mapping[str, Tensor]
"""Parameters by name, [learner, …]."""

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Softplus, nn.Identity)
STACKABLE = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Flatten, nn.Sequential, *ELEMENTWISE)
PER_EXAMPLE: tuple[Loss, ...] = (
    nn.functional.cross_entropy,
    nn.functional.nll_loss,
    nn.functional.mse_loss,
    nn.functional.l1_loss,
    nn.functional.smooth_l1_loss,
    nn.functional.binary_cross_entropy_with_logits,
)
"""Losses whose mean over a batch is the mean of single examples' losses, so that examples can have weights."""

_relu_backward = torch.ops.aten.threshold_backward.default
ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.ReLU: (torch.relu, lambda gradient, output: _relu_backward(gradient, output, 0)),
    nn.Tanh: (torch.tanh, torch.ops.aten.tanh_backward.default),
    nn.Sigmoid: (torch.sigmoid, torch.ops.aten.sigmoid_backward.default),
    nn.Identity: (lambda x: x, lambda gradient, output: gradient),
}
"""Forward, and the gradient with respect to the input from that of the output and the output itself."""

Step: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]
"""One step of all learners on their examples, targets and weights: [learner, example, …]."""


class Descent(Protocol):
    """Changes the tensors by their gradients, each as soon as nobody needs it any more."""

    def by_product(self, name: str) -> Callable[[Tensor, Tensor], object]:
        """Takes the factors of this tensor's gradient, left @ right."""

    def by_gradient(self, name: str) -> Callable[[Tensor], object]:
        """Takes this tensor's gradient."""


def can_stack(module: nn.Module, loss: Loss) -> bool:
    """Only layers that stack well, each with weights of its own, and a loss that is a mean over examples."""
    tied = len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.parameters()))
    return (
        loss in PER_EXAMPLE
        and all(_stacks_well(part) for part in module.modules() if part is not module)
        and not tied
        and next(module.buffers(), None) is None
        and all(parameter.requires_grad for parameter in module.parameters())
    )


def _stacks_well(part: nn.Module) -> bool:
    if type(part) not in STACKABLE:  # a subclass may have a forward of its own
        return False
    return not isinstance(part, nn.Embedding) or (
        part.padding_idx is None and part.max_norm is None and not part.scale_grad_by_freq and not part.sparse
    )


class Mapped:
    """Any network that can be stacked, through torch.func."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        self.loss = loss
        self._mapped = vmap(lambda tensors, x: functional_call(module, tensors, (x,)))

    def outputs(self, tensors: Tensors, x: Tensor) -> Tensor:
        """What the learners' networks put out on [learner, example, …]."""
        outputs: Tensor = self._mapped(dict(tensors), x)
        return outputs

    def losses(self, tensors: Tensors, x: Tensor, y: Tensor) -> Tensor:
        """The loss of every single example: [learner, example]."""
        outputs = self.outputs(tensors, x)
        flat = self.loss(outputs.flatten(0, 1), y.flatten(0, 1), reduction="none")  # type: ignore[call-arg]
        return flat.reshape(*y.shape[:2], -1).mean(dim=2)

    def prepared(self, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Targets of many steps, [step, learner, example, …], and the weights of the examples, as a step takes them."""
        return y, weights

    def step(self, tensors: Tensors, trained: Collection[str], descent: Descent) -> Step:
        """A step down the weighted sum of the examples' losses."""
        changes = [descent.by_gradient(name) for name in trained]

        def step(x: Tensor, targets: Tensor, weights: Tensor) -> None:
            leaves = {name: tensors[name].detach().requires_grad_() for name in trained}
            loss = (self.losses({**tensors, **leaves}, x, targets) * weights).sum()
            for change, gradient in zip(changes, torch.autograd.grad(loss, list(leaves.values())), strict=True):
                change(gradient)

        return step


class Sequential(Mapped):
    """A plain sequence of linear layers and activations, by batched products."""

    def __init__(self, module: nn.Module, loss: Loss, parts: Sequence[nn.Module]) -> None:
        super().__init__(module, loss)
        names = {part: f"{name}." if name else "" for name, part in module.named_modules()}
        self.parts = [(part, f"{names[part]}weight", f"{names[part]}bias") for part in parts]

    def outputs(self, tensors: Tensors, x: Tensor) -> Tensor:
        for forward in self._forwards(tensors, self.parts):
            x = forward(x)
        return x

    @staticmethod
    def _forwards(tensors: Tensors, parts: Sequence[tuple[nn.Module, str, str]]) -> list[Callable[[Tensor], Tensor]]:
        """What each part does to [learner, example, …]; views are made once and follow the tensors."""
        forwards: list[Callable[[Tensor], Tensor]] = []
        for part, weight, bias in parts:
            if isinstance(part, nn.Linear):
                forwards.append(_linear(tensors[weight], tensors.get(bias)))
            elif isinstance(part, nn.Flatten):
                forwards.append(lambda x: x.flatten(2))
            else:
                forwards.append(ACTIVATIONS[type(part)][0] if type(part) in ACTIVATIONS else part)
        return forwards


def _linear(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    turned, row = weight.transpose(1, 2), None if bias is None else bias.unsqueeze(1)

    def forward(x: Tensor) -> Tensor:
        rows = x if x.dim() == 3 else x.flatten(1, -2)
        product = torch.bmm(rows, turned) if row is None else torch.baddbmm(row, rows, turned)
        return product if x.dim() == 3 else product.unflatten(1, x.shape[1:-1])

    return forward


class Classifier(Sequential):
    """A sequence that ends in a linear layer of class scores under cross entropy: its step is written out.

    The last layer works with classes before examples, because a softmax over a short last dimension is slow.
    """

    def prepared(self, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        head = self.parts[-1][0]
        assert isinstance(head, nn.Linear)
        one_hot = nn.functional.one_hot(y, head.out_features).transpose(2, 3).to(torch.float32)
        return one_hot.contiguous(), weights.unsqueeze(2)

    def step(self, tensors: Tensors, trained: Collection[str], descent: Descent) -> Step:
        *below, (_, weight, bias) = self.parts
        first = min(i for i, (_, *own) in enumerate(self.parts) if any(name in trained for name in own))
        forwards, head = self._forwards(tensors, below), tensors[weight]
        offset = tensors[bias].unsqueeze(2) if bias in tensors else None
        change = descent.by_product(weight) if weight in trained else None
        shift = descent.by_gradient(bias) if bias in trained else None
        backwards = [self._backward(i, first, tensors, trained, descent) for i in range(len(below) - 1, first - 1, -1)]

        def step(x: Tensor, targets: Tensor, weights: Tensor) -> None:
            seen = [x]
            for forward in forwards:
                x = forward(x)
                seen.append(x)
            turned = x.transpose(1, 2)
            scores = torch.bmm(head, turned) if offset is None else torch.baddbmm(offset, head, turned)
            # d cross entropy / d scores = (softmax - one-hot) x weight
            above = scores.softmax(1).sub_(targets).mul_(weights)
            gradient = torch.bmm(above.transpose(1, 2), head) if backwards else above
            if change is not None:
                change(above, x)
            if shift is not None:
                shift(above.sum(2))
            for backward in backwards:
                gradient = backward(gradient, seen)

        return step

    def _backward(
        self, i: int, first: int, tensors: Tensors, trained: Collection[str], descent: Descent
    ) -> Callable[[Tensor, Sequence[Tensor]], Tensor]:
        """Takes the gradient of the i-th part's output to that of its input, and changes its tensors on the way."""
        part, weight, bias = self.parts[i]
        if isinstance(part, nn.Flatten):
            return lambda gradient, seen: gradient.view(seen[i].shape)
        if not isinstance(part, nn.Linear):
            derivative = ACTIVATIONS[type(part)][1]
            return lambda gradient, seen: derivative(gradient, seen[i + 1])
        weights = tensors[weight]
        change = descent.by_product(weight) if weight in trained else None
        shift = descent.by_gradient(bias) if bias in trained else None

        def linear(gradient: Tensor, seen: Sequence[Tensor]) -> Tensor:
            inputs, rows = seen[i], gradient
            if inputs.dim() > 3:
                inputs, rows = inputs.flatten(1, -2), rows.flatten(1, -2)
            if i > first:
                gradient = torch.bmm(rows, weights).view_as(seen[i])
            if change is not None:
                change(rows.transpose(1, 2), inputs)
            if shift is not None:
                shift(rows.sum(1))
            return gradient

        return linear


def network(module: nn.Module, loss: Loss, y: Tensor) -> Mapped:
    """The fastest way to run a module for many learners at once, for such targets."""
    parts = _flattened(module)
    if parts is None:
        return Mapped(module, loss)
    written = type(parts[-1]) is nn.Linear and all(
        type(part) in (nn.Linear, nn.Flatten, *ACTIVATIONS) for part in parts
    )
    labels = loss is nn.functional.cross_entropy and y.dim() == 1 and y.dtype == torch.int64
    return (Classifier if written and labels else Sequential)(module, loss, parts)


def _flattened(module: nn.Module) -> list[nn.Module] | None:
    """The parts of a plain sequence of linear layers and activations, or None."""
    if type(module) is nn.Sequential:
        parts: list[nn.Module] = []
        for child in module:
            inner = _flattened(child)
            if inner is None:
                return None
            parts += inner
        return parts
    plain = type(module) in (nn.Linear, *ELEMENTWISE)
    flat = type(module) is nn.Flatten and module.start_dim == 1 and module.end_dim == -1
    return [module] if plain or flat else None

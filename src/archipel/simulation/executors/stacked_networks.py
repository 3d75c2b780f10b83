"""A network for many learners at once: every tensor has a leading dimension, one slice a learner.

A plain sequence of linear layers and activations is stepped by batched products. Where it ends in class scores its
step is written out, because small batches would spend most of their time on autograd's graph, and every gradient goes
into its tensor in the product that makes it. Other networks go through `torch.func.vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from operator import and_
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

_relu_backward = torch.ops.aten.threshold_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.ReLU: (torch.relu_, lambda gradient, output: _relu_backward(gradient, output, 0, grad_input=gradient)),
    nn.Tanh: (torch.tanh_, lambda gradient, output: _tanh_backward(gradient, output, grad_input=gradient)),
    nn.Sigmoid: (torch.sigmoid_, lambda gradient, output: _sigmoid_backward(gradient, output, grad_input=gradient)),
}
"""Forward, and the gradient with respect to the input from that of the output and the output itself; in place."""

Call: TypeAlias = Callable[[], object]
Step: TypeAlias = Callable[[Tensor], None]
"""One step of all learners on the examples that lie ready for it, with these weights: [learner, example]."""


class Descent(Protocol):
    """Changes the tensors by their gradients, each as soon as nobody needs it any more."""

    def by_product(self, name: str, left: Tensor, right: Tensor) -> Call:
        """Return a call that changes this tensor by the gradient left @ right."""

    def by_gradient(self, name: str) -> Callable[[Tensor], object]:
        """Take this tensor's gradient."""


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
        """Return the outputs of the learners' networks on [learner, example, …]."""
        outputs: Tensor = self._mapped(dict(tensors), x)
        return outputs

    def losses(self, tensors: Tensors, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of every single example: [learner, example]."""
        outputs = self.outputs(tensors, x)
        flat = self.loss(outputs.flatten(0, 1), y.flatten(0, 1), reduction="none")  # type: ignore[call-arg]
        return flat.reshape(*y.shape[:2], -1).mean(dim=2)

    def step(self, tensors: Tensors, trained: Collection[str], descent: Descent, x: Tensor, y: Tensor) -> Step:
        """Return a call that makes a step down the weighted loss of the examples in x and y at that time."""
        changes = [descent.by_gradient(name) for name in trained]

        def step(weights: Tensor) -> None:
            leaves = {name: tensors[name].detach().requires_grad_() for name in trained}
            loss = (self.losses({**tensors, **leaves}, x, y) * weights).sum()
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
        for part, weight, bias in self.parts:
            if isinstance(part, nn.Linear):
                x = _linear(x, tensors[weight], tensors.get(bias))
            else:
                x = x.flatten(2) if isinstance(part, nn.Flatten) else part(x)
        return x


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows, turned = x.flatten(1, -2), weight.transpose(1, 2)
    product = torch.bmm(rows, turned) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, turned)
    return product.view(*x.shape[:-1], -1)


class Classifier(Sequential):
    """A sequence that ends in a linear layer of class scores under cross entropy: its step is written out.

    Every tensor of a step has its own place in memory, so that a step is a list of calls that were made ready before
    the first one. The last layer works with classes before examples, because a softmax over a short last dimension is
    slow.
    """

    def step(self, tensors: Tensors, trained: Collection[str], descent: Descent, x: Tensor, y: Tensor) -> Step:
        *below, (_, weight, bias) = self.parts
        first = min(i for i, (_, *own) in enumerate(self.parts) if any(name in trained for name in own))
        forwards: list[Call] = []
        seen = [x]
        for part, *own in below:
            seen.append(_forward(forwards, part, seen[-1], *map(tensors.get, own)))
        inputs, head, offset = seen[-1], tensors[weight], tensors.get(bias)
        scores = inputs.new_empty(*head.shape[:2], inputs.shape[1])
        _product(forwards, head, inputs.transpose(1, 2), scores, None if offset is None else offset.unsqueeze(2))
        # d cross entropy / d scores = (softmax - one-hot) x weight
        above, labels = torch.empty_like(scores), y.unsqueeze(1)
        forwards.append(partial(torch.softmax, scores, 1, out=above))
        forwards.append(partial(above.scatter_add_, 1, labels, above.new_full(labels.shape, -1)))

        backwards: list[Call] = []
        gradient = torch.empty_like(inputs)
        if first < len(below):
            _product(backwards, above.transpose(1, 2), head, gradient)
        _change(backwards, descent, trained, weight, bias, above, inputs)
        for i in range(len(below) - 1, first - 1, -1):
            part, weight, bias = below[i]
            if isinstance(part, nn.Linear):
                rows, inputs = gradient.flatten(1, -2), seen[i].flatten(1, -2)
                if i > first:
                    gradient = torch.empty_like(seen[i])
                    _product(backwards, rows, tensors[weight], gradient.flatten(1, -2))
                _change(backwards, descent, trained, weight, bias, rows.transpose(1, 2), inputs)
            elif type(part) in ACTIVATIONS:
                backwards.append(partial(ACTIVATIONS[type(part)][1], gradient, seen[i + 1]))
            else:
                gradient = gradient.view(seen[i].shape)

        def step(weights: Tensor) -> None:
            for call in forwards:
                call()
            above.mul_(weights.unsqueeze(1))
            for call in backwards:
                call()

        return step


def _forward(calls: list[Call], part: nn.Module, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Where the output of a part will lie once the calls that it adds are made."""
    if isinstance(part, nn.Linear):
        assert weight is not None
        output = x.new_empty(*x.shape[:-1], part.out_features)
        row = None if bias is None else bias.unsqueeze(1)
        _product(calls, x.flatten(1, -2), weight.transpose(1, 2), output.flatten(1, -2), row)
        return output
    if type(part) in ACTIVATIONS:
        calls.append(partial(ACTIVATIONS[type(part)][0], x))
        return x
    return x.flatten(2) if isinstance(part, nn.Flatten) else x


def _product(calls: list[Call], left: Tensor, right: Tensor, out: Tensor, more: Tensor | None = None) -> None:
    """Add the call that puts left @ right + more into its place."""
    if more is None:
        calls.append(partial(torch.bmm, left, right, out=out))
    else:
        calls.append(partial(torch.baddbmm, more, left, right, out=out))


def _change(
    calls: list[Call],
    descent: Descent,
    trained: Collection[str],
    weight: str,
    bias: str,
    above: Tensor,
    inputs: Tensor,
) -> None:
    """Add the calls that change a linear layer: the gradient of its outputs is `above`, [learner, output, example]."""
    if weight in trained:
        calls.append(descent.by_product(weight, above, inputs))
    if bias in trained:
        total = above.sum(2)
        calls.append(partial(torch.sum, above, 2, out=total))
        calls.append(partial(descent.by_gradient(bias), total))


def network(module: nn.Module, loss: Loss, y: Tensor) -> Mapped:
    """Return the fastest way to run a module for many learners at once, for such targets."""
    parts = _flattened(module)
    if parts is None:
        return Mapped(module, loss)
    known = all(type(part) in (nn.Linear, nn.Flatten, nn.Identity, *ACTIVATIONS) for part in parts)
    acting = [type(part) in ACTIVATIONS for part in parts if type(part) in (nn.Linear, *ACTIVATIONS)]
    # an activation takes the place of its input, which another one before it would still need
    written = known and type(parts[-1]) is nn.Linear and not any(map(and_, acting, acting[1:]))
    labels = loss is nn.functional.cross_entropy and y.dim() == 1 and y.dtype == torch.int64
    return (Classifier if written and labels else Sequential)(module, loss, parts)


def _flattened(module: nn.Module) -> list[nn.Module] | None:
    """Return the parts of a plain sequence of linear layers and activations, or None."""
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

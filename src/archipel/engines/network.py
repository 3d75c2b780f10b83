"""A network for many learners at once: every tensor has a leading dimension, one slice a learner.

A plain sequence of linear layers and activations is stepped by batched products. Where it ends in class scores its
step is written out, because small batches would spend most of their time on autograd's graph, and every gradient goes
into its tensor in the product that makes it. Other networks go through `torch.func.vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

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

ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.ReLU: (torch.relu, lambda gradient, output: torch.ops.aten.threshold_backward(gradient, output, 0)),
    nn.Tanh: (torch.tanh, torch.ops.aten.tanh_backward),
    nn.Sigmoid: (torch.sigmoid, torch.ops.aten.sigmoid_backward),
    nn.Identity: (lambda x: x, lambda gradient, output: gradient),
}
"""Forward, and the gradient with respect to the input from that of the output and the output itself."""


class Descent(Protocol):
    """Takes the gradients of a step and changes the tensors, each as soon as nobody needs it any more."""

    def product(self, name: str, left: Tensor, right: Tensor) -> None:
        """The gradient of this tensor is left @ right."""

    def gradient(self, name: str, gradient: Tensor) -> None: ...


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

    def targets(self, y: Tensor) -> Tensor:
        """Targets of many steps, [step, learner, example, …], in the form that `descend` takes."""
        return y

    def descend(
        self, tensors: Tensors, trained: Collection[str], x: Tensor, targets: Tensor, weights: Tensor, descent: Descent
    ) -> None:
        """One step down the weighted sum of the examples' losses; weights are [learner, example]."""
        leaves = {name: tensors[name].detach().requires_grad_() for name in trained}
        loss = (self.losses({**tensors, **leaves}, x, targets) * weights).sum()
        for name, gradient in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
            descent.gradient(name, gradient)


class Sequential(Mapped):
    """A plain sequence of linear layers and activations, by batched products."""

    def __init__(self, module: nn.Module, loss: Loss, parts: Sequence[nn.Module]) -> None:
        super().__init__(module, loss)
        names = {part: f"{name}." if name else "" for name, part in module.named_modules()}
        self.parts = [(part, f"{names[part]}weight", f"{names[part]}bias") for part in parts]

    def outputs(self, tensors: Tensors, x: Tensor) -> Tensor:
        return self._pass(tensors, x, self.parts)[-1]

    @staticmethod
    def _pass(tensors: Tensors, x: Tensor, parts: Sequence[tuple[nn.Module, str, str]]) -> list[Tensor]:
        """The input and what every part puts out."""
        seen = [x]
        for part, weight, bias in parts:
            if isinstance(part, nn.Linear):
                rows, turned = x.flatten(1, -2), tensors[weight].transpose(1, 2)
                if bias in tensors:
                    product = torch.baddbmm(tensors[bias].unsqueeze(1), rows, turned)
                else:
                    product = torch.bmm(rows, turned)
                x = product if x.dim() == 3 else product.unflatten(1, x.shape[1:-1])
            elif isinstance(part, nn.Flatten):
                x = x.flatten(2)
            else:
                x = ACTIVATIONS[type(part)][0](x) if type(part) in ACTIVATIONS else part(x)
            seen.append(x)
        return seen


class Classifier(Sequential):
    """A sequence that ends in a linear layer of class scores under cross entropy: its step is written out.

    The last layer works with classes before examples, because a softmax over a short last dimension is slow.
    """

    def targets(self, y: Tensor) -> Tensor:
        head = self.parts[-1][0]
        assert isinstance(head, nn.Linear)
        return nn.functional.one_hot(y, head.out_features).transpose(2, 3).to(torch.float32)

    def descend(
        self, tensors: Tensors, trained: Collection[str], x: Tensor, targets: Tensor, weights: Tensor, descent: Descent
    ) -> None:
        *below, (_, weight, bias) = self.parts
        first = min(i for i, (_, *own) in enumerate(self.parts) if any(name in trained for name in own))
        seen = self._pass(tensors, x, below)
        examples = seen[-1].transpose(1, 2)
        if bias in tensors:
            scores = torch.baddbmm(tensors[bias].unsqueeze(2), tensors[weight], examples)
        else:
            scores = torch.bmm(tensors[weight], examples)
        # d cross entropy / d scores = (softmax - one-hot) x weight
        gradient = scores.softmax(dim=1).sub_(targets).mul_(weights.unsqueeze(1))
        above, rows = gradient, gradient.transpose(1, 2)
        if first < len(below):
            gradient = torch.bmm(rows, tensors[weight])
        if weight in trained:
            descent.product(weight, above, seen[-1])
        if bias in trained:
            descent.gradient(bias, above.sum(dim=2))
        for i in range(len(below) - 1, first - 1, -1):
            part, weight, bias = below[i]
            if isinstance(part, nn.Linear):
                rows, inputs = gradient.flatten(1, -2), seen[i].flatten(1, -2)
                if i > first:
                    gradient = torch.bmm(rows, tensors[weight]).view(seen[i].shape)
                if weight in trained:
                    descent.product(weight, rows.transpose(1, 2), inputs)
                if bias in trained:
                    descent.gradient(bias, rows.sum(dim=1))
            elif isinstance(part, nn.Flatten):
                gradient = gradient.view(seen[i].shape)
            else:
                gradient = ACTIVATIONS[type(part)][1](gradient, seen[i + 1])


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

"""A network for many learners at once: every tensor has a leading dimension, one slice a learner.

A plain sequence of linear layers and activations is stepped by batched products, with its backward pass written out
where that is simple: small batches would spend most of their time on autograd's graph. Other networks go through
`torch.func.vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from archipel.learner.learner import Loss

Tensors = Mapping[str, Tensor]
"""Parameters by name, [learner, …]."""
Names = Sequence[str]

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

BACKWARD: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.ReLU: lambda gradient, output: torch.ops.aten.threshold_backward(gradient, output, 0),
    nn.Tanh: torch.ops.aten.tanh_backward,
    nn.Sigmoid: torch.ops.aten.sigmoid_backward,
    nn.Identity: lambda gradient, output: gradient,
}
"""Gradient with respect to an activation's input, from that of its output and the output itself."""


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

    def gradients(
        self, tensors: Tensors, trained: Sequence[str], x: Tensor, y: Tensor, weights: Tensor
    ) -> list[Tensor]:
        """Gradients of the weighted sum of losses with respect to the tensors that are trained."""
        leaves = {name: tensors[name].detach().requires_grad_() for name in trained}
        loss = (self.losses({**tensors, **leaves}, x, y) * weights).sum()
        return list(torch.autograd.grad(loss, list(leaves.values())))


class Sequential(Mapped):
    """A plain sequence of linear layers and activations, by batched products."""

    def __init__(self, module: nn.Module, loss: Loss, parts: Sequence[nn.Module]) -> None:
        super().__init__(module, loss)
        names = {part: f"{name}." if name else "" for name, part in module.named_modules()}
        self.parts = [(part, f"{names[part]}weight", f"{names[part]}bias") for part in parts]
        self.written = loss is nn.functional.cross_entropy and all(
            type(part) in (nn.Linear, nn.Flatten, *BACKWARD) for part in parts
        )

    def outputs(self, tensors: Tensors, x: Tensor) -> Tensor:
        return self._pass(tensors, x)[-1]

    def _pass(self, tensors: Tensors, x: Tensor) -> list[Tensor]:
        """The input and what every part puts out."""
        seen = [x]
        for part, weight, bias in self.parts:
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
                x = part(x)
            seen.append(x)
        return seen

    def gradients(
        self, tensors: Tensors, trained: Sequence[str], x: Tensor, y: Tensor, weights: Tensor
    ) -> list[Tensor]:
        if not self.written:
            return super().gradients(tensors, trained, x, y, weights)
        seen = self._pass(tensors, x)
        if seen[-1].dim() != 3:
            return super().gradients(tensors, trained, x, y, weights)
        # d cross entropy / d outputs = (softmax - one-hot) x weight
        gradient = seen[-1].softmax(dim=2)
        gradient.scatter_add_(2, y.unsqueeze(2), torch.full_like(weights, -1.0).unsqueeze(2))
        gradient.mul_(weights.unsqueeze(2))
        first = min(i for i, (_, *own) in enumerate(self.parts) if any(name in trained for name in own))
        found: dict[str, Tensor] = {}
        for i in range(len(self.parts) - 1, first - 1, -1):
            part, weight, bias = self.parts[i]
            if isinstance(part, nn.Linear):
                rows = gradient.flatten(1, -2)
                if weight in trained:
                    found[weight] = torch.bmm(rows.transpose(1, 2), seen[i].flatten(1, -2))
                if bias in trained:
                    found[bias] = rows.sum(dim=1)
                if i > first:
                    gradient = torch.bmm(rows, tensors[weight]).view(seen[i].shape)
            elif isinstance(part, nn.Flatten):
                gradient = gradient.view(seen[i].shape)
            else:
                gradient = BACKWARD[type(part)](gradient, seen[i + 1])
        return [found[name] for name in trained]


def network(module: nn.Module, loss: Loss) -> Mapped:
    """The fastest way to run a module for many learners at once."""
    parts = _flattened(module)
    return Mapped(module, loss) if parts is None else Sequential(module, loss, parts)


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

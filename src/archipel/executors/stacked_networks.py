"""A network for many learners at once: every tensor has a leading dimension, one slice per learner.

A plain sequence of linear layers and activations is stepped by batched products. If it ends in class scores its step is
written out by hand, because with small batches autograd's graph takes most of the time, and gradients are fused into
the products that update the tensors. All other networks go through `torch.func.vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import and_
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from archipel.core.frozen_weights import copied
from archipel.executors.arithmetic import draws
from archipel.executors.mappable import MappableFunctions
from archipel.executors.recorded_step import Operation, ReadyStep, RecordedStep
from archipel.executors.recording import recorded
from archipel.executors.shortcuts import watched
from archipel.executors.simplify import descending, simplified
from archipel.executors.stacked_draws import LearnersDraws, draw_forms
from archipel.executors.stacked_layers import with_padded_norms
from archipel.executors.stacked_recurrent import with_unrolled_layers
from archipel.executors.stacked_steps import StackedOptimiser, StackedSgd
from archipel.learner.learner import Loss, TrainingContext

Tensors: TypeAlias = Mapping[str, Tensor]
"""Parameters by name, [learner, …]."""

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Softplus, nn.Identity)
PER_EXAMPLE: tuple[Loss, ...] = (
    nn.functional.cross_entropy,
    nn.functional.nll_loss,
    nn.functional.mse_loss,
    nn.functional.l1_loss,
    nn.functional.smooth_l1_loss,
    nn.functional.binary_cross_entropy_with_logits,
)
"""Losses that are the mean of single examples' losses, so that examples can be weighted."""

_relu_backward = torch.ops.aten.threshold_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.ReLU: (torch.relu_, lambda gradient, output: _relu_backward(gradient, output, 0, grad_input=gradient)),
    nn.Tanh: (torch.tanh_, lambda gradient, output: _tanh_backward(gradient, output, grad_input=gradient)),
    nn.Sigmoid: (torch.sigmoid_, lambda gradient, output: _sigmoid_backward(gradient, output, grad_input=gradient)),
}
"""Forward, and the gradient of the input from the output and its gradient; both in place."""

NamedPart: TypeAlias = tuple[nn.Module, str, str]
"""A part of a sequence, and the names of its weight and bias, if any."""
Step: TypeAlias = Callable[[Tensor, bool], None]
"""One step of all learners on the prepared examples: takes weights [learner, example], and whether some are 0."""
UNTRIED = "it has not been tried"
X, Y, SHARES = "(x)", "(y)", "(shares)"
"""Names of a recorded step's inputs beside the models' tensors, whose names have no brackets."""


@dataclass(frozen=True)
class TrainedParts:
    """The parts that a step changes."""

    parameters: tuple[str, ...]
    frozen: tuple[str, ...] = ()
    """Modules whose batch norm uses its running statistics unchanged."""


class Mapped:
    """Any stackable network, mapped by torch.func; its steps are recorded once and replayed."""

    whole = False
    """Whether batches cannot be padded: examples depend on each other, or the loss is not a mean over them."""
    own_tensors = False
    """Whether tensors created in the forward pass, such as zeros, get a copy for each learner, to change in place."""

    def __init__(self, context: TrainingContext) -> None:
        self.loss = context.loss
        self.module = copied(context.module)
        self.norms = with_padded_norms(self.module)
        with_unrolled_layers(self.module)
        self.draws = LearnersDraws(draw_forms(copied(context.module).train(), context.x)) if draws(context) else None
        """The source of the learners' random numbers, if the network draws some in training."""
        self.trial: str | None = UNTRIED
        """Why learners cannot be stacked; None: they can."""
        self._steps: dict[object, RecordedStep] = {}
        self._like = (context.x[:1], context.y[:1])

    def eval(self) -> None:
        """Switch to evaluation mode."""
        if self.module.training:  # switching takes as long as a layer
            self.module.eval()

    def outputs(self, tensors: Tensors, x: Tensor, shares: Tensor | None = None) -> Tensor:
        """Return the networks' outputs on [learner, example, …]; shares: the examples' weights, 0 for padding."""
        mapped = vmap(
            self._run, (0, 0, None if shares is None else 0), randomness="error" if self.draws is None else "different"
        )
        outputs: Tensor = mapped(dict(tensors), x, shares)
        return outputs

    def _run(self, tensors: dict[str, Tensor], x: Tensor, shares: Tensor | None) -> Tensor:
        for norm in self.norms:
            norm.shares = shares
        with sdpa_kernel(SDPBackend.MATH), MappableFunctions(x if self.own_tensors else None):
            outputs: Tensor = functional_call(self.module, tensors, (x,))
        return outputs

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each example, [learner, example]."""
        if self.loss in PER_EXAMPLE and isinstance(outputs, Tensor):
            flat = self.loss(outputs.flatten(0, 1), y.flatten(0, 1), reduction="none")  # type: ignore[call-arg]
            return flat.reshape(*y.shape[:2], -1).mean(dim=2)
        one = vmap(lambda output, target: self.loss(tree_map(_alone, output), _alone(target)))
        losses: Tensor = vmap(one)(outputs, y)
        return losses

    def step(self, tensors: Tensors, trained: TrainedParts, optimiser: StackedOptimiser, x: Tensor, y: Tensor) -> Step:
        """Return a step along the gradient of the weighted sum of losses on the contents of x and y."""
        plain = isinstance(optimiser, StackedSgd) and optimiser.is_plain
        shares = x.new_empty(x.shape[:2], dtype=torch.float32)
        given = {**tensors, X: x, Y: y, SHARES: shares}

        @cache
        def prepared(padded: bool) -> ReadyStep:
            recorded_step = self._recorded(tensors, trained, x.shape[1], padded, plain)
            return recorded_step.prepare(
                len(x), given, optimiser.plan.rate, None if self.draws is None else self.draws.ready
            )

        def step(weights: Tensor, padded: bool) -> None:
            shares.copy_(weights)
            ready = prepared(padded and bool(self.norms))
            for call in ready.calls:
                call()
            if not plain:
                optimiser.apply(trained.parameters, ready.results)

        return step

    def _recorded(self, like: Tensors, trained: TrainedParts, width: int, padded: bool, plain: bool) -> RecordedStep:
        """Return the recorded step of learners with batches of this width; plain: it includes the SGD update."""
        names = trained.parameters
        key = (trained, width, padded, plain, self.whole, self.own_tensors)
        if key not in self._steps:
            self.module.train()
            for name in trained.frozen:
                self.module.get_submodule(name).eval()

            def begun(learners: int) -> tuple[Tensors, Callable[[], Sequence[Tensor]]]:
                given = {name: _repeated(tensor[:1], learners) for name, tensor in like.items()}
                for name, one in zip((X, Y), self._like, strict=True):
                    given[name] = _repeated(one.unsqueeze(0), learners, width)
                given[SHARES] = torch.full((learners, width), 1 / width, device=given[X].device)
                return given, partial(self._gradients, given, names, padded)

            with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.inference_mode(False):
                recording = simplified(recorded(begun))
            self._steps[key] = RecordedStep(descending(recording, names) if plain else recording)
        return self._steps[key]

    def _gradients(self, given: Tensors, trained: Sequence[str], padded: bool) -> Sequence[Tensor]:
        """Return the gradients of the weighted sum of losses."""
        leaves = {name: given[name].detach().requires_grad_() for name in trained}
        tensors = {name: tensor for name, tensor in given.items() if name not in (X, Y, SHARES)}
        outputs = self.outputs({**tensors, **leaves}, given[X], given[SHARES] if padded else None)
        if self.whole:
            loss = vmap(self.loss)(outputs, given[Y]).sum()
        else:
            loss = (self.losses(outputs, given[Y]) * given[SHARES]).sum()
        return torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)


def _alone(example: Tensor) -> Tensor:
    """Return a batch of one example."""
    return example.unsqueeze(0)


def _repeated(tensor: Tensor, *counts: int) -> Tensor:
    """Repeat a tensor along new leading dimensions of these sizes."""
    return tensor.expand(*counts, *tensor.shape[len(counts) :]).clone(memory_format=torch.contiguous_format)


class Sequential(Mapped):
    """A plain sequence of linear layers and activations, by batched products."""

    def __init__(self, context: TrainingContext, parts: Sequence[NamedPart]) -> None:
        super().__init__(context)
        self.parts = parts

    def outputs(self, tensors: Tensors, x: Tensor, shares: Tensor | None = None) -> Tensor:
        for part, weight, bias in self.parts:
            if isinstance(part, nn.Linear):
                x = _linear(x, tensors[weight], tensors.get(bias))
            else:
                x = x.flatten(2) if isinstance(part, nn.Flatten) else part(x)
        return x


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows, transposed = x.flatten(1, -2), weight.transpose(1, 2)
    product = torch.bmm(rows, transposed) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, transposed)
    return product.view(*x.shape[:-1], -1)


class Classifier(Sequential):
    """A sequence that ends in a linear layer of class scores under cross entropy, with its step written out.

    All tensors of a step are preallocated, so that a step is a list of prepared calls. The last layer puts classes
    before examples, because a softmax over a short last dimension is slow.
    """

    def step(self, tensors: Tensors, trained: TrainedParts, optimiser: StackedOptimiser, x: Tensor, y: Tensor) -> Step:
        if not isinstance(optimiser, StackedSgd):  # other optimisers need all gradients at once
            return super().step(tensors, trained, optimiser, x, y)
        names = trained.parameters
        *below, (_, weight, bias) = self.parts
        first = min(i for i, (_, *own) in enumerate(self.parts) if any(name in names for name in own))
        forwards: list[Operation] = []
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

        backwards: list[Operation] = []
        gradient = torch.empty_like(inputs)
        if first < len(below):
            _product(backwards, above.transpose(1, 2), head, gradient)
        _change(backwards, optimiser, names, weight, bias, above, inputs)
        for i in range(len(below) - 1, first - 1, -1):
            part, weight, bias = below[i]
            if isinstance(part, nn.Linear):
                rows, inputs = gradient.flatten(1, -2), seen[i].flatten(1, -2)
                if i > first:
                    gradient = torch.empty_like(seen[i])
                    _product(backwards, rows, tensors[weight], gradient.flatten(1, -2))
                _change(backwards, optimiser, names, weight, bias, rows.transpose(1, 2), inputs)
            elif type(part) in ACTIVATIONS:
                backwards.append(partial(ACTIVATIONS[type(part)][1], gradient, seen[i + 1]))
            else:
                gradient = gradient.view(seen[i].shape)

        def step(weights: Tensor, padded: bool) -> None:
            for call in forwards:
                call()
            above.mul_(weights.unsqueeze(1))
            for call in backwards:
                call()

        return step


def _forward(calls: list[Operation], part: nn.Module, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Add the calls of a part; return the tensor of its output."""
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


def _product(calls: list[Operation], left: Tensor, right: Tensor, out: Tensor, more: Tensor | None = None) -> None:
    """Add the call that computes left @ right + more into a tensor."""
    if more is None:
        calls.append(partial(torch.bmm, left, right, out=out))
    else:
        calls.append(partial(torch.baddbmm, more, left, right, out=out))


def _change(
    calls: list[Operation],
    optimiser: StackedSgd,
    trained: Collection[str],
    weight: str,
    bias: str,
    above: Tensor,
    inputs: Tensor,
) -> None:
    """Add the calls that update a linear layer; above: the gradient of its outputs, [learner, output, example]."""
    if weight in trained:
        calls.append(optimiser.by_product(weight, above, inputs))
    if bias in trained:
        total = above.sum(2)
        calls.append(partial(torch.sum, above, 2, out=total))
        calls.append(partial(optimiser.by_gradient(bias), total))


_networks: WeakKeyDictionary[TrainingContext, Mapped] = WeakKeyDictionary()


def network(context: TrainingContext) -> Mapped:
    """Return the fastest implementation for many learners at once; cached, since it keeps its recordings."""
    if context not in _networks:
        parts = _plain_sequence(context)
        kind = Sequential if classifier_parts(context) is None else Classifier
        _networks[context] = Mapped(context) if parts is None else kind(context, parts)
    return _networks[context]


def classifier_parts(context: TrainingContext) -> list[NamedPart] | None:
    """Return the parts of a network whose step is written out, or None."""
    parts, y = _plain_sequence(context), context.y
    if parts is None:
        return None
    kinds = [type(part) for part, *_ in parts]
    known = all(kind in (nn.Linear, nn.Flatten, nn.Identity, *ACTIVATIONS) for kind in kinds)
    acting = [kind in ACTIVATIONS for kind in kinds if kind in (nn.Linear, *ACTIVATIONS)]
    # an activation overwrites its input, which another activation before it would still need
    written = known and kinds[-1] is nn.Linear and not any(map(and_, acting, acting[1:]))
    labels = context.loss is nn.functional.cross_entropy and y.dim() == 1 and y.dtype == torch.int64
    return parts if written and labels else None


def _plain_sequence(context: TrainingContext) -> list[NamedPart] | None:
    """Return the parts of a plain sequence of linear layers and activations without hooks, or None."""
    module, layout = context.module, context.layout
    parts = _flattened(module)
    if parts is None or len(set(parts)) < len(parts) or layout.tied or layout.frozen is not None:
        return None
    if any(map(watched, module.modules())):
        return None
    names = {part: f"{name}." if name else "" for name, part in module.named_modules()}
    return [(part, f"{names[part]}weight", f"{names[part]}bias") for part in parts]


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

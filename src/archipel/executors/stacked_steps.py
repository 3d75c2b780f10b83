"""The memory of a stack's models, and the optimisers that update them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from archipel.core.layout import Layout
from archipel.core.types import Plan
from archipel.learner.learner import optimiser

ELEMENTWISE = (
    *("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"),
)
"""Torch's elementwise optimisers, for which a stack of models is just one larger model."""
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
"""Those with a fused or foreach implementation for all tensors at once."""
WAYS = ("fused", "foreach", "capturable", "differentiable")
"""Options that select an optimiser's implementation; a plan's choice is kept."""
SCALARS = ("step", "eta", "mu", "mu_product")
"""State that is kept once per parameter, since it depends on the number of steps alone."""


class Places:
    """Memory for models as named contiguous tensors, [learner, …], as batched products need them."""

    def __init__(self, layout: Layout, count: int, like: Tensor) -> None:
        entries = [entry for layer in layout.layers for entry in layer.entries]
        self.tensors = {entry.name: like.new_empty(count, *entry.shape, dtype=entry.dtype) for entry in entries}
        self._pieces = [tensor.view(count, -1) for tensor in self.tensors.values()]
        self._sizes = [entry.stop - entry.start for entry in entries]

    def fill(self, vectors: Sequence[Tensor]) -> None:
        """Copy in one vector for each learner; in a round all start from the same one."""
        alike = all(vector is vectors[0] for vector in vectors)
        rows = vectors[0].unsqueeze(0) if alike else torch.stack([*vectors])
        for place, piece in zip(self._pieces, rows.split_with_sizes(self._sizes, 1), strict=True):
            place.copy_(piece if place.is_floating_point() else piece.round())

    def vector(self, learner: int) -> Tensor:
        """Return one model."""
        return torch.cat([piece[learner] for piece in self._pieces])

    def vectors(self) -> list[Tensor]:
        """Return the models, each in separate memory, since some live longer than others."""
        return [row.clone() for row in torch.cat(self._pieces, dim=1).float().unbind()]


class StackedOptimiser(Protocol):
    """Updates the models of a stack by their gradients."""

    plan: Plan
    anchors: Places | None
    """The models that the proximal term pulls towards."""
    shifts: Places | None
    """The vectors added to every gradient."""

    def narrow(self, k: int) -> Mapping[str, Tensor]:
        """Continue with the first k learners; return the tensors of their models."""

    def apply(self, names: Sequence[str], gradients: Sequence[Tensor]) -> None:
        """Change these tensors by their gradients."""

    def memory(self, learner: int) -> dict[str, Any]:
        """Return its state for one learner."""


def by_hand(plan: Plan) -> bool:
    """Return whether `StackedSgd` can make this plan's steps, which avoids loading torch's optimisers for a second."""
    return plan.optimiser == "SGD" and set(plan.options) <= {"weight_decay", "nesterov"}


class StackedSgd:
    """SGD in the order of torch.optim: shift, proximal term, weight decay, momentum, Nesterov."""

    def __init__(
        self, plan: Plan, models: Places, anchors: Places | None, shifts: Places | None, momenta: Places | None
    ) -> None:
        self.plan = plan
        self.models, self.anchors, self.shifts, self.momenta = models, anchors, shifts, momenta
        self.narrow(len(next(iter(models.tensors.values()))))

    def narrow(self, k: int) -> Mapping[str, Tensor]:
        """Go on with the first k learners."""
        self.k = k
        self.active = {name: tensor[:k] for name, tensor in self.models.tensors.items()}
        self._changes: dict[str, Callable[[Tensor], object]] = {}
        return self.active

    @property
    def is_plain(self) -> bool:
        """Whether it is SGD without any other term."""
        return not (self.anchors or self.shifts or self.momenta or self.plan.options)

    def apply(self, names: Sequence[str], gradients: Sequence[Tensor]) -> None:
        """Change these tensors by their gradients."""
        for name, gradient in zip(names, gradients, strict=True):
            if name not in self._changes:
                self._changes[name] = self.by_gradient(name)
            self._changes[name](gradient)

    def memory(self, learner: int) -> dict[str, Any]:
        """Return the momentum of one learner, if there is one."""
        return {} if self.momenta is None else {"momentum": self.momenta.vector(learner)}

    def by_product(self, name: str, left: Tensor, right: Tensor) -> Callable[[], object]:
        """Return a call that descends along left @ right; plain SGD fuses the product with the update."""
        tensor, rate, gamma = self.active[name], self.plan.rate, self.plan.momentum
        if self.anchors or self.shifts or self.plan.options:
            change = self.by_gradient(name)
            return lambda: change(torch.bmm(left, right))
        if not self.momenta:
            return partial(tensor.baddbmm_, left, right, alpha=-rate)
        momentum = self.momenta.tensors[name][: self.k]
        return lambda: tensor.sub_(momentum.baddbmm_(left, right, beta=gamma), alpha=rate)

    def by_gradient(self, name: str) -> Callable[[Tensor], object]:
        """Return a call that updates a tensor by its gradient."""
        tensor, plan = self.active[name], self.plan
        anchor, shift, momentum = (
            None if places is None else places.tensors[name][: self.k]
            for places in (self.anchors, self.shifts, self.momenta)
        )
        decay = float(plan.options.get("weight_decay", 0.0))  # type: ignore[arg-type]
        nesterov = bool(plan.options.get("nesterov"))
        if anchor is None and shift is None and momentum is None and not decay:
            return partial(tensor.sub_, alpha=plan.rate)

        def change(gradient: Tensor) -> None:
            if shift is not None:
                gradient = gradient + shift
            if anchor is not None:
                gradient = gradient.add(tensor - anchor, alpha=plan.proximal)
            if decay:
                gradient = gradient.add(tensor, alpha=decay)
            if momentum is not None:
                momentum.mul_(plan.momentum).add_(gradient)
                gradient = gradient.add(momentum, alpha=plan.momentum) if nesterov else momentum
            tensor.sub_(gradient, alpha=plan.rate)

        return change


class StackedTorch:
    """Any elementwise optimiser of torch, on stacked tensors of learners with the same number of past steps."""

    def __init__(
        self,
        plan: Plan,
        models: Places,
        anchors: Places | None,
        shifts: Places | None,
        trained: Sequence[str],
        memories: Sequence[dict[str, dict[str, Any]]],
    ) -> None:
        """memories: each learner's optimiser state, in the numbering of `torch.optim`; empty before the first step."""
        self.plan = plan
        self.models, self.anchors, self.shifts, self.trained = models, anchors, shifts, trained
        self._optimiser = self._made(len(memories))
        if memories[0]:
            states = {i: _stacked([memory[str(i)] for memory in memories]) for i in range(len(trained))}
            self._load(states)

    def narrow(self, k: int) -> Mapping[str, Tensor]:
        """Go on with the first k learners."""
        states = self._optimiser.state_dict()["state"]
        self._optimiser = self._made(k)
        self._load({i: _first(state, k) for i, state in states.items()})
        return {name: tensor[:k] for name, tensor in self.models.tensors.items()}

    def apply(self, names: Sequence[str], gradients: Sequence[Tensor]) -> None:
        """Change these tensors by their gradients."""
        leaves = dict(zip(self.trained, self._leaves, strict=True))
        for name, gradient in zip(names, gradients, strict=True):
            leaf = leaves[name]
            if self.shifts is not None:
                gradient = gradient + self.shifts.tensors[name][: len(leaf)]
            if self.anchors is not None:
                anchor = self.anchors.tensors[name][: len(leaf)]
                gradient = gradient.add(leaf.detach() - anchor, alpha=self.plan.proximal)
            leaf.grad = gradient.contiguous()  # fused implementations ignore strides
        self._optimiser.step()

    def memory(self, learner: int) -> dict[str, dict[str, Any]]:
        """Return the optimiser's state for one learner, as if it had been trained alone."""
        states = self._optimiser.state_dict()["state"]
        return {str(i): _row(state, learner) for i, state in states.items()}

    def _made(self, k: int) -> torch.optim.Optimizer:
        self._leaves = [nn.Parameter(self.models.tensors[name][:k]) for name in self.trained]
        plan, (first, *_) = self.plan, self._leaves
        if plan.optimiser in FUSED and first.device.type == "cpu" and not {*WAYS} & plan.options.keys():
            plan = replace(plan, options={**plan.options, "fused": True})
        return optimiser(plan, self._leaves)

    def _load(self, states: dict[int, dict[str, Any]]) -> None:
        for i, state in states.items():
            self._optimiser.state[self._leaves[i]] = state


def _stacked(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: _copy(value) if name in SCALARS or value is None else torch.stack([state[name] for state in states])
        for name, value in states[0].items()
    }


def _first(state: dict[str, Any], k: int) -> dict[str, Any]:
    return {name: value if name in SCALARS or value is None else value[:k] for name, value in state.items()}


def _row(state: dict[str, Any], learner: int) -> dict[str, Any]:
    return {name: _copy(value if name in SCALARS or value is None else value[learner]) for name, value in state.items()}


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value

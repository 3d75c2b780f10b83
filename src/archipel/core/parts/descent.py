"""Descent: what a learner descends along, where that is not the gradient of its loss on a mini-batch.

It runs at the learners. Every learner takes it from its own copy of the study, so nothing of it travels. The plan's
optimiser makes the step: shift, proximal term, weight decay and momentum work as they do with plain gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from archipel.core.checks import at_least, more_than, one_of, require
from archipel.core.parts.part import Composition, Part

Values: TypeAlias = list[Tensor]
"""Numbers of the parameters that train, a tensor for each."""


class TrainingPoint(Protocol):
    """Where a learner's training has got to."""

    rate: float
    """The task's learning rate."""
    step: int
    """Steps that the task has made before this one."""

    def values(self) -> Values:
        """Return a copy of the model."""

    def gradient(self, x: Tensor, y: Tensor, at: Values | None = None) -> Values:
        """Return the gradient of the loss on a mini-batch, at the model or at other values."""

    def curvature(self, x: Tensor, y: Tensor, along: Values) -> Values:
        """Return the Hessian of the loss on a mini-batch, at the model, times a direction."""

    def kept(self, name: str) -> Values | None:
        """Return a vector that the learner keeps; None if it has none of that name yet."""

    def keep(self, name: str, values: Values) -> None:
        """Have the learner keep a vector, in which the parameters that train have these values."""

    def forget(self, name: str) -> None:
        """Have the learner keep a vector no longer."""

    def kept_number(self, name: str) -> float | None:
        """Return a number that the learner keeps; None if it has none of that name yet."""

    def keep_number(self, name: str, value: float) -> None:
        """Have the learner keep a number."""


class Descent(Part):
    """Write a frozen dataclass; its settings and what learners keep are all that it may depend on."""

    @property
    def differentiates_twice(self) -> bool:
        """Whether it asks for products with the Hessian."""
        return False

    @property
    def gradients(self) -> float:
        """Gradients of a whole mini-batch that a step computes, which its virtual time is a multiple of."""
        return 1.0

    def begin(self, point: TrainingPoint) -> None:
        """Prepare a task, before its first step."""

    def direction(self, point: TrainingPoint, x: Tensor, y: Tensor) -> Values:
        """Return what stands in for the gradient on a mini-batch; leave the model as it is."""
        raise NotImplementedError


@dataclass(frozen=True)
class MoreauDescent(Descent):
    """pFedMe: along weight (w - theta), the gradient of the Moreau envelope at w.

    theta comes of `steps` steps theta <- theta - rate (grad f(theta) + weight (theta - w)) on the same mini-batch. It
    begins as the model that the task carried, goes on from one mini-batch to the next, and is kept as `personal`.
    """

    weight: float = 15.0
    """lambda."""
    steps: int = 5
    """K."""
    rate: float = 0.1
    """Learning rate of theta."""

    keeps = ("personal",)

    def __post_init__(self) -> None:
        more_than(0, "MoreauDescent", weight=self.weight)
        at_least(1, "MoreauDescent", steps=self.steps)
        more_than(0, "MoreauDescent", rate=self.rate)

    @property
    def gradients(self) -> float:
        return float(self.steps)

    def begin(self, point: TrainingPoint) -> None:
        point.forget("personal")
        point.keep("personal", point.values())

    def direction(self, point: TrainingPoint, x: Tensor, y: Tensor) -> Values:
        w, theta = point.values(), point.kept("personal")
        assert theta is not None
        for _ in range(self.steps):
            gradient = point.gradient(x, y, theta)
            for t, g, there in zip(theta, gradient, w, strict=True):
                g.add_(t - there, alpha=self.weight)
            theta = [t.add(g, alpha=-self.rate) for t, g in zip(theta, gradient, strict=True)]
        point.keep("personal", theta)
        return [(there - t).mul_(self.weight) for there, t in zip(w, theta, strict=True)]


@dataclass(frozen=True)
class MixedDescent(Descent):
    """APFL: along the plain gradient at w, while an own model v learns for the mixture of the two.

    v <- v - rate share grad f(m) at m = share v + (1 - share) w, on the same mini-batch and before w moves. v begins as
    the model that the first task carried. With `adaptive` the share itself descends in the first step of every task:
    share <- share - rate <v - w, grad f(m)>, within 0 and 1. Both are kept, as `own` and `share`.
    """

    share: float = 0.5
    """alpha: how much of the mixture is the learner's own model, at first or always."""
    adaptive: bool = False

    keeps = ("own", "share")

    def __post_init__(self) -> None:
        at_least(0, "MixedDescent", share=self.share)
        require(self.share <= 1, f"MixedDescent: share should be at most 1, got {self.share!r}.")

    @property
    def gradients(self) -> float:
        return 2.0

    def conflicts(self, algorithm: Composition) -> str | None:
        if algorithm.plan.optimiser != "SGD" or algorithm.plan.momentum:
            return (
                "MixedDescent makes plain steps of SGD with its own model, and the plan has "
                f"optimiser={algorithm.plan.optimiser!r} with momentum={algorithm.plan.momentum}. Use SGD without "
                "momentum."
            )
        return super().conflicts(algorithm)

    def begin(self, point: TrainingPoint) -> None:
        if point.kept("own") is None:
            point.keep("own", point.values())
        if point.kept_number("share") is None:
            point.keep_number("share", self.share)

    def direction(self, point: TrainingPoint, x: Tensor, y: Tensor) -> Values:
        w, v, share = point.values(), point.kept("own"), point.kept_number("share")
        assert v is not None
        assert share is not None
        gradient = point.gradient(x, y, mixed(v, w, share))
        if self.adaptive and point.step == 0:
            slope = math.fsum(float(((a - b) * g).sum()) for a, b, g in zip(v, w, gradient, strict=True))
            point.keep_number("share", min(1.0, max(0.0, share - point.rate * slope)))
        point.keep("own", [a.add(g, alpha=-point.rate * share) for a, g in zip(v, gradient, strict=True)])
        return point.gradient(x, y)


def mixed(own: Sequence[Tensor], shared: Sequence[Tensor], share: float) -> Values:
    """Return share own + (1 - share) shared."""
    return [(share * v).add_(w, alpha=1 - share) for v, w in zip(own, shared, strict=True)]


PARTS: dict[str, int] = {"none": 2, "differences": 3, "exact": 3}
"""Of a mini-batch, by how the Hessian is computed."""


@dataclass(frozen=True)
class MetaDescent(Descent):
    """Per-FedAvg: along (I - rate H) g', where g' is the gradient after a step of `rate` along the gradient.

    g, g' and H are each computed on a part of the mini-batch of its own. The Hessian H is left out ("none",
    Per-FedAvg (FO)), multiplied by differences of gradients ("differences", Per-FedAvg (HF)) or exactly ("exact").
    """

    rate: float = 0.01
    """alpha: of the step that a learner makes to adapt the model to itself."""
    hessian: Literal["none", "differences", "exact"] = "none"
    delta: float = 1e-3
    """How far apart gradients are taken for their differences."""

    def __post_init__(self) -> None:
        more_than(0, "MetaDescent", rate=self.rate)
        one_of("MetaDescent", "hessian", self.hessian, tuple(PARTS))
        more_than(0, "MetaDescent", delta=self.delta)

    @property
    def differentiates_twice(self) -> bool:
        return self.hessian == "exact"

    @property
    def gradients(self) -> float:
        return {"none": 2, "differences": 4, "exact": 4}[self.hessian] / PARTS[self.hessian]

    def conflicts(self, algorithm: Composition) -> str | None:
        least = PARTS[self.hessian]
        if algorithm.plan.batch < least:
            return (
                f"MetaDescent divides every mini-batch into {least} parts, and the plan has "
                f"batch={algorithm.plan.batch}; use a batch of {least} or more."
            )
        return super().conflicts(algorithm)

    def direction(self, point: TrainingPoint, x: Tensor, y: Tensor) -> Values:
        pieces = parts_of(len(y), PARTS[self.hessian])
        first, second, last = pieces[0], pieces[1], pieces[-1]
        w = point.values()
        ahead = [a.add(g, alpha=-self.rate) for a, g in zip(w, point.gradient(x[first], y[first]), strict=True)]
        gradient = point.gradient(x[second], y[second], ahead)
        if self.hessian == "none":
            return gradient
        if self.hessian == "exact":
            bend = point.curvature(x[last], y[last], gradient)
        else:
            there, back = (
                point.gradient(x[last], y[last], [a.add(g, alpha=sign) for a, g in zip(w, gradient, strict=True)])
                for sign in (self.delta, -self.delta)
            )
            bend = [a.sub_(b).div_(2 * self.delta) for a, b in zip(there, back, strict=True)]
        return [g.add(h, alpha=-self.rate) for g, h in zip(gradient, bend, strict=True)]


def parts_of(examples: int, count: int) -> list[Tensor]:
    """Return the positions of a mini-batch in so many parts; one of fewer examples stands for all its parts."""
    if examples < count:
        return [torch.arange(examples)] * count
    return list(torch.arange(examples).tensor_split(count))

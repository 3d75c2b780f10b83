"""Descent: a direction of local steps other than the gradient of the loss on a mini-batch.

It runs at the learners, each of which has it from its own copy of the study; it is never sent. The plan's optimiser
makes the step: shift, proximal term, weight decay and momentum work as they do with plain gradients.
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
"""Values of the trainable parameters, a tensor for each."""


class TrainingPoint(Protocol):
    """The current point of a learner's training."""

    rate: float
    """The task's learning rate."""
    step: int
    """Steps of the task before this one."""

    def values(self) -> Values:
        """Return a copy of the model's trainable parameters."""

    def gradient(self, x: Tensor, y: Tensor, at: Values | None = None) -> Values:
        """Return the gradient of the loss on a mini-batch, at the model or at other values."""

    def curvature(self, x: Tensor, y: Tensor, along: Values) -> Values:
        """Return the product of the Hessian of the loss on a mini-batch, at the model, with a direction."""

    def kept(self, name: str) -> Values | None:
        """Return a vector that the learner keeps; None if there is none of that name yet."""

    def keep(self, name: str, values: Values) -> None:
        """Keep a vector whose trainable parameters have these values."""

    def forget(self, name: str) -> None:
        """Forget a kept vector."""

    def kept_number(self, name: str) -> float | None:
        """Return a number that the learner keeps; None if there is none of that name yet."""

    def keep_number(self, name: str, value: float) -> None:
        """Keep a number."""


class Descent(Part):
    """A direction of local steps. Write a frozen dataclass that depends on its settings and on kept values alone."""

    @property
    def differentiates_twice(self) -> bool:
        """Whether it needs products with the Hessian."""
        return False

    @property
    def gradients(self) -> float:
        """Gradients of a whole mini-batch that a step computes; they determine its virtual time."""
        return 1.0

    def begin(self, point: TrainingPoint) -> None:
        """Prepare a task, before its first step."""

    def direction(self, point: TrainingPoint, x: Tensor, y: Tensor) -> Values:
        """Return the direction used in place of the gradient on a mini-batch; leave the model unchanged."""
        raise NotImplementedError


@dataclass(frozen=True)
class MoreauDescent(Descent):
    """pFedMe: descend along weight (w - theta), the gradient of the Moreau envelope at w.

    theta results from `steps` steps theta <- theta - rate (grad f(theta) + weight (theta - w)) on the same mini-batch.
    It begins as the model that the task carried, continues from one mini-batch to the next, and is kept as `personal`.
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
    """APFL: descend along the plain gradient at w, and train the learner's own model v for a mixture of the two.

    v <- v - rate share grad f(m) at m = share v + (1 - share) w, on the same mini-batch and before w moves. v begins as
    the model that the first task carried. With `adaptive` the share itself descends in the first step of every task:
    share <- share - rate <v - w, grad f(m)>, within 0 and 1. Both are kept, as `own` and `share`.
    """

    share: float = 0.5
    """alpha: the share of the learner's own model in the mixture; only its initial value if `adaptive`."""
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
                "MixedDescent trains its own model by plain SGD, and the plan has "
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
"""Parts of a mini-batch, by how the Hessian is computed."""


@dataclass(frozen=True)
class MetaDescent(Descent):
    """Per-FedAvg: descend along (I - rate H) g', where g' is the gradient after a step of `rate` along the gradient.

    g, g' and H are computed on separate parts of the mini-batch. The product with the Hessian H is left out ("none",
    Per-FedAvg (FO)), approximated by a difference of gradients ("differences", Per-FedAvg (HF)) or exact ("exact").
    """

    rate: float = 0.01
    """alpha: rate of the step by which a learner adapts the model."""
    hessian: Literal["none", "differences", "exact"] = "none"
    delta: float = 1e-3
    """Distance between the points whose gradients are subtracted."""

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
    """Split the positions of a mini-batch into `count` parts; with fewer examples every part is the whole."""
    if examples < count:
        return [torch.arange(examples)] * count
    return list(torch.arange(examples).tensor_split(count))

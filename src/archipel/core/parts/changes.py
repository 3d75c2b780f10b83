"""Merges that add up changes: the difference between each learner's model and the one that its task carried.

Under asynchrony that differs from a mean of models: a stale update moves the current model and does not pull it back to
the version that the learner started from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from archipel.core.checks import at_least, between, more_than, require
from archipel.core.layout import chunks
from archipel.core.parts.merge import Merge, Proposal
from archipel.core.parts.part import Composition, Needs
from archipel.core.parts.protocol import Relay
from archipel.core.state import Update, View

BLOCK = 1 << 20
"""Numbers whose squares are added up at a time; the model may be on disk."""
SMALLEST = 1e-10
"""The smallest loss used: F_k^(q - 1) is infinite at 0 for q < 1."""


class Changes(Merge):
    """w <- w + sum of c_k (w_k - w'_k), layer by layer, w'_k being the model that the task carried."""

    def coefficients(self, updates: Sequence[Update], weights: Sequence[float]) -> list[float]:
        """Return c_k of one layer for the updates that sent it."""
        raise NotImplementedError

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        merged = view.kernels.empty(view.layout.size).copy_(view.models.read(view.model.name))
        covered = []
        for layer in range(len(view.layout.layers)):
            senders = [k for k, update in enumerate(updates) if layer in update.layers and weights[k][layer] > 0]
            if not senders:
                continue
            covered.append(layer)
            sent = [updates[k] for k in senders]
            (piece,) = view.layout.slices((layer,))
            for update, c in zip(sent, self.coefficients(sent, [weights[k][layer] for k in senders]), strict=True):
                merged[piece].add_(change_of(view, update, piece), alpha=c)
        return Proposal(merged, tuple(covered))


def change_of(view: View, update: Update, piece: slice) -> Tensor:
    """Return a learner's change of a piece of the model that its task carried."""
    return view.models.read(update.model.name, piece) - view.models.read(update.start, piece)


@dataclass(frozen=True)
class MeanChange(Changes):
    """FedBuff: c_k = p_k / K for K updates; weights p_k are not normalised, so stale updates move the model less."""

    def conflicts(self, algorithm: Composition) -> str | None:
        if algorithm.weighting.at_most_one:
            return None
        return (
            f"MeanChange takes the weight itself as a factor, and {algorithm.weighting!r} gives weights above 1. "
            "Use ByFreshness(...) or Equally() with MeanChange, or Mean() with this weighting."
        )

    def within_shares(
        self, view: View, updates: Sequence[Update], weights: Sequence[tuple[float, ...]]
    ) -> list[tuple[float, ...]]:
        """Leave the weights as they are: they are not normalised, and 1 / K bounds the effect of one update."""
        return list(weights)

    def coefficients(self, updates: Sequence[Update], weights: Sequence[float]) -> list[float]:
        return [p / len(updates) for p in weights]


@dataclass(frozen=True)
class NormalisedChange(Changes):
    """FedNova: c_k = p_k tau / a_k, so that a learner that makes more steps does not count for more.

    p_k are the normalised weights; a_k is the total weight of the gradients of learner k, and tau = sum p_k a_k. For s
    steps with momentum rho, a_k = (s - rho (1 - rho^s) / (1 - rho)) / (1 - rho); with a proximal term,
    a_k = (1 - (1 - eta mu)^s) / (eta mu).
    """

    momentum: float = 0.0
    """rho of the local optimiser."""
    decay: float = 0.0
    """eta mu: rate times the weight of the proximal term."""

    def __post_init__(self) -> None:
        between("NormalisedChange", "momentum", self.momentum, 0, 1)
        between("NormalisedChange", "decay", self.decay, 0, 1)

    def conflicts(self, algorithm: Composition) -> str | None:
        plan = algorithm.plan
        if plan.optimiser != "SGD":
            return f"NormalisedChange is defined for SGD only, and the plan has {plan.optimiser}; use SGD."
        if plan.momentum != self.momentum:
            return (
                f"NormalisedChange has momentum={self.momentum}, and the plan has {plan.momentum}; give both the same."
            )
        if self.momentum and self.decay:
            return "NormalisedChange takes momentum or decay, not both; leave one out."
        if isinstance(algorithm.protocol, Relay) and (self.momentum or self.decay):
            return "a Relay's learners each begin with momentum 0 and an anchor of their own; use plain SGD."
        return None

    def coefficients(self, updates: Sequence[Update], weights: Sequence[float]) -> list[float]:
        total = math.fsum(weights)
        shares = [p / total for p in weights]
        lengths = [self.length(update.steps) for update in updates]
        tau = math.fsum(p * a for p, a in zip(shares, lengths, strict=True))
        return [p * tau / a if a > 0 else 0.0 for p, a in zip(shares, lengths, strict=True)]

    def length(self, steps: int) -> float:
        """Return a_k: the norm of the vector that weighs a learner's gradients."""
        at_least(0, "NormalisedChange", steps=steps)
        rho = self.momentum
        if rho:
            return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        return (1 - (1 - self.decay) ** steps) / self.decay if self.decay else float(steps)


@dataclass(frozen=True)
class FairChange(Merge):
    """q-FedAvg: learners with a higher loss F_k move the model further, by F_k^q.

    With L = 1 / rate, D_k = L (w'_k - w_k) and h_k = q F_k^(q - 1) |D_k|^2 + L F_k^q, the model moves by the sum of
    p_k F_k^q D_k divided by the sum of p_k h_k; h_k bounds the curvature, so no q needs its own rate. With q = 0 it is
    the mean.
    """

    q: float = 1.0
    rate: float = 0.05
    """The local learning rate."""

    needs = Needs(reports=("training loss",), single_models=True)

    def __post_init__(self) -> None:
        at_least(0, "FairChange", q=self.q)
        more_than(0, "FairChange", rate=self.rate)

    def conflicts(self, algorithm: Composition) -> str | None:
        if algorithm.plan.rate != self.rate:
            return f"FairChange has rate={self.rate}, and the plan has {algorithm.plan.rate}; give both the same."
        if algorithm.weighting.by_layer:
            return (
                f"FairChange has one weight for a whole update, and {algorithm.weighting!r} gives one for each layer. "
                "Use Equally() or ByExamples(), or Mean() with this weighting."
            )
        return None

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        merged = view.kernels.empty(view.layout.size).copy_(view.models.read(view.model.name))
        for update, weight in zip(updates, weights, strict=True):
            require(
                min(weight) == max(weight),
                f"FairChange: the weights of learner {update.learner!r} differ from layer to layer, and q-FedAvg has "
                "one for a whole update; use Equally() or ByExamples().",
            )
        counted = [(update, weight[0]) for update, weight in zip(updates, weights, strict=True) if weight[0] > 0]
        layers = tuple(sorted({layer for update, _ in counted for layer in update.layers}))
        bounds = math.fsum(p * self.bound(_loss(update), self._squared(view, update)) for update, p in counted)
        for update, p in counted:
            c = p * math.pow(_loss(update), self.q) / self.rate / bounds
            for piece in view.layout.slices(update.layers):
                merged[piece].add_(change_of(view, update, piece), alpha=c)
        return Proposal(merged, layers)

    def bound(self, loss: float, squared: float) -> float:
        """Return h_k, from the loss and the squared norm of the change w_k - w'_k."""
        return self.q * math.pow(loss, self.q - 1) * squared / self.rate**2 + math.pow(loss, self.q) / self.rate

    @staticmethod
    def _squared(view: View, update: Update) -> float:
        pieces = chunks(view.layout.slices(update.layers), BLOCK)
        return math.fsum(float(change_of(view, update, piece).double().square().sum()) for piece in pieces)


def _loss(update: Update) -> float:
    """Return F_k, at least the smallest loss used."""
    assert update.metrics.training_loss is not None  # an update without one was refused
    return max(update.metrics.training_loss, SMALLEST)

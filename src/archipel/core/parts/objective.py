"""Objective: the function that learners minimise, if not the task's loss alone.

It runs at the learners, each of which has it from its own copy of the study; it is never sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from archipel.core.checks import at_least, more_than, require
from archipel.core.layout import Layout
from archipel.core.parts.part import Part

PlainLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Mean loss of outputs against targets."""


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """A mini-batch as an objective sees it."""

    outputs: Tensor
    targets: Tensor
    classes: Tensor
    """The learner's training examples of each class; empty for tasks without classes."""
    received: Tensor | None
    """Outputs of the task's initial model, if the objective needs them."""
    features: Tensor | None = None
    """Inputs of the layer that the objective names, a row for each example."""
    received_features: Tensor | None = None
    """The same in the task's initial model."""
    previous_features: Tensor | None = None
    """The same in the result of the learner's previous task; in the first task, in its initial model."""


class Objective(Part):
    """A function to minimise. Write a frozen dataclass that depends on its settings alone."""

    needs_received = False
    """Whether it compares outputs with those of the task's initial model."""

    @property
    def compares(self) -> str | tuple[str, ...]:
        """The layer whose inputs it compares, by name or by a word that `Layout.select` knows; empty: none."""
        return ""

    needs_counts = False
    """Whether it uses the learner's class counts; if not, it gets none where examples are private."""

    def loss(self, batch: TrainingBatch, plain: PlainLoss) -> Tensor:
        """Return the value to minimise on a mini-batch; plain: the task's own loss."""
        raise NotImplementedError

    def check_network(self, module: nn.Module, layout: Layout, examples: Tensor) -> None:
        with torch.no_grad():
            shape = tuple(module.eval()(examples).shape)
        require(
            len(shape) == 2 and shape[1] > 1,
            f"{type(self).__name__} compares class scores, and this network's outputs have shape {shape} for "
            f"{len(examples)} examples; give one with a row of class scores for each, or leave it out.",
        )


@dataclass(frozen=True)
class LogitCalibration(Objective):
    """FedLC: cross entropy of scores f_y - tau n_y^(-1/4), n_y being the learner's examples of class y.

    Classes without examples at the learner are left out of the softmax, the limit of n_y -> 0.
    """

    tau: float = 1.0

    needs_counts = True

    def __post_init__(self) -> None:
        at_least(0, "LogitCalibration", tau=self.tau)

    def loss(self, batch: TrainingBatch, plain: PlainLoss) -> Tensor:
        margins = batch.classes.to(batch.outputs.dtype).pow(-0.25) * self.tau
        absent = batch.classes == 0
        return nn.functional.cross_entropy((batch.outputs - margins).masked_fill(absent, -torch.inf), batch.targets)


@dataclass(frozen=True)
class NotTrueDistillation(Objective):
    """FedNTD: adds beta KL(q_g || q_l) over the classes that are not an example's own.

    q_g and q_l are the softmax of those classes' scores divided by tau, of the received and of the local model.
    """

    beta: float = 1.0
    tau: float = 1.0

    needs_received = True

    def __post_init__(self) -> None:
        at_least(0, "NotTrueDistillation", beta=self.beta)
        more_than(0, "NotTrueDistillation", tau=self.tau)

    def loss(self, batch: TrainingBatch, plain: PlainLoss) -> Tensor:
        assert batch.received is not None
        local, received = (self._not_true(scores, batch.targets) for scores in (batch.outputs, batch.received))
        distance = nn.functional.kl_div(local, received, reduction="batchmean", log_target=True)
        return plain(batch.outputs, batch.targets) + self.beta * distance

    def _not_true(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return log softmax over the other classes, [example, class - 1]."""
        others = torch.ones_like(scores, dtype=torch.bool).scatter_(1, targets[:, None], False)
        return nn.functional.log_softmax(scores[others].view(len(scores), -1) / self.tau, dim=1)


@dataclass(frozen=True)
class ModelContrast(Objective):
    """MOON: adds mu times -log(e^(s / tau) / (e^(s / tau) + e^(p / tau))).

    s is the cosine between the features of an example in the local and in the received model, p that between the local
    and the learner's previous model; features are the inputs of the head.
    """

    mu: float = 1.0
    tau: float = 0.5
    head: str | tuple[str, ...] = "head"
    """The layer whose inputs are the features: a name, or a word that `Layout.select` knows."""

    needs_received = True
    keeps_model = "previous"

    def __post_init__(self) -> None:
        at_least(0, "ModelContrast", mu=self.mu)
        more_than(0, "ModelContrast", tau=self.tau)

    @property
    def compares(self) -> str | tuple[str, ...]:
        return self.head

    def check(self, layout: Layout) -> None:
        layout.select("ModelContrast", self.head)

    def loss(self, batch: TrainingBatch, plain: PlainLoss) -> Tensor:
        assert batch.features is not None
        assert batch.received_features is not None
        assert batch.previous_features is not None
        likenesses = [
            nn.functional.cosine_similarity(batch.features, other, dim=1)
            for other in (batch.received_features, batch.previous_features)
        ]
        scores = torch.stack(likenesses, dim=1) / self.tau
        first = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
        return plain(batch.outputs, batch.targets) + self.mu * nn.functional.cross_entropy(scores, first)

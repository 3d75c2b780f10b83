"""A learner: its data, its private layers, and its current task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from archipel.core.binding import Binding
from archipel.core.checks import require
from archipel.core.layout import Layout
from archipel.core.parts.descent import Descent
from archipel.core.parts.local_noise import LocalNoise
from archipel.core.parts.objective import Objective
from archipel.core.parts.personal import Personal
from archipel.core.types import Metrics, Plan, Scored
from archipel.kernels import kernels
from archipel.learner.batches import epochs_of, steps_after, steps_of_epoch
from archipel.learner.example_budget import StepNoise
from archipel.learner.stopping import ended
from archipel.learner.tokens import token_cross_entropy

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Mean loss of outputs against targets."""


ROWS = 4096
"""Examples evaluated at a time, if their outputs are small."""


class Augmentation(Protocol):
    """Changes training examples at random; the draws are a function of the task's key, the epoch and the position."""

    def draws(self, key: int, epoch: int, examples: int) -> Tensor:
        """Return one row of draws for each of the learner's training examples."""

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return the examples, each changed by its row of draws."""


@dataclass(frozen=True, eq=False)
class TrainingContext:
    """The context that all learners share: the network, its layout, the loss, and the tensors of examples."""

    module: nn.Module
    layout: Layout
    loss: Loss
    x: Tensor
    y: Tensor
    classes: int | None
    augment: Augmentation | None = None
    """Random changes of training examples."""
    objective: Objective | None = None
    """The objective that learners minimise instead of the loss."""
    descent: Descent | None = None
    """The direction that they step along instead of the gradient."""
    personal: Personal | None = None
    """The model that a learner uses instead of the shared one."""
    tuning: Plan | None = None
    """The plan by which a learner fine-tunes its own model before use."""
    keeps: tuple[str, ...] = ()
    """Names of the vectors that every learner keeps from task to task."""
    rows: int = ROWS
    """Examples evaluated at a time."""
    local_noise: LocalNoise | None = None
    """Clipping and noise of gradients; if set, every task must have noise."""

    @cached_property
    def gradient_ways(self) -> dict[tuple[str, ...], str]:
        """A cache of the method for gradients of single examples, by the trainable parameters."""
        return {}

    @property
    def per_token(self) -> bool:
        """Whether every token of an example has its own target."""
        return self.loss is token_cross_entropy

    @property
    def has_texts(self) -> bool:
        """Whether examples are texts: rows of whole numbers, such as token ids and attention mask."""
        return self.x.dtype == torch.int64 and self.x.dim() == 3

    def kept_after(self, kept: Mapping[str, Tensor], vector: Tensor) -> dict[str, Tensor]:
        """Return the vectors that a learner keeps after a task with these kept vectors and this final model."""
        parts = (self.objective, self.personal)
        return {**kept, **{part.keeps_model: vector for part in parts if part is not None and part.keeps_model}}

    @cached_property
    def binding(self) -> Binding:
        """The network's parameters as views into a vector."""
        return Binding(self.layout, self.module)


@dataclass(eq=False)
class Learner:
    """A learner's examples by index, and the private layers and vectors that never leave it."""

    name: str
    train: Tensor
    validation: Tensor
    test: Tensor
    private: dict[str, Tensor] = field(default_factory=dict)
    """Its private layers by name, once it has trained them."""
    kept: dict[str, Tensor] = field(default_factory=dict)
    """The vectors that it keeps from task to task for the algorithm's parts, by name."""

    def __post_init__(self) -> None:
        require(
            len(self.train) + len(self.test) > 0,
            f"Learner {self.name!r} has no examples; leave it out, or give it at least one.",
        )

    def under(self, plan: Plan) -> Learner:
        """Return the learner with the examples that it trains on under a plan; private layers are shared."""
        return self._on_all_data if plan.all_data else self

    @cached_property
    def _on_all_data(self) -> Learner:
        everything = torch.cat((self.train, self.validation))
        return Learner(self.name, everything, self.validation[:0], self.test, self.private, self.kept)

    def snapshot(self) -> Learner:
        """Return a copy of the learner with its current private layers and kept vectors."""
        return replace(self, private=dict(self.private), kept=dict(self.kept))

    def with_private(self, layout: Layout, vector: Tensor) -> Tensor:
        """Return the model with this learner's private layers, if it has any."""
        return layout.with_layers(vector, self.private) if self.private else vector

    def keep(
        self, layout: Layout, private: tuple[str, ...], vector: Tensor, kept: Mapping[str, Tensor] | None = None
    ) -> bool:
        """Keep the private layers of a model, and vectors; if any is not finite, change nothing and return False."""
        slices = {name: layout.slices((layout.index(name),))[0] for name in private}
        kept = kept or {}
        numbers = (*(vector[piece] for piece in slices.values()), *kept.values())
        if not all(kernels().finite(one) for one in numbers):
            return False
        self.private |= {name: vector[piece].clone() for name, piece in slices.items()}
        self.kept |= {name: one.cpu().clone() for name, one in kept.items()}
        return True


@dataclass(eq=False)
class Job:
    """A training task at a learner, with its progress. Executors advance it epoch by epoch."""

    learner: Learner
    plan: Plan
    vector: Tensor
    """The model. Training replaces it and never changes it in place: it may be shared."""
    anchor: Tensor | None
    """The received model, if the proximal term or the objective needs it."""
    key: int = 0
    """Seed of the task's own randomness."""
    epochs: int = 0
    losses: list[float] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    """The optimiser's state between epochs, and the buffers that the network does not save."""
    validation: Scored | None = None
    """The final model's score on the learner's own validation part, if the executor has computed it already."""
    received: Tensor | None = None
    """The received model, if its training loss is to be reported."""
    shift: Tensor | None = None
    """The vector added to every gradient."""
    noise: StepNoise | None = None
    """The clipping and noise of its gradients."""
    kept: dict[str, Tensor] = field(default_factory=dict)
    """The kept vectors that this task has changed. A vector is replaced and never changed in place."""
    plain: bool = False
    """Whether it fine-tunes: plain steps on the task's loss, without the algorithm's objective and descent."""
    task: int | None = None
    """Its number, for messages."""
    examples: int = field(init=False)

    def __post_init__(self) -> None:
        self.examples = self.learner.train.size(0)

    @staticmethod
    def begin(
        learner: Learner,
        layout: Layout,
        carried: Tensor,
        plan: Plan,
        key: int = 0,
        shift: Tensor | None = None,
        objective: Objective | None = None,
        noise: StepNoise | None = None,
    ) -> Job:
        learner = learner.under(plan)
        vector = learner.with_private(layout, carried)
        anchored = plan.proximal > 0 or any(phase.of or phase.proximal for phase in plan.phases)
        anchored = anchored or (objective is not None and objective.needs_received)
        return Job(
            learner,
            plan,
            vector,
            vector if anchored else None,
            key,
            received=vector if "training loss" in plan.reports else None,
            shift=shift,
            noise=noise,
            kept=dict(learner.kept),
        )

    @property
    def steps(self) -> int:
        return self.steps_at(self.epochs)

    def steps_at(self, epochs: int) -> int:
        """Return the number of steps of the task's model after this many epochs."""
        return steps_after(self.plan, self.examples, self.plan.own_epochs(epochs) if self.plan.phases else epochs)

    @property
    def watches(self) -> bool:
        """Whether it tracks the loss on its validation part."""
        return self.plan.cycle is not None or "losses" in self.plan.reports

    @property
    def done(self) -> bool:
        if self.epochs >= epochs_of(self.plan, self.examples):
            return True
        return self.plan.cycle is not None and self.epochs > 0 and ended(self.plan.cycle, self.losses)

    def metrics(self, epochs: int, validation: Scored | None, gradient_norm: float | None) -> Metrics:
        """Return the learner's report after this many epochs."""
        passes = self.steps_at(epochs) / steps_of_epoch(self.examples, self.plan.batch)
        return Metrics(passes, tuple(self.losses[: epochs + 1]), validation, gradient_norm)


def optimiser(plan: Plan, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the plan's optimiser; SGD is Metis eq. 2: u <- gamma u + grad, w <- w - eta u."""
    kind = getattr(torch.optim, plan.optimiser, None)
    require(
        isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer),
        f"Plan: torch.optim has no optimiser {plan.optimiser!r}; it has SGD, Adam, AdamW, RMSprop …",
    )
    require(
        plan.optimiser != "LBFGS",
        "Plan: LBFGS evaluates a step several times, which a task of fixed steps does not allow; use SGD or Adam.",
    )
    settings: Mapping[str, Any] = {"lr": plan.rate, **plan.options}
    if plan.momentum:
        settings = {**settings, "momentum": plan.momentum}
    assert kind is not None
    try:
        made: torch.optim.Optimizer = kind(parameters, **settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Plan: {plan.optimiser} does not take {dict(settings)}: {error}") from None
    return made

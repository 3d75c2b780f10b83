"""Personal: a model that a learner uses itself instead of the shared one.

Scores for the records are of this model, so a run is scored at the learners, each of which builds it from its own copy
of the study. Distributed validation scores the updates as sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from archipel.core.checks import at_least, between, more_than
from archipel.core.layout import Layout
from archipel.core.members import Member
from archipel.core.parts.all_data import AllData
from archipel.core.parts.descent import MixedDescent
from archipel.core.parts.neurons import check_rows, last_rows
from archipel.core.parts.part import Composition, Part
from archipel.core.parts.planning import Decay, PeriodicLayers, Planner, PrivateLayers, Proximal, ValidationCycle
from archipel.core.parts.shifts import GradientShift
from archipel.core.state import View
from archipel.core.types import Phase, Plan


@dataclass(frozen=True, eq=False)
class ModelSources:
    """The sources of a personal model."""

    layout: Layout
    shared: Tensor
    """The shared model, with the learner's private layers."""
    kept: Mapping[str, Tensor]
    """The vectors that the learner keeps."""
    classes: Tensor
    """The learner's training examples of each class; empty for tasks without classes."""


class Personal(Part):
    """A personal model. Write a frozen dataclass that overrides one of the two methods."""

    def model(self, sources: ModelSources) -> Tensor:
        """Return a learner's personal model."""
        return sources.shared

    def tuning(self, plan: Plan) -> Plan | None:
        """Return the plan by which a learner fine-tunes the model on its training data before each use; None: none."""
        return None


@dataclass(frozen=True)
class KeptModel(Personal):
    """The vector that the learner keeps under this name; until there is one, the shared model."""

    name: str = "personal"

    def conflicts(self, algorithm: Composition) -> str | None:
        if self.name in algorithm.keeps:
            return None
        known = f"they keep {', '.join(algorithm.keeps)}" if algorithm.keeps else "they keep none"
        return (
            f"KeptModel: learners keep no vector {self.name!r}; {known}. Add a part that keeps it, such as "
            "PersonalPhase() to planners, or use FineTuned()."
        )

    def model(self, sources: ModelSources) -> Tensor:
        return sources.kept.get(self.name, sources.shared)


@dataclass(frozen=True)
class MixedModel(Personal):
    """APFL: share v + (1 - share) w, of the learner's own model v and the shared one w."""

    def conflicts(self, algorithm: Composition) -> str | None:
        if isinstance(algorithm.descent, MixedDescent):
            return None
        return "MixedModel uses what MixedDescent trains; use it with descent=MixedDescent(), or use FineTuned()."

    def model(self, sources: ModelSources) -> Tensor:
        shared, kept = sources.shared, sources.kept
        if "own" not in kept:
            return shared
        share = float(kept["share"])
        return (share * kept["own"]).add_(shared, alpha=1 - share)


@dataclass(frozen=True)
class MixedHead(Personal):
    """A head mixed of the learner's own, for its frequent classes, and the shared one, for rare ones (open in HDAFL).

    The last layer's row of class c is a own + (1 - a) shared, with a = n_c / (n_c + rare): n_c are the learner's
    training examples of the class, and own is the row at the end of its last task.
    """

    rare: float = 10.0
    """Number of a class's examples at which the own and the shared row count the same."""

    keeps_model = "trained"

    def __post_init__(self) -> None:
        at_least(0, "MixedHead", rare=self.rare)

    def check(self, layout: Layout) -> None:
        check_rows("MixedHead", layout)

    def model(self, sources: ModelSources) -> Tensor:
        own, counts = sources.kept.get(self.keeps_model), sources.classes
        rows = last_rows(sources.layout)
        if own is None or len(counts) != rows[0].shape[0]:
            return sources.shared
        made = sources.shared.clone()
        known = torch.where(counts > 0, counts / (counts + self.rare), 0.0)
        for axis in rows:
            target = axis.of(made)
            share = known.to(target.dtype).view(-1, *[1] * (target.dim() - 1))
            target.lerp_(axis.of(own), share)
        return made


@dataclass(frozen=True)
class FineTuned(Personal):
    """The shared model after some training on the learner's own data, by plain steps on the task's loss."""

    epochs: int = 5
    steps: int | None = None
    """Mini-batches instead of epochs."""
    rate: float | None = None
    """Learning rate; None: the plan's."""
    momentum: float | None = None
    """None: the plan's."""

    def __post_init__(self) -> None:
        at_least(1, "FineTuned", epochs=self.epochs)
        if self.steps is not None:
            at_least(1, "FineTuned", steps=self.steps)
        if self.rate is not None:
            more_than(0, "FineTuned", rate=self.rate)
        if self.momentum is not None:
            between("FineTuned", "momentum", self.momentum, 0, 1)

    def tuning(self, plan: Plan) -> Plan:
        return replace(
            plan,
            epochs=self.epochs,
            steps=self.steps,
            rate=plan.rate if self.rate is None else self.rate,
            momentum=plan.momentum if self.momentum is None else self.momentum,
            cycle=None,
            trains=None,
            phases=(),
            proximal=0.0,
            shift=None,
            reports=(),
        )


BESIDE = (Proximal, Decay, PeriodicLayers, PrivateLayers, GradientShift, AllData)
"""Planners that change neither a task's epochs nor its trained layers."""


@dataclass(frozen=True)
class PersonalPhase(Planner):
    """Ditto: after the shared model, a task trains the learner's own model, kept near the one that the task carried.

    The own model v is kept as `personal` and never sent. It minimises the loss plus (weight / 2) ||v - w'||^2, w' being
    the model that the task carried.
    """

    weight: float = 1.0
    """lambda: 0 trains the own model independently; a large one makes it equal the shared model."""
    epochs: int = 1
    """Epochs of the own model, in addition to those of the shared one."""
    rate: float = 1.0
    """Its learning rate, relative to the plan's."""

    keeps = ("personal",)

    def __post_init__(self) -> None:
        at_least(0, "PersonalPhase", weight=self.weight)
        at_least(1, "PersonalPhase", epochs=self.epochs)
        more_than(0, "PersonalPhase", rate=self.rate)

    def conflicts(self, algorithm: Composition) -> str | None:
        plan = algorithm.plan
        if plan.steps is not None or plan.cycle is not None:
            return "PersonalPhase counts epochs, and the plan has steps or a validation cycle; leave them out."
        if any(isinstance(planner, ValidationCycle) for planner in algorithm.planners):
            return "ValidationCycle ends a task by its losses, and PersonalPhase by its epochs; leave one out."
        for behind in algorithm.planners[algorithm.planners.index(self) + 1 :]:
            if not isinstance(behind, BESIDE):
                return (
                    f"{type(behind).__name__} comes after PersonalPhase and would change the phases it has set; "
                    "make PersonalPhase the last of the planners."
                )
        return super().conflicts(algorithm)

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        (planned,) = self.plans(view.layout, plan)
        return planned

    def plans(self, layout: Layout, plan: Plan) -> tuple[Plan, ...]:
        shared = plan.phases or (Phase(plan.epochs, layout.names if plan.trains is None else plan.trains),)
        own = Phase(self.epochs, layout.names, self.rate, self.weight, "personal")
        return (replace(plan, epochs=plan.epochs + self.epochs, phases=(*shared, own)),)

"""Planners that add a vector to every gradient, and the merge that goes with one of them.

The controller derives mean gradients from a task's first and last model: plain SGD moves a model by -rate times the sum
of the gradients. One vector is sent with every task, and only models are sent back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from archipel.core.checks import more_than, share
from archipel.core.layout import Layout
from archipel.core.members import Member
from archipel.core.parts.changes import change_of
from archipel.core.parts.merge import Mean, Proposal
from archipel.core.parts.part import Composition
from archipel.core.parts.planning import Planner, Proximal
from archipel.core.parts.protocol import Relay
from archipel.core.state import Update, View
from archipel.core.types import Plan

ANY = "shift"
"""The name that stands for all shifts in the plans that a planner may make."""


@dataclass(slots=True)
class ShiftMemory:
    written: dict[str, bool] = field(default_factory=dict)
    """Vectors in the store; the others are still zero."""


class GradientShift(Planner):
    """Adds a vector to every gradient of a task."""

    remembers_updates = True
    plain_sgd = False
    """Whether it derives gradients from a task's movement, which only plain SGD allows."""

    def conflicts(self, algorithm: Composition) -> str | None:
        mine, plan = type(self).__name__, algorithm.plan
        if isinstance(algorithm.protocol, Relay):
            return (
                f"{mine} follows each learner's own movement, and under Relay a model moves at several "
                f"learners. Use Rounds(...) or Stream(...), or leave {mine} out."
            )
        others = [type(planner).__name__ for planner in algorithm.planners if isinstance(planner, GradientShift)]
        if len(others) > 1:
            return f"{' and '.join(sorted(others))} both shift the gradients of a task; use one."
        if self.plain_sgd and (plan.optimiser != "SGD" or plan.momentum):
            return (
                f"{mine} derives mean gradients from a task's movement, which needs plain SGD, and the plan has "
                f"optimiser={plan.optimiser!r} with momentum={plan.momentum}. Use SGD without momentum."
            )
        return super().conflicts(algorithm)

    def shift(self, view: View, learner: str) -> Tensor:
        """Return the vector to add to the gradients of a learner's next task, as a new one."""
        raise NotImplementedError

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        name = view.name(f"{learner.name}.{learner.given}")
        view.models.write(name, self.shift(view, learner.name))
        return replace(self.asked(plan), shift=name)

    def plans(self, layout: Layout, plan: Plan) -> tuple[Plan, ...]:
        return (replace(self.asked(plan), shift=ANY),)

    def asked(self, plan: Plan) -> Plan:
        """Return a plan with the other settings that the shift needs."""
        return plan

    @staticmethod
    def stored(view: View, what: str) -> Tensor:
        """Return a copy of a stored vector; zero at first."""
        if what in view.memory(ShiftMemory).written:
            return view.models.read(view.name(what)).clone()
        return torch.zeros(view.layout.size)

    @staticmethod
    def store(view: View, what: str, vector: Tensor) -> None:
        """Store a vector, unless it is not finite, which would spoil all later tasks."""
        if view.kernels.finite(vector):
            view.models.write(view.name(what), vector)
            view.memory(ShiftMemory).written[what] = True


def moved_layers(view: View, update: Update) -> list[int]:
    """Return the indices of the layers that a task trained and sent."""
    trained = view.layout.shared_parameters(update.plan.trains, update.plan.private)
    return [place for place in trained if place in update.layers] if update.steps else []


@dataclass(frozen=True)
class ControlVariates(GradientShift):
    """SCAFFOLD: adds c - c_i, where c_i is the mean gradient of learner i's last task and c the mean of all c_i.

    A learner that has not trained yet has c_i = 0. The controller keeps one vector for each learner.
    """

    plain_sgd = True

    def shift(self, view: View, learner: str) -> Tensor:
        return self.stored(view, "c").sub_(self.stored(view, f"c of {learner}"))

    def committed(self, view: View, updates: Sequence[Update]) -> None:
        c, learners = self.stored(view, "c"), len(view.active())
        for update in updates:
            assert update.plan.shift is not None
            own = self.stored(view, f"c of {update.learner}")
            for piece in view.layout.slices(moved_layers(view, update)):
                # steps are along gradient + c - c_i, so their mean minus that shift is the mean gradient
                mean = change_of(view, update, piece).div_(-update.plan.rate * update.steps)
                mean.sub_(view.models.read(update.plan.shift, piece))
                c[piece].add_(mean - own[piece], alpha=1 / max(learners, 1))
                own[piece] = mean
            self.store(view, f"c of {update.learner}", own)
        self.store(view, "c", c)


@dataclass(frozen=True)
class DynamicRegulariser(GradientShift):
    """FedDyn: adds h_k + alpha (w - w'), w' being the model the task carried; h_k <- h_k + alpha (w_k - w').

    The controller keeps one vector for each learner. `DynamicMean` is the merge that goes with it.
    """

    alpha: float = 0.01

    def __post_init__(self) -> None:
        more_than(0, "DynamicRegulariser", alpha=self.alpha)

    def conflicts(self, algorithm: Composition) -> str | None:
        if any(isinstance(planner, Proximal) for planner in algorithm.planners) or algorithm.plan.proximal:
            return "DynamicRegulariser has a proximal term of its own; leave the other one out."
        if not any(isinstance(merge, DynamicMean) for merge in (algorithm.merge, *algorithm.merge.inner())):
            return (
                f"DynamicRegulariser lets learners drift apart by design, which DynamicMean() corrects and "
                f"{type(algorithm.merge).__name__} does not. Use DynamicMean(), or ControlVariates() with this merge."
            )
        return super().conflicts(algorithm)

    def asked(self, plan: Plan) -> Plan:
        return replace(plan, proximal=self.alpha)

    def shift(self, view: View, learner: str) -> Tensor:
        return self.stored(view, f"h of {learner}")

    def committed(self, view: View, updates: Sequence[Update]) -> None:
        for update in updates:
            own = self.stored(view, f"h of {update.learner}")
            for piece in view.layout.slices(moved_layers(view, update)):
                own[piece].add_(change_of(view, update, piece), alpha=self.alpha)
            self.store(view, f"h of {update.learner}", own)


@dataclass(slots=True)
class DriftMemory:
    written: bool = False
    """Whether the drift is in the store; else it is zero."""


@dataclass(frozen=True)
class DynamicMean(Mean):
    """FedDyn: w <- mean of the w_k - d, with d <- d - (1 / N) sum of (w_k - w'_k) over N learners; d is h / alpha."""

    def conflicts(self, algorithm: Composition) -> str | None:
        if any(isinstance(planner, DynamicRegulariser) for planner in algorithm.planners):
            return None
        return (
            "DynamicMean corrects what DynamicRegulariser(...) does at the learners; add it to planners, or use Mean()."
        )

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        proposal, memory, learners = super().merge(view, updates, weights), view.memory(DriftMemory), view.active()
        before = view.models.read(view.name("d")) if memory.written else torch.zeros(view.layout.size)
        drift = before.clone()
        for update in updates:
            for piece in view.layout.slices(moved_layers(view, update)):
                drift[piece].add_(change_of(view, update, piece), alpha=-1 / max(len(learners), 1))
        for piece in view.layout.slices(p for p in proposal.layers if not view.layout.layers[p].buffers):
            proposal.vector[piece].sub_(drift[piece])
        view.models.write(view.name("d"), drift)
        memory.written = True
        return replace(proposal, undo=lambda: view.models.write(view.name("d"), before))


@dataclass(frozen=True)
class LearnerMomentum(GradientShift):
    """FedCM: steps are along alpha g + (1 - alpha) D, D being the mean step direction of the last commit's updates.

    This equals a shift of D (1 - alpha) / alpha at a rate of alpha times the plan's.
    """

    alpha: float = 0.1

    plain_sgd = True

    def __post_init__(self) -> None:
        share("LearnerMomentum", "alpha", self.alpha)

    def asked(self, plan: Plan) -> Plan:
        return replace(plan, rate=plan.rate * self.alpha)

    def shift(self, view: View, learner: str) -> Tensor:
        return self.stored(view, "D").mul_((1 - self.alpha) / self.alpha)

    def committed(self, view: View, updates: Sequence[Update]) -> None:
        direction = self.stored(view, "D")
        for layer in view.layout.parameter_layers:
            sent = [update for update in updates if layer in moved_layers(view, update)]
            (piece,) = view.layout.slices((layer,))
            if sent:
                direction[piece] = 0
            for update in sent:
                steps = update.steps * update.plan.rate / self.alpha
                direction[piece].add_(change_of(view, update, piece), alpha=-1 / (steps * len(sent)))
        self.store(view, "D", direction)

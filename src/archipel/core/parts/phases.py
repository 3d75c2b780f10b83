"""Tasks in phases, which train parts of the network in turn."""

from __future__ import annotations

from dataclasses import dataclass, replace

from archipel.core.checks import at_least, require
from archipel.core.layout import Layout
from archipel.core.members import Member
from archipel.core.parts.frozen import FrozenLayers
from archipel.core.parts.part import Composition
from archipel.core.parts.planning import DivideAndConquer, Planner, ValidationCycle
from archipel.core.parts.shifts import GradientShift
from archipel.core.state import View
from archipel.core.types import Phase, Plan


@dataclass(frozen=True)
class HeadFirst(Planner):
    """FedRep: a task trains the head alone for some epochs, then the other layers for the plan's epochs."""

    layers: str | tuple[str, ...] = "head"
    """The head: names, or a word that `Layout.select` knows."""
    epochs: int = 10
    """Epochs of the head."""

    def __post_init__(self) -> None:
        at_least(1, "HeadFirst", epochs=self.epochs)

    def conflicts(self, algorithm: Composition) -> str | None:
        plan = algorithm.plan
        if plan.steps is not None or plan.cycle is not None:
            return "HeadFirst counts epochs, and the plan has steps or a validation cycle; leave them out."
        for other in algorithm.planners:
            name = type(other).__name__
            if isinstance(other, DivideAndConquer | ValidationCycle | FrozenLayers):
                return f"HeadFirst and {name} both choose which layers train when; use one."
            if isinstance(other, GradientShift) and other.plain_sgd:
                return (
                    f"{name} divides a task's movement by its steps, and with HeadFirst no layer trains in all of "
                    "them; leave one out."
                )
        return super().conflicts(algorithm)

    def check(self, layout: Layout) -> None:
        head = layout.select("HeadFirst", self.layers)
        require(
            len(head) < len(layout.names),
            f"HeadFirst: all layers ({', '.join(layout.names)}) are the head, so no other layer is left to train; "
            "name fewer.",
        )

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        (planned,) = self.plans(view.layout, plan)
        return planned

    def plans(self, layout: Layout, plan: Plan) -> tuple[Plan, ...]:
        head = layout.select("HeadFirst", self.layers)
        body = tuple(name for name in layout.names if name not in head)
        phases = (Phase(self.epochs, head), Phase(plan.epochs, body))
        return (replace(plan, epochs=self.epochs + plan.epochs, phases=phases),)

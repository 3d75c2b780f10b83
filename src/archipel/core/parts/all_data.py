"""Training on all data once the validation phase is over (Metis, section VII: left open)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from archipel.core.checks import at_least
from archipel.core.layout import Layout
from archipel.core.members import Member
from archipel.core.parts.part import Composition, Needs
from archipel.core.parts.planning import Planner, ValidationCycle
from archipel.core.state import View
from archipel.core.types import Plan, Reports

ON_VALIDATION: tuple[Reports, ...] = ("validation", "validation scores", "losses")
"""Reports computed on the validation part."""


@dataclass(frozen=True)
class AllData(Planner):
    """From a version on, learners train on their validation parts too, and report nothing about them any more.

    Tasks then have the plan's epochs, without validation cycles.
    """

    after: int = 100
    """The first version that tasks train from on all data."""

    needs = Needs(validation=True)

    def __post_init__(self) -> None:
        at_least(1, "AllData", after=self.after)

    def conflicts(self, algorithm: Composition) -> str | None:
        if algorithm.weighting.validates(self.after):
            return (
                f"from version {self.after} on learners train on the validation parts that updates are weighed by; use "
                f"ByDistributedValidation(until={self.after}), or another weighting."
            )
        behind = algorithm.planners[algorithm.planners.index(self) + 1 :]
        if any(isinstance(planner, ValidationCycle) for planner in behind):
            return "put AllData behind ValidationCycle, whose cycles end with the validation phase."
        return super().conflicts(algorithm)

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        return plan if view.version < self.after else self._on_all_data(plan)

    def plans(self, layout: Layout, plan: Plan) -> tuple[Plan, ...]:
        return (plan, self._on_all_data(plan))

    def _on_all_data(self, plan: Plan) -> Plan:
        reports = tuple(report for report in plan.reports if report not in ON_VALIDATION)
        return replace(plan, all_data=True, cycle=None, reports=reports)

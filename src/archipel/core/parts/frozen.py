"""Layers that stay as they were initialised."""

from __future__ import annotations

from dataclasses import dataclass, replace

from archipel.core.checks import require
from archipel.core.layout import Layout
from archipel.core.members import Member
from archipel.core.parts.planning import Planner
from archipel.core.state import View
from archipel.core.types import Plan


@dataclass(frozen=True)
class FrozenLayers(Planner):
    """FedBABU: these layers stay as they were initialised; the others train and are sent."""

    layers: str | tuple[str, ...] = "head"
    """Names, or a word that `Layout.select` knows."""

    def check(self, layout: Layout) -> None:
        frozen = layout.select("FrozenLayers", self.layers)
        require(
            len(frozen) < len(layout.names),
            f"FrozenLayers: all layers ({', '.join(layout.names)}) are frozen, so nothing is left to train; "
            "name fewer.",
        )

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        (planned,) = self.plans(view.layout, plan)
        return planned

    def plans(self, layout: Layout, plan: Plan) -> tuple[Plan, ...]:
        frozen = layout.select("FrozenLayers", self.layers)
        trained = layout.names if plan.trains is None else plan.trains
        sent = layout.names if plan.uploads is None else plan.uploads
        return (
            replace(
                plan,
                trains=tuple(name for name in trained if name not in frozen),
                uploads=tuple(name for name in sent if name not in frozen),
            ),
        )

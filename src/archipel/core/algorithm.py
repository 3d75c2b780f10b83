"""Algorithms: frozen records of parts. Every method of the five papers is one, and so is every mixture of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, is_dataclass, replace
from types import FunctionType

from torch import Tensor, nn

from archipel.core.checks import require
from archipel.core.layout import Layout
from archipel.core.parts.descent import Descent
from archipel.core.parts.local_noise import LocalNoise
from archipel.core.parts.merge import Mean, Merge
from archipel.core.parts.objective import Objective
from archipel.core.parts.part import Needs, Part
from archipel.core.parts.personal import Personal
from archipel.core.parts.planning import Planner
from archipel.core.parts.privacy import Privacy
from archipel.core.parts.protocol import Protocol, Rounds
from archipel.core.parts.recall import Recall
from archipel.core.parts.selection import Selection, Uniform
from archipel.core.parts.server import Replace, Server
from archipel.core.parts.weighting import ByExamples, Weighting
from archipel.core.types import Plan, Reports

OPTIONAL: dict[str, tuple[type[Part], str]] = {
    "recall": (Recall, "MedianStaleness(20)"),
    "objective": (Objective, "LogitCalibration()"),
    "descent": (Descent, "MetaDescent()"),
    "personal": (Personal, "FineTuned()"),
    "privacy": (Privacy, "CentralNoise(epsilon=2.0)"),
}
"""Parts that an algorithm may lack, by role: their kind, and an example."""


@dataclass(frozen=True)
class Algorithm:
    """A method: protocol, selection, weighting, merge, server optimiser and planners, each a part of its own."""

    name: str
    protocol: Protocol = Rounds()
    selection: Selection = Uniform()
    weighting: Weighting = ByExamples()
    merge: Merge = Mean()
    server: Server = Replace()
    planners: tuple[Planner, ...] = ()
    recall: Recall | None = None
    objective: Objective | None = None
    """The learners' objective; None: the task's loss."""
    descent: Descent | None = None
    """The learners' direction of descent; None: the gradient."""
    personal: Personal | None = None
    """The model that a learner uses itself; None: the shared one."""
    privacy: Privacy | None = None
    plan: Plan = Plan()
    """The plan the planners start from: epochs, batch, rate, optimiser."""
    pooled: bool = False
    """A baseline, in simulation only: train on all learners' data in one place."""

    def __post_init__(self) -> None:
        kinds = {
            "protocol": Protocol,
            "selection": Selection,
            "weighting": Weighting,
            "merge": Merge,
            "server": Server,
            "plan": Plan,
        }
        for name, kind in kinds.items():
            given = getattr(self, name)
            require(
                isinstance(given, kind),
                f"{self.name}: {name} should be a {kind.__name__} such as {_default(name)!r}, got {given!r}.",
            )
        for planner in self.planners:
            require(isinstance(planner, Planner), f"{self.name}: {planner!r} in planners is not a Planner.")
        for name, (kind, example) in OPTIONAL.items():
            given = getattr(self, name)
            require(
                given is None or isinstance(given, kind),
                f"{self.name}: {name} should be, for example, {example}, or None, got {given!r}.",
            )
        owners: dict[str, Part] = {}
        for _, part in self.parts():
            conflict = part.conflicts(self)
            require(conflict is None, f"{self.name}: {conflict}")
            for name in part.keeps:
                require(
                    name not in owners,
                    f"{self.name}: {type(owners.get(name)).__name__} and {type(part).__name__} both keep "
                    f"{name!r} at the learners; use one.",
                )
                owners[name] = part

    def check(self, layout: Layout) -> None:
        """Refuse a model that a part cannot work with."""
        for field in ("trains", "uploads", "private"):
            for name in getattr(self.plan, field) or ():
                require(
                    layout.knows(name),
                    f"{self.name}: plan.{field} names the layer {name!r}; layers of this model: "
                    f"{', '.join(layout.names)}.",
                )
        for _, part in self.parts():
            part.check(layout)

    def check_network(self, module: nn.Module, layout: Layout, examples: Tensor) -> None:
        """Refuse a network that a part cannot work with; parts try it on a few examples."""
        for _, part in self.parts():
            part.check_network(module, layout, examples)

    def parts(self) -> list[tuple[str, Part]]:
        """Return all parts with the roles under which their memory lives."""
        named: list[tuple[str, Part]] = [
            ("protocol", self.protocol),
            ("selection", self.selection),
            ("weighting", self.weighting),
            ("merge", self.merge),
            ("server", self.server),
        ]
        named += [(f"planner.{i}", planner) for i, planner in enumerate(self.planners)]
        named += [(role, part) for role in OPTIONAL if (part := getattr(self, role)) is not None]
        return named

    def plans(self, layout: Layout) -> tuple[Plan, ...]:
        """Return every plan that the planners can make, each with its highest rate."""
        plans: tuple[Plan, ...] = (replace(self.plan, reports=self.reports),)
        for planner in self.planners:
            plans = tuple(made for plan in plans for made in planner.plans(layout, plan))
        return plans

    def memories(self) -> list[type]:
        """Return the dataclasses that are defined beside the parts; the memories of the parts are among them."""
        parts = [part for _, part in self.parts()]
        kinds = dict.fromkeys(type(one) for part in parts for one in (part, *part.inner()))
        return list(dict.fromkeys(found for kind in kinds for found in _dataclasses_beside(kind)))

    @property
    def local_noise(self) -> LocalNoise | None:
        """The noise that learners add to their gradients, if any."""
        return self.privacy if isinstance(self.privacy, LocalNoise) else None

    @property
    def validates(self) -> bool:
        """Whether learners reserve a validation part; otherwise they train on all their data."""
        asks = self.plan.cycle is not None or any(report in ("losses", "validation") for report in self.plan.reports)
        return asks or self.needs.validation

    @property
    def reports(self) -> tuple[Reports, ...]:
        """What every learner reports with its update."""
        return tuple(dict.fromkeys((*self.plan.reports, *self.needs.reports)))

    @property
    def needs(self) -> Needs:
        """The combined needs of all parts."""
        return Needs.together(part.needs for _, part in self.parts())

    @property
    def keeps(self) -> tuple[str, ...]:
        """Names of the vectors that every learner keeps from task to task, beside its private layers."""
        return tuple(name for _, part in self.parts() for name in part.keeps)

    def optional(self, layout: Layout) -> frozenset[str]:
        """Return the layers that an answer omits if they are unwanted when the task ends."""
        return frozenset(name for planner in self.planners for name in planner.optional(layout))

    def private(self, layout: Layout) -> tuple[str, ...]:
        """Return the layers that never leave the learners."""
        mine = {*self.plan.private, *(name for planner in self.planners for name in planner.private(layout))}
        return tuple(name for name in layout.names if name in mine)


def _dataclasses_beside(kind: type) -> list[type]:
    """Return the dataclasses in the namespace that a class's methods see, or in its module's."""
    methods = (method for method in vars(kind).values() if isinstance(method, FunctionType))
    method = next(methods, None)
    names = vars(sys.modules[kind.__module__]) if method is None else method.__globals__
    return [found for found in names.values() if isinstance(found, type) and is_dataclass(found)]


def _default(name: str) -> object:
    return next(f.default for f in fields(Algorithm) if f.name == name)

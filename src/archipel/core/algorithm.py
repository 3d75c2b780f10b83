"""An algorithm is a frozen record of parts: every method of the five papers is one, and so is every mixture."""

from __future__ import annotations

from dataclasses import dataclass, fields

from archipel.core.checks import require
from archipel.core.layout import Layout
from archipel.core.parts.merge import Mean, Merge, Mix
from archipel.core.parts.part import Part
from archipel.core.parts.planning import DivideAndConquer, Planner, ValidationCycle
from archipel.core.parts.protocol import Protocol, Relay, Rounds, Stream
from archipel.core.parts.recall import Recall
from archipel.core.parts.selection import Selection, Uniform
from archipel.core.parts.server import Replace, Server
from archipel.core.parts.weighting import ByExamples, Weighting
from archipel.core.types import Plan, Reports


@dataclass(frozen=True)
class Algorithm:
    """When to aggregate, who takes part, what an update counts, what the weights act on, and what tasks ask for."""

    name: str
    protocol: Protocol = Rounds()
    selection: Selection = Uniform()
    weighting: Weighting = ByExamples()
    merge: Merge = Mean()
    server: Server = Replace()
    planners: tuple[Planner, ...] = ()
    recall: Recall | None = None
    plan: Plan = Plan()
    """The plan the planners start from: epochs, batch, rate, optimiser."""
    pooled: bool = False
    """A yardstick, in simulation only: train on everybody's data in one place."""

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
            require(isinstance(planner, Planner), f"{self.name}: {planner!r} in planners is no Planner.")
        require(
            self.recall is None or isinstance(self.recall, Recall),
            f"{self.name}: recall should be a Recall such as MedianStaleness(20), or None, got {self.recall!r}.",
        )
        self._refuse_nonsense()

    def _refuse_nonsense(self) -> None:
        merge, protocol = type(self.merge).__name__, type(self.protocol).__name__
        require(
            not (isinstance(self.protocol, Relay) and self.merge.accumulates),
            f"{self.name}: {protocol} with {merge} makes no sense: {merge} keeps each learner's own latest model, and "
            f"a model that came through a {protocol} is nobody's own. Use Mean().",
        )
        require(
            not isinstance(self.merge, Mix) or self.weighting.at_most_one,
            f"{self.name}: Mix takes the weight itself as mixing coefficient, and {self.weighting!r} gives weights "
            "above 1. Use ByFreshness(...) or Equally() with Mix, or Mean() with this weighting.",
        )
        require(
            self.recall is None or isinstance(self.protocol, Stream),
            f"{self.name}: {self.recall!r} recalls tasks that grow stale while others commit; under {protocol} nobody "
            "commits while tasks are out. Use Stream(), or leave recall out.",
        )
        for planner in self.planners:
            require(
                not planner.compares or (self.protocol.updates_per_commit or 2) >= 2,
                f"{self.name}: {type(planner).__name__} compares the updates of a commit to find its split, and "
                f"{self.protocol!r} commits one at a time. Give split=..., or a buffer of two or more.",
            )
        norms = [report for report in self.reports if report.startswith("gradient norm")]
        require(
            len(norms) <= 1,
            f"{self.name}: selection and weighting ask for different gradient norms ({' and '.join(norms)}), and a "
            "learner tells one; use ByImportance(score='batch').",
        )
        names = [type(planner).__name__ for planner in self.planners]
        behind = names[names.index("DivideAndConquer") + 1 :] if "DivideAndConquer" in names else []
        require(
            "PrivateLayers" not in behind,
            f"{self.name}: put PrivateLayers before DivideAndConquer, which trains private layers in every round.",
        )
        twice = sorted({name for name in names if names.count(name) > 1})
        require(
            not twice,
            f"{self.name}: planners hold {', '.join(twice)} more than once; one of them would be lost.",
        )
        divides = any(isinstance(planner, DivideAndConquer) for planner in self.planners)
        require(
            not (divides and any(isinstance(planner, ValidationCycle) for planner in self.planners)),
            f"{self.name}: DivideAndConquer and ValidationCycle both say how many epochs a task has; use one.",
        )
        for planner in self.planners:
            require(
                self.plan.steps is None or not isinstance(planner, DivideAndConquer | ValidationCycle),
                f"{self.name}: {type(planner).__name__} says how many epochs a task has, and the plan's "
                f"steps={self.plan.steps} how many steps; leave steps out.",
            )

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

    def parts(self) -> list[tuple[str, Part]]:
        """All parts with the roles under which their memory lives."""
        named: list[tuple[str, Part]] = [
            ("protocol", self.protocol),
            ("selection", self.selection),
            ("weighting", self.weighting),
            ("merge", self.merge),
            ("server", self.server),
        ]
        named += [(f"planner.{i}", planner) for i, planner in enumerate(self.planners)]
        if self.recall is not None:
            named.append(("recall", self.recall))
        return named

    @property
    def validates(self) -> bool:
        """Learners reserve a validation part; a method that asks for none trains on all its data."""
        asks = self.plan.cycle is not None or any(report in ("losses", "validation") for report in self.plan.reports)
        return asks or self.weighting.validates or any(planner.validates for planner in self.planners)

    @property
    def reports(self) -> tuple[Reports, ...]:
        """What every learner has to tell with its update."""
        asked = (*self.plan.reports, *self.weighting.reports, *self.selection.reports)
        if self.recall is not None:
            asked = (*asked, "progress")
        return tuple(dict.fromkeys(asked))

    def private(self, layout: Layout) -> tuple[str, ...]:
        """Layers that never leave the learners."""
        mine = {*self.plan.private, *(name for planner in self.planners for name in planner.private(layout))}
        return tuple(name for name in layout.names if name in mine)


def _default(name: str) -> object:
    return next(f.default for f in fields(Algorithm) if f.name == name)

"""The context of the controller's steps: the algorithm, its state, the store, and the commands issued so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from archipel.core.algorithm import Algorithm
from archipel.core.layout import Layout
from archipel.core.parts.ending import Ending
from archipel.core.parts.evaluation import Evaluation
from archipel.core.parts.part import Part
from archipel.core.parts.planning import Planner
from archipel.core.parts.privacy_account import PrivacyAccount
from archipel.core.records import Record, Refused
from archipel.core.state import Models, State, View
from archipel.core.types import Command, Keep, Plan, Traffic
from archipel.kernels.interface import Kernels

TRAFFIC_KEYS = {
    kind: [(f"{kind} {way} bytes", f"{kind} {way} models") for way in ("down", "up")]
    for kind in ("train", "evaluate", "score")
}
"""Keys of `State.traffic`, by kind of task."""


@dataclass(eq=False)
class ControllerContext:
    """Everything a step reads and changes while one event is handled."""

    algorithm: Algorithm
    layout: Layout
    models: Models
    kernels: Kernels
    ending: Ending
    evaluation: Evaluation | None
    state: State
    measures_norms: bool = False
    """Record how far each update would move the model, even if the merge does not need it."""
    commands: list[Command] = field(default_factory=list)
    """Commands issued so far for the current event."""

    def __post_init__(self) -> None:
        self.plan: Plan = replace(self.algorithm.plan, reports=self.algorithm.reports)
        """The plan that planners start from."""
        self.use(self.state)

    def use(self, state: State) -> None:
        """Replace the state; parts see the new one from now on."""
        self.state = state
        parts = self.algorithm.parts()
        self._views = {role: View(state, self.layout, self.models, self.kernels, role) for role, _ in parts}
        self.parts: list[tuple[View, Part]] = [(self._views[role], part) for role, part in parts]
        self.planners: list[tuple[View, Planner]] = [
            (self._views[f"planner.{i}"], planner) for i, planner in enumerate(self.algorithm.planners)
        ]

    def view(self, role: str) -> View:
        """Return the view for the part with this role."""
        return self._views[role]

    @property
    def account(self) -> PrivacyAccount | None:
        """The account of what versions reveal; None if the algorithm keeps none."""
        account = self.state.memory.get("privacy")
        return account if isinstance(account, PrivacyAccount) else None

    def issue(self, command: Command) -> None:
        """Issue a command to the engine."""
        self.commands.append(command)

    def record(self, record: Record) -> None:
        """Have the engine write a record."""
        self.commands.append(Keep(record))

    def refuse(self, task: int, learner: str, reason: str) -> None:
        """Record that an answer was not applied."""
        self.record(Refused(task, learner, reason))

    def next_task(self) -> int:
        """Return the number of a new task."""
        self.state.next_task += 1
        return self.state.next_task - 1

    def count_traffic(self, kind: str, traffic: Traffic) -> None:
        """Add the bytes and models of one task to the totals of its kind."""
        totals = self.state.traffic
        for amount, (bytes_, models) in zip((traffic.down, traffic.up), TRAFFIC_KEYS[kind], strict=True):
            if amount:
                totals[bytes_] = totals.get(bytes_, 0) + amount
                totals[models] = totals.get(models, 0) + traffic.sites

    def end(self, reason: str) -> None:
        """End the run; the first reason given is kept."""
        if self.state.ending is None:
            self.state.ending = reason

    def sweep(self) -> None:
        """Drop the vectors that are no longer needed."""
        for name in self.state.vectors.unneeded():
            self.models.drop(name)

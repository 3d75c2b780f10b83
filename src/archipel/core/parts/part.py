"""The base of all parts: frozen settings, a typed memory in the state, and hooks that do nothing by default."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from archipel.core.layout import Layout
from archipel.core.state import Update, View
from archipel.core.types import Plan, Reports


@dataclass(frozen=True)
class Needs:
    """A part's requirements of the learners, the controller's site and the protocol."""

    reports: tuple[Reports, ...] = ()
    """Reports of every learner with its update."""
    validation: bool = False
    """Whether learners reserve a validation part."""
    stimuli: bool = False
    """Whether the controller's site holds stimuli."""
    single_models: bool = False
    """Whether every update must be one learner's own model."""
    at_least: int = 1
    """Fewest updates of a commit."""

    @staticmethod
    def together(many: Iterable[Needs]) -> Needs:
        """Return the requirements that satisfy all of these."""
        every = tuple(many)
        return Needs(
            reports=tuple(dict.fromkeys(report for needs in every for report in needs.reports)),
            validation=any(needs.validation for needs in every),
            stimuli=any(needs.stimuli for needs in every),
            single_models=any(needs.single_models for needs in every),
            at_least=max((needs.at_least for needs in every), default=1),
        )


class Part:
    """One choice of an algorithm.

    Write a frozen dataclass. Keep what must outlive a crash in a dataclass of your own, `view.memory(MyMemory)`. An
    update's vector is dropped after its commit, unless a part holds it: `view.hold(update.model.name)`.
    """

    @property
    def needs(self) -> Needs:
        """The requirements of this part."""
        return Needs()

    keeps_model = ""
    """The name under which learners keep the result of a task for this part; empty: they do not keep it."""

    @property
    def keeps(self) -> tuple[str, ...]:
        """Names of the vectors that every learner keeps for this part from task to task; they never leave it."""
        return (self.keeps_model,) if self.keeps_model else ()

    def inner(self) -> tuple[Part, ...]:
        """Return the parts inside this one."""
        return ()

    def conflicts(self, algorithm: Composition) -> str | None:
        """Return why this part cannot work in this algorithm, with the way out, or None."""
        return None

    def check(self, layout: Layout) -> None:
        """Refuse a model that this part cannot work with, before the run begins."""

    def check_network(self, module: nn.Module, layout: Layout, examples: Tensor) -> None:
        """Refuse a network that this part cannot work with; try a copy of the module on these few examples."""

    def observe(self, view: View, update: Update) -> None:
        """Take note of a learner's model that has arrived (under Relay: after each hop)."""

    def committed(self, view: View, updates: Sequence[Update]) -> None:
        """Take note of the updates that became a new version; their vectors can still be read."""

    def left(self, view: View, learner: str) -> None:
        """Take note of a learner that left."""


class CommitPattern(Protocol):
    """The properties of a protocol that parts may use."""

    @property
    def updates_per_commit(self) -> int | None:
        """How many updates a commit usually holds; None: as many as take part."""

    @property
    def commits_while_training(self) -> bool:
        """Whether versions are committed while tasks are out, so that a task can grow stale."""


class WeightRange(Protocol):
    """The properties of a weighting that parts may use."""

    @property
    def at_most_one(self) -> bool:
        """Whether its weights never exceed 1, so that they can be mixing coefficients."""

    @property
    def by_layer(self) -> bool:
        """Whether an update may have another weight for each layer."""

    def validates(self, version: int) -> bool:
        """Return whether updates that start from this version are evaluated on validation parts."""


class LearnerLoss(Protocol):
    """The properties of an objective that parts may use."""

    needs_counts: bool
    """Whether it uses the learner's class counts."""

    @property
    def compares(self) -> str | tuple[str, ...]:
        """The layer whose inputs it compares; empty: none."""


class OwnModel(Protocol):
    """The properties of a personal model that parts may use."""

    def tuning(self, plan: Plan) -> Plan | None:
        """Return the plan by which a learner fine-tunes it before use; None: it does not."""


class Composition(Protocol):
    """An algorithm as its parts may see it."""

    @property
    def protocol(self) -> CommitPattern: ...

    @property
    def selection(self) -> Part: ...

    @property
    def weighting(self) -> WeightRange: ...

    @property
    def merge(self) -> Part: ...

    @property
    def server(self) -> Part: ...

    @property
    def planners(self) -> tuple[Part, ...]: ...

    @property
    def objective(self) -> LearnerLoss | None: ...

    @property
    def plan(self) -> Plan: ...

    @property
    def descent(self) -> Part | None: ...

    @property
    def personal(self) -> OwnModel | None: ...

    @property
    def reports(self) -> tuple[Reports, ...]:
        """What every learner reports with its update."""

    @property
    def keeps(self) -> tuple[str, ...]:
        """Names of the vectors that every learner keeps from task to task."""

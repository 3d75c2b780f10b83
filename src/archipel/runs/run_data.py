"""The plain data of a finished run: its records and its model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeVar

from torch import Tensor

from archipel.core.checks import one_of
from archipel.core.layout import Layout
from archipel.core.parts.ending import BudgetUnit
from archipel.core.parts.evaluation import Where
from archipel.core.records import Committed, Divergence, Record, Refused, Restored, Returned, Scores, Shadow, Stamped
from archipel.core.types import Role

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Participant:
    """A learner of the run, without its data."""

    name: str
    group: str
    """Its group in the fleet."""
    role: Role
    examples: int
    """Examples that it trained on; if it was held out, those that it evaluated on."""
    labels: tuple[int, ...] = ()
    """How many of them each class has; none for tasks without classes."""


@dataclass(frozen=True, eq=False)
class RunData:
    """The result of a simulation or a federation, as plain data that can be saved."""

    name: str
    """Its name in tables and figures."""
    algorithm: str
    """The expression that makes its algorithm."""
    seed: int
    participants: tuple[Participant, ...]
    layout: Layout
    model: Tensor
    """The last version, as a vector."""
    private: Mapping[str, Mapping[str, Tensor]]
    """The private layers of learners, by learner and layer."""
    records: Sequence[Stamped]
    """Everything that happened, with its time, in order."""
    seconds: float
    """Virtual seconds in a simulation, real ones in a federation."""
    reason: str
    """Why the run ended."""
    execution: str
    """How the learners were executed."""
    metric: str
    """The metric that `score` shows."""
    scored_at: Where
    """Where it was scored."""
    scored_mean: str
    """Whether examples were pooled for it, or the learners' scores averaged."""
    rounds: int
    """Local-training rounds made."""
    budget: BudgetUnit
    """The budget whose last fifth the final score is taken over: its seconds or its local rounds."""
    traffic: dict[str, int]
    """Bytes and models moved by tasks that were answered, by kind."""
    layers: dict[str, dict[str, int]]
    """Bytes sent, by kind and layer, including open tasks."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """The grid's settings for it, by key."""
    tuned: Mapping[str, object] = field(default_factory=dict)
    """The settings that tuning has chosen for it, by key."""
    fold: int | None = None
    """The combination of held-out learners; like the seed it distinguishes repetitions."""
    personal: Mapping[str, Tensor] = field(default_factory=dict)
    """The personal models of learners, by learner."""
    execution_reason: str = ""
    """Why no faster way of execution was chosen; empty if there is none."""

    def of(self, kind: type[R]) -> list[tuple[float, R]]:
        """Return (time, record) of one kind: run.of(Committed)."""
        return [(stamped.time, stamped.record) for stamped in self.records if isinstance(stamped.record, kind)]

    @property
    def commits(self) -> list[tuple[float, Committed]]:
        return self.of(Committed)

    @property
    def versions(self) -> list[tuple[float, Committed | Restored]]:
        """All versions after the first one, made by commits and rollbacks."""
        made: list[tuple[float, Committed | Restored]] = [*self.commits, *self.of(Restored)]
        return sorted(made, key=lambda one: one[1].version)

    @property
    def scores(self) -> list[tuple[float, Scores]]:
        return self.of(Scores)

    @property
    def cycles(self) -> list[tuple[float, Returned]]:
        """Training tasks that came back; their losses are the validation cycles of Metis fig. 3."""
        return self.of(Returned)

    @property
    def divergences(self) -> list[tuple[float, Divergence]]:
        return self.of(Divergence)

    @property
    def shadows(self) -> list[tuple[float, Shadow]]:
        return self.of(Shadow)

    @property
    def refusals(self) -> list[tuple[float, Refused]]:
        return self.of(Refused)

    @property
    def score(self) -> float:
        """The last version's score."""
        scores = self.scores
        return scores[-1][1].metrics.get(self.metric, float("nan")) if scores else float("nan")

    def staleness(self) -> dict[str, list[int]]:
        """Return the effective staleness of each learner's updates in steps (Metis fig. 4)."""
        found: dict[str, list[int]] = {}
        for _, commit in self.commits:
            for learner, steps in zip(commit.learners, commit.stale_steps, strict=True):
                found.setdefault(learner, []).append(steps)
        return found

    def state_dict(self, learner: str | None = None) -> dict[str, Tensor]:
        """Return the model for `module.load_state_dict`; with a learner's name, its own or with its private layers.

        Frozen parameters are not in it: load it with strict=False into a module that has them.
        """
        vector = self.model
        if learner is not None:
            one_of("state_dict", "learner", learner, [participant.name for participant in self.participants])
            vector = self.personal.get(learner, self.layout.with_layers(vector, self.private.get(learner, {})))
        tensors = self.layout.tensors(vector)
        tensors |= {name: tensors[owner] for name, owner in self.layout.tied.items()}
        return {name: tensor.clone() for name, tensor in tensors.items()}

    def rows(self, kind: type[Record] | None = None) -> list[dict[str, object]]:
        """Return the records, or those of one kind, as rows of a flat table: run.rows(Scores)."""
        rows = []
        for stamped in self.records:
            record = stamped.record
            if kind is not None and not isinstance(record, kind):
                continue
            row: dict[str, object] = {"time": stamped.time, "record": type(record).__name__}
            for name in (one.name for one in fields(record)):
                value = getattr(record, name)
                if isinstance(value, dict):
                    row |= {f"{name}.{key}": item for key, item in value.items()}
                else:
                    row[name] = value
            if isinstance(record, Committed):  # layers by name, as everywhere else
                row["layers"] = tuple(self.layout.names[place] for place in record.layers)
            rows.append(row)
        return rows

    def fingerprint(self) -> str:
        """Return a hash of the model's bits; equal fingerprints mean equal models."""
        return hashlib.sha256(self.model.contiguous().numpy().tobytes()).hexdigest()[:16]

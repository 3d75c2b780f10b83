"""A finished run: its records, its model, and a summary a person can read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from archipel.algorithm import Algorithm
from archipel.layout import Layout
from archipel.metrics import higher_is_better
from archipel.records import Committed, Divergence, Handed, Refused, Returned, Scores, Shadow, Stamped

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Run:
    """What a simulation or a federation leaves behind."""

    algorithm: Algorithm
    layout: Layout
    model: Tensor
    """The last version, as a vector."""
    records: Sequence[Stamped]
    """Everything that happened, with its time, in order."""
    seconds: float
    """Virtual seconds in a simulation, real ones in a federation."""
    reason: str
    """Why it ended."""
    execution: str
    """How the learners were executed."""
    metric: str
    """The metric that `score` shows."""
    rounds: int
    """Local-training rounds made."""
    traffic: dict[str, int]
    """Bytes and models moved by tasks that were answered, by kind."""
    layers: dict[str, dict[str, int]]
    """Bytes put on the wire, by kind and layer, tasks still out among them."""

    def of(self, kind: type[R]) -> list[tuple[float, R]]:
        """(time, record) of one kind: run.of(Committed)."""
        return [(stamped.time, stamped.record) for stamped in self.records if isinstance(stamped.record, kind)]

    @property
    def commits(self) -> list[tuple[float, Committed]]:
        return self.of(Committed)

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
        """The last score."""
        scores = self.scores
        return scores[-1][1].metrics.get(self.metric, float("nan")) if scores else float("nan")

    def staleness(self) -> dict[str, list[int]]:
        """Effective staleness of each learner's updates in steps (Metis fig. 4)."""
        found: dict[str, list[int]] = {}
        for _, commit in self.commits:
            for learner, steps in zip(commit.learners, commit.stale_steps, strict=True):
                found.setdefault(learner, []).append(steps)
        return found

    def state_dict(self) -> dict[str, Tensor]:
        """The model for `module.load_state_dict`."""
        tensors = self.layout.tensors(self.model)
        tensors |= {name: tensors[owner] for name, owner in self.layout.tied.items()}
        return {name: tensor.clone() for name, tensor in tensors.items()}

    def fingerprint(self) -> str:
        """A hash of the model's bits: two runs with the same one ended with the same model."""
        return hashlib.sha256(self.model.contiguous().numpy().tobytes()).hexdigest()[:16]

    def summary(self) -> str:
        """A few lines on what happened."""
        moved = self.traffic
        mega = {kind: moved.get(f"{kind} bytes", 0) / 2**20 for kind in ("train down", "train up", "evaluate down")}
        models = sum(moved.get(f"{kind} models", 0) for kind in ("train down", "train up", "evaluate down"))
        commits = self.commits
        scores = self.scores
        pick = max if higher_is_better(self.metric) else min
        best = pick((s.metrics[self.metric] for _, s in scores if self.metric in s.metrics), default=float("nan"))
        handed = self.of(Handed)
        lines = [
            f"{self.algorithm.name}: {self.metric} {self.score:.4f} (best {best:.4f}) after {self.seconds:,.1f} s",
            f"  {len(commits)} commits, {self.rounds} local rounds, "
            f"{len(handed)} tasks handed out, {len(self.refusals)} not applied",
            f"  {models} models moved: {mega['train down']:.2f} MB to learners, {mega['train up']:.2f} MB back, "
            f"{mega['evaluate down']:.2f} MB for weighing",
            f"  ended because {self.reason}; executed {self.execution}; model {self.fingerprint()}",
        ]
        return "\n".join(lines)

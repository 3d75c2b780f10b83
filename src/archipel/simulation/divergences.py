"""Divergences, seen from outside: a centralised run beside the federated one, on the same data.

DC(t) = ||w_FL - w_C|| / ||w_C||, and DL, formula 3: the mean over pairs of 1 - cos(w_i, w_j) between the local models
of a round (section V.B). In a round the centralised model trains on the data of that round's learners put together,
with the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from archipel.core.layout import Layout
from archipel.core.parts.divergence import mean_divergence
from archipel.core.parts.planning import DivideAndConquer
from archipel.core.randomness import derive
from archipel.core.records import Committed, Divergence, Record, Shadow
from archipel.core.types import Command, Event, Keep, Plan, Train, Trained
from archipel.learner.learner import Job, Learner
from archipel.learner.training import advance
from archipel.simulation.simulator import Simulator


class ShadowRun:
    """An observer of a simulator. A round is over when nothing is out any more, or at a commit."""

    def __init__(self, simulator: Simulator) -> None:
        self.central = simulator.controller.models.read("v0").clone()
        self.rounds = 0
        self.local: list[tuple[str, Tensor]] = []
        """Learners and their models of the current round."""
        self.plan: Plan | None = None

    def before(self, simulator: Simulator, event: Event) -> None:
        """Note the models of an event before the controller handles it."""
        out = simulator.controller.state.out
        if isinstance(event, Trained) and event.task in out:
            self.local.append((out[event.task].learner, simulator.controller.models.read(event.model).clone()))
            self.plan = out[event.task].plan

    def after(self, simulator: Simulator, commands: Sequence[Command]) -> Iterable[Record]:
        """Record the divergences of the commits that the controller has made."""
        committed = any(isinstance(c, Keep) and isinstance(c.record, Committed) for c in commands)
        sent = any(isinstance(c, Train) for c in commands)
        state = simulator.controller.state
        over = not state.out and not state.queue  # updates in the queue are about to be committed
        if not self.local or not (committed or sent or over):
            return
        self.rounds += 1
        self._train(simulator)
        local = [vector for _, vector in self.local]
        self.local = []
        central = None
        if committed:
            model = simulator.controller.models.read(state.model.name)
            central = float((model - self.central).norm() / self.central.norm())
            if not any(isinstance(p, DivideAndConquer) for p in simulator.controller.algorithm.planners):
                yield from self._layers(simulator.context.layout, state.version, local)  # D&C tells its own
        yield Shadow(self.rounds, central, divergence_between(local))

    @staticmethod
    def _layers(layout: Layout, version: int, local: Sequence[Tensor]) -> Iterable[Record]:
        """Layer-wise weight divergence (D&C EQ3), which any method's local models have."""
        if len(local) >= 2:
            values = [
                mean_divergence([vector[layer.start : layer.stop].double() for vector in local], "cosine")
                for layer in layout.layers
            ]
            yield Divergence(version, layout.names, tuple(values), "cosine", None)

    def _train(self, simulator: Simulator) -> None:
        """Train the centralised model for a round, on the same learners' data."""
        assert self.plan is not None
        examples = torch.cat([simulator.sites[name].learner.train for name, _ in self.local]).unique()
        nothing = torch.empty(0, dtype=torch.int64)
        plan = replace(self.plan, cycle=None, trains=None, proximal=0.0, shift=None, reports=())
        learner, key = Learner("shadow", examples, nothing, nothing), derive(simulator.seed, "shadow", self.rounds)
        job = Job.begin(learner, simulator.context.layout, self.central, plan, key)
        advance(replace(simulator.context, local_noise=None), job)
        self.central = job.vector.cpu()

    def save(self) -> dict[str, Any]:
        return {"central": self.central, "rounds": self.rounds, "local": self.local, "plan": self.plan}

    def load(self, saved: dict[str, Any]) -> None:
        self.central, self.rounds, self.local, self.plan = (
            saved["central"],
            saved["rounds"],
            saved["local"],
            saved["plan"],
        )


def divergence_between(vectors: Sequence[Tensor]) -> float | None:
    """DL: the mean over pairs of one minus the cosine; None for fewer than two."""
    pairs = [
        1 - float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=0))
        for a, b in combinations(vectors, 2)
    ]
    return sum(pairs) / len(pairs) if pairs else None

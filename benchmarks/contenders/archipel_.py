"""Archipel through its front door, `simulate`, with the execution it chooses itself unless another is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import archipel as ap
from archipel.core.state import Update, View
from benchmarks.contenders.networks import mean_loss, network
from benchmarks.contenders.protocol import Lap
from benchmarks.workloads import Workload, data, mine, selections

ALGORITHMS: dict[str, Callable[[Workload], ap.Algorithm]] = {
    "fedavg": lambda workload: ap.fedavg(workload.per_round / workload.learners, **_local(workload)),
    "async_fedavg": lambda workload: ap.async_fedavg(**_local(workload)),
    # every update one pass, as in W2: with cycles an update would be several
    "async_dvw": lambda workload: ap.async_dvw(adaptive=False, **_local(workload)),
    "async_dvw adaptive": lambda workload: ap.async_dvw(**_local(workload)),
}


@dataclass(frozen=True)
class Noted(ap.Selection):
    """Picks whom the workload says in rounds, everybody who is idle in a stream, and notes when commits were made."""

    chosen: Sequence[Sequence[int]]
    """For every round; none in a stream."""
    ends: list[float] = field(default_factory=list)

    def select(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        return [candidates[i] for i in self.chosen[view.version]] if self.chosen else list(candidates[:count])

    def committed(self, view: View, updates: Sequence[Update]) -> None:
        self.ends.append(time.monotonic())


def main() -> None:
    lap = Lap(algorithm="", execution="", cluster="")
    workload = lap.workload
    name = lap.options["algorithm"] or ("async_fedavg" if workload.speeds else "fedavg")
    noted = Noted(() if workload.speeds else selections(workload))
    algorithm = replace(ALGORITHMS[name](workload), selection=noted)
    islands = _islands(workload)
    module = network(workload)
    where: dict[str, Any] = {name: lap.options[name] for name in ("execution", "cluster") if lap.options[name]}
    simulate = ap.simulate  # loaded when it is asked for
    lap.ready()

    run = simulate(
        algorithm,
        islands,
        model=module,
        fleet=_fleet(workload),
        ending=ap.Ending(commits=workload.rounds),
        **where,
    )
    lap.rounds(noted.ends)

    committed = {task for _, commit in run.commits for task in commit.tasks}
    module.load_state_dict(run.state_dict())
    lap.tell(
        "archipel",
        ap.__version__,
        setting=f"{name}, {run.execution}",
        updates=len(committed),
        steps=sum(cycle.steps for _, cycle in run.cycles if cycle.task in committed),
        loss=lambda: mean_loss(module, islands.x, islands.y),
    )


def _local(workload: Workload) -> dict[str, Any]:
    return {
        "epochs": workload.epochs,
        "batch": workload.batch,
        "rate": workload.rate,
        "momentum": workload.momentum,
    }


def _islands(workload: Workload) -> ap.data.Islands:
    """Every learner its examples, and no test part, so that nothing is scored: no other contender scores either."""
    x, y = map(torch.from_numpy, data(workload))
    nothing = torch.empty(0, dtype=torch.int64)
    places = torch.arange(len(x))
    learners = tuple(
        ap.data.Island(f"{learner:04}", places[mine(workload, learner)], nothing)
        for learner in range(workload.learners)
    )
    return ap.data.Islands(x, y, learners, nothing, nothing, workload.classes, workload.name)


def _fleet(workload: Workload) -> ap.Fleet:
    if not workload.speeds:
        return ap.Fleet(fast=workload.learners)
    each = workload.learners // len(workload.speeds)
    return ap.Fleet(
        *(ap.Group(f"speed {i}", each, train_seconds=s, evaluate_seconds=s / 5) for i, s in enumerate(workload.speeds))
    )


if __name__ == "__main__":
    main()

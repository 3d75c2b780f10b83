"""fluke: its FedAVG through the Python interface, one process for all learners."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from itertools import count
from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.server import Server
from fluke.utils import ClientObserver, FederationObserver
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.contenders.networks import mean_loss, network
from benchmarks.contenders.protocol import Lap
from benchmarks.workloads import SEED, Workload, data, mine, selections


class Chooser(Server):
    """fluke's server, picking whom the workload says."""

    def __init__(self, *arguments: object, chosen: list[list[int]], **options: object) -> None:
        super().__init__(*arguments, **options)
        self.chosen = iter(chosen)

    def get_eligible_clients(self, eligible_perc: float) -> Sequence[Client]:
        return [self.clients[learner] for learner in next(self.chosen)]


class Averaging(FedAVG):
    def get_server_class(self) -> type[Server]:
        return Chooser


class Laps(FederationObserver, ClientObserver):
    updates = 0

    def __init__(self, lap: Lap) -> None:
        self.lap = lap

    def end_fit(self, **_: object) -> None:
        self.updates += 1

    def end_round(self, round: int) -> None:
        self.lap.round()


def islands(workload: Workload, x: Tensor, y: Tensor) -> DataSplitter:
    """Every learner its examples, and nobody a test set."""
    loaders = [
        FastDataLoader(x[own], y[own], num_labels=workload.classes, batch_size=workload.batch, shuffle=True)
        for own in (mine(workload, learner) for learner in range(workload.learners))
    ]
    return DataSplitter(DummyDataContainer(loaders, [None] * len(loaders), None, workload.classes))


def main() -> None:
    lap = Lap(threads="")
    workload = lap.workload
    if workload.speeds:
        lap.cannot("fluke", "its federation knows rounds only")
    # of 1 and 2: a step of the perceptron is too small to share
    torch.set_num_threads(int(lap.options["threads"] or (2 if workload.convolutions else 1)))
    steps = count()

    def step_made(*_: Any) -> None:
        next(steps)

    register_optimizer_step_post_hook(step_made)
    environment = FlukeENV()
    environment.set_seed(SEED)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    x, y = map(torch.from_numpy, data(workload))
    federation = Averaging(
        workload.learners,
        islands(workload, x, y),
        DDict(
            model=network(workload),
            client=DDict(
                batch_size=workload.batch,
                local_epochs=workload.epochs,
                loss="CrossEntropyLoss",
                optimizer=DDict(name="SGD", lr=workload.rate, momentum=workload.momentum),
                scheduler=DDict(name="StepLR", step_size=1, gamma=1),
                persistency=False,  # a new optimiser for every task
            ),
            server=DDict(weighted=True, chosen=selections(workload)),
        ),
    )
    laps = Laps(lap)
    federation.set_callbacks(laps)
    lap.ready()

    federation.run(workload.rounds, workload.per_round / workload.learners)

    lap.tell(
        "fluke",
        version("fluke-fl"),
        setting=f"1 process, {torch.get_num_threads()} threads",
        updates=laps.updates,
        steps=next(steps),
        loss=lambda: mean_loss(federation.server.model, x, y),
    )


if __name__ == "__main__":
    main()

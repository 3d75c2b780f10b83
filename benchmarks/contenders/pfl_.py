"""pfl: FederatedAveraging on its simulated backend, with PyTorch, in one process or in two that share every cohort.

Its guide to fast simulations says how: each process is told the addresses of all and its own rank.
"""

# ruff: noqa: E402 (pfl joins the other processes while it is imported, so they must be under way before)
from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.metadata import version
from itertools import chain, count, cycle
from socket import create_server
from typing import Any

PROCESSES = 2
RANK = "PFL_WORKER_RANK"


def accompany() -> None:
    """Start the other processes."""
    asked = argparse.ArgumentParser(add_help=False)
    asked.add_argument("--processes", type=int, default=PROCESSES)
    processes = asked.parse_known_args()[0].processes
    if processes == 1 or RANK in os.environ:
        return
    with create_server(("localhost", 0)) as free:
        address = f"localhost:{free.getsockname()[1]}"
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join([address] * processes)  # it looks at the first alone
    for rank in range(1, processes):
        subprocess.Popen([sys.executable, "-m", __spec__.name, *sys.argv[1:]], env={**os.environ, RANK: str(rank)})
    os.environ[RANK] = "0"


if __name__ == "__main__":
    accompany()

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.contenders.networks import mean_loss, network
from benchmarks.contenders.protocol import Lap
from benchmarks.workloads import SEED, Workload, data, mine, selections


class Network(nn.Module):
    """The workload's, with the methods pfl asks for."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.layers = network(workload)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Nothing that takes time: pfl evaluates in the first round whatever it is told."""
        return {"examples": Weighted.from_unweighted(len(x))}


class Laps(TrainingProcessCallback):
    def __init__(self, lap: Lap) -> None:
        self.lap = lap

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        self.lap.round()
        return False, Metrics()


def main() -> None:
    lap = Lap(processes=str(PROCESSES), threads="")
    processes = int(lap.options["processes"])
    workload = lap.workload
    if workload.speeds:
        lap.cannot("pfl", "its simulation knows rounds only")
    # a step of the perceptron is too small to share
    torch.set_num_threads(int(lap.options["threads"] or (2 if processes == 1 and workload.convolutions else 1)))
    torch.manual_seed(SEED)
    np.random.seed(SEED)
    steps, updates = count(), count()
    x, y = map(torch.from_numpy, data(workload))
    module = Network(workload)

    def step_made(*_: Any) -> None:
        next(steps)

    def optimiser(parameters: list[Tensor], lr: float) -> torch.optim.Optimizer:
        made = torch.optim.SGD(parameters, lr=lr, momentum=workload.momentum)
        made.register_step_post_hook(step_made)
        return made

    def shuffled(learner: int) -> PyTorchTensorDataset:
        """pfl takes batches in the order it finds, so the order is drawn here, once a task."""
        next(updates)
        own = mine(workload, learner)
        order = torch.randperm(workload.examples)
        return PyTorchTensorDataset((x[own][order], y[own][order]))

    # over and over, because one process of two draws more learners than it trains where a cohort is odd
    chosen = cycle(chain.from_iterable(selections(workload)))
    learners = FederatedDataset(shuffled, lambda: next(chosen))
    model = PyTorchModel(module, optimiser, torch.optim.SGD(module.parameters(), lr=1.0))
    lap.ready()

    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=workload.rounds,
            evaluation_frequency=workload.rounds,
            train_cohort_size=workload.per_round,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=learners, val_data=learners),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=workload.epochs,
            local_learning_rate=workload.rate,
            local_batch_size=workload.batch,
        ),
        callbacks=[Laps(lap)],
        send_metrics_to_platform=False,
    )

    done = torch.tensor([next(updates), next(steps)])
    if processes > 1:
        torch.distributed.reduce(done, dst=0)
        torch.distributed.destroy_process_group()
    if int(os.environ.get(RANK, 0)) > 0:
        return
    lap.tell(
        "pfl",
        version("pfl"),
        setting=f"processes: {processes}, threads of each: {torch.get_num_threads()}",
        updates=int(done[0]),
        steps=int(done[1]),
        loss=lambda: mean_loss(module, x, y),
    )


if __name__ == "__main__":
    main()

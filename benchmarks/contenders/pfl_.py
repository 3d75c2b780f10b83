"""pfl: FederatedAveraging on its simulated backend, with PyTorch, in one process or in two that share every cohort.

Its guide to fast simulations says how: each process is told the addresses of all and its own rank.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.metadata import version
from itertools import chain, count
from socket import create_server

RANK = "PFL_WORKER_RANK"
asked = argparse.ArgumentParser()
asked.add_argument("--processes", type=int, default=2)
PROCESSES = asked.parse_known_args()[0].processes

if PROCESSES > 1 and RANK not in os.environ:
    # pfl joins the others while it is imported, so they must be under way before
    with create_server(("localhost", 0)) as free:
        os.environ["PFL_WORKER_ADDRESSES"] = ",".join([f"localhost:{free.getsockname()[1]}"] * PROCESSES)
    for rank in range(1, PROCESSES):
        subprocess.Popen([sys.executable, "-m", __spec__.name, *sys.argv[1:]], env={**os.environ, RANK: str(rank)})
    os.environ[RANK] = "0"

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
    workload = lap.workload
    if workload.speeds:
        lap.cannot("pfl", "its simulation knows rounds only")
    # a step of the perceptron is too small to share
    torch.set_num_threads(int(lap.options["threads"] or (2 if PROCESSES == 1 and workload.convolutions else 1)))
    torch.manual_seed(SEED)
    np.random.seed(SEED)
    steps, updates = count(), count()
    x, y = map(torch.from_numpy, data(workload))
    module = Network(workload)

    def optimiser(parameters: list[Tensor], lr: float) -> torch.optim.Optimizer:
        made = torch.optim.SGD(parameters, lr=lr, momentum=workload.momentum)
        made.register_step_post_hook(lambda *_: next(steps))
        return made

    def shuffled(learner: int) -> PyTorchTensorDataset:
        """pfl takes batches in the order it finds, so the order is drawn here, once a task."""
        next(updates)
        own = mine(workload, learner)
        order = torch.randperm(workload.examples)
        return PyTorchTensorDataset((x[own][order], y[own][order]))

    chosen = chain.from_iterable(selections(workload))
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
    if PROCESSES > 1:
        torch.distributed.reduce(done, dst=0)
        torch.distributed.destroy_process_group()
    if int(os.environ.get(RANK, 0)) > 0:
        return
    lap.tell(
        "pfl",
        version("pfl"),
        setting=f"{PROCESSES} processes, {torch.get_num_threads()} threads each",
        updates=int(done[0]),
        steps=int(done[1]),
        loss=lambda: mean_loss(module, x, y),
    )


if __name__ == "__main__":
    main()

"""FedLab: its standalone pipeline with the serial trainer of FedAvg, one process for all learners."""

from __future__ import annotations

from importlib.metadata import version
from itertools import count
from typing import Any

import torch
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from benchmarks.contenders.networks import mean_loss, network
from benchmarks.contenders.protocol import Lap
from benchmarks.workloads import SEED, Workload, data, mine, selections


class Islands(FedDataset):
    """Every learner's examples; the loader, which is its user's, takes a whole batch at once."""

    def __init__(self, workload: Workload, x: Tensor, y: Tensor) -> None:
        own = [mine(workload, learner) for learner in range(workload.learners)]
        self.parts = [TensorDataset(x[examples], y[examples]) for examples in own]

    def get_dataloader(self, id: int, batch_size: int) -> DataLoader[Any]:
        part = self.parts[id]
        return DataLoader(part, batch_size=None, sampler=BatchSampler(RandomSampler(part), batch_size, drop_last=False))


class Trainer(FedAvgSerialClientTrainer):
    """FedLab's, which knows no momentum and keeps one optimiser for all tasks: a new one for each, with momentum."""

    updates = 0

    def setup_optim(self, epochs: int, batch_size: int, lr: float, momentum: float) -> None:
        super().setup_optim(epochs, batch_size, lr)
        self.momentum = momentum

    def train(self, model_parameters: Tensor, train_loader: DataLoader[Any]) -> list[Tensor]:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.lr, momentum=self.momentum)
        self.updates += 1
        return super().train(model_parameters, train_loader)


class Handler(FedAvgServerHandler):
    """Picks whom the workload says."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(network(workload), workload.rounds, workload.per_round / workload.learners)
        self.chosen = selections(workload)

    def sample_clients(self) -> list[int]:
        return self.chosen[self.round]


class Pipeline(StandalonePipeline):
    """A lap where a round's evaluation would be."""

    def __init__(self, handler: Handler, trainer: Trainer, lap: Lap) -> None:
        super().__init__(handler, trainer)
        self.lap = lap

    def evaluate(self) -> None:
        self.lap.round()


def main() -> None:
    lap = Lap(threads="")
    workload = lap.workload
    if workload.speeds:
        lap.cannot("fedlab", "its standalone pipeline knows rounds only")
    # of 1 and 2: a step of the perceptron is too small to share
    torch.set_num_threads(int(lap.options["threads"] or (2 if workload.convolutions else 1)))
    torch.manual_seed(SEED)
    steps = count()

    def step_made(*_: Any) -> None:
        next(steps)

    register_optimizer_step_post_hook(step_made)
    x, y = map(torch.from_numpy, data(workload))
    handler = Handler(workload)
    trainer = Trainer(handler.model, workload.learners)
    trainer.setup_dataset(Islands(workload, x, y))
    trainer.setup_optim(workload.epochs, workload.batch, workload.rate, workload.momentum)
    pipeline = Pipeline(handler, trainer, lap)
    lap.ready()

    pipeline.main()

    lap.tell(
        "fedlab",
        version("fedlab"),
        setting=f"1 process, {torch.get_num_threads()} threads; serial trainer, batches indexed whole",
        updates=trainer.updates,
        steps=next(steps),
        loss=lambda: mean_loss(handler.model, x, y),
    )


if __name__ == "__main__":
    main()

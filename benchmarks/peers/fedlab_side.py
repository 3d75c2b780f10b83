"""FedLab's side: `fedlab_side.py PROBLEM.npz` reads runs as lines of JSON and answers each with its curve."""

from __future__ import annotations

from typing import Any

import torch
from fedlab.contrib.algorithm import (
    FedAvgSerialClientTrainer,
    FedAvgServerHandler,
    FedDynSerialClientTrainer,
    FedDynServerHandler,
    FedProxSerialClientTrainer,
    ScaffoldSerialClientTrainer,
    ScaffoldServerHandler,
    qFedAvgClientTrainer,
    qFedAvgServerHandler,
)
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils import Aggregators, SerializationTool
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.problem import BATCH, HIDDEN, LEARNERS, RATE, ROUNDS, Problem, answer


class Islands(FedDataset):
    """Every learner's examples."""

    def __init__(self, problem: Problem) -> None:
        x, y = torch.from_numpy(problem.x), torch.from_numpy(problem.y)
        self.parts = [TensorDataset(x[own], y[own]) for own in problem.train]

    def get_dataloader(self, id: int, batch_size: int) -> DataLoader[Any]:
        return DataLoader(self.parts[id], batch_size=batch_size, shuffle=True)


class WeightedHandler(FedAvgServerHandler):
    """FedLab's mean with its own weights, which it takes where its user gives some: those of the examples."""

    def global_update(self, buffer: list[Any]) -> None:
        mean = Aggregators.fedavg_aggregate([sent[0] for sent in buffer], self.sizes)
        SerializationTool.deserialize_model(self._model, mean)


class QFedAvgSerialTrainer(qFedAvgClientTrainer):
    """FedLab's trainer of one client, one client after the other."""

    def local_process(self, payload: list[Any], id_list: list[int]) -> None:
        self.sent = []
        for id in id_list:
            super().local_process(payload, id)
            self.sent.append(qFedAvgClientTrainer.uplink_package.fget(self))

    @property
    def uplink_package(self) -> list[Any]:
        return self.sent


class MeanLossTrainer(QFedAvgSerialTrainer):
    """The same with the mean loss of the received model, where FedLab adds up the losses of the batches."""

    def train(self, model_parameters: torch.Tensor, train_loader: DataLoader[Any]) -> None:
        self.set_model(model_parameters)
        x, y = train_loader.dataset.tensors  # type: ignore[attr-defined]
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(self.model.eval()(x), y))
        super().train(model_parameters, train_loader)
        change = (model_parameters - self.model_parameters) / self.lr
        self.delta = change * loss**self.q
        self.hk = self.q * loss ** (self.q - 1) * change.norm() ** 2 + loss**self.q / self.lr


class Pipeline(StandalonePipeline):
    """Accuracy on all own test parts together, round by round."""

    def __init__(self, handler: Any, trainer: Any, problem: Problem) -> None:
        super().__init__(handler, trainer)
        self.problem, self.accuracies = problem, list[float]()

    def evaluate(self) -> None:
        right = 0
        model = self.handler.model.eval()
        for own in self.problem.test:
            with torch.no_grad():
                said = model(torch.from_numpy(self.problem.x[own])).argmax(1)
            right += int((said.numpy() == self.problem.y[own]).sum())
        self.accuracies.append(right / sum(map(len, self.problem.test)))


def network(problem: Problem) -> nn.Module:
    """Return the initial model."""
    made = nn.Sequential(nn.Linear(problem.x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, int(problem.y.max()) + 1))
    with torch.no_grad():
        for parameter, array in zip(made.parameters(), problem.initial.values(), strict=True):
            parameter.copy_(torch.from_numpy(array))
    return made


def sides(method: str, given: dict[str, Any], problem: Problem, corrected: bool) -> tuple[Any, Any]:
    """Return FedLab's server and trainer of a method."""
    makers = {
        "fedavg": (WeightedHandler, FedAvgSerialClientTrainer, (), ()),
        "fedprox": (WeightedHandler, FedProxSerialClientTrainer, (), (given.get("mu"),)),
        "qfedavg": (
            qFedAvgServerHandler,
            MeanLossTrainer if corrected else QFedAvgSerialTrainer,
            (),
            (given.get("q"),),
        ),
        "scaffold": (ScaffoldServerHandler, ScaffoldSerialClientTrainer, (1.0,), ()),
        "feddyn": (FedDynServerHandler, FedDynSerialClientTrainer, (given.get("alpha"),), (given.get("alpha"),)),
    }
    make_handler, make_trainer, of_server, of_trainer = makers[method]
    handler = make_handler(network(problem), ROUNDS, 1.0)
    handler.num_clients = LEARNERS
    if make_handler is WeightedHandler:
        handler.sizes = [len(own) for own in problem.train]
    trainer = make_trainer(network(problem)) if method == "qfedavg" else make_trainer(network(problem), LEARNERS)
    trainer.num_clients = LEARNERS
    trainer.setup_dataset(Islands(problem))
    trainer.setup_optim(1, BATCH, RATE, *of_trainer)
    trainer.lr = RATE  # its trainer of q-FedAvg reads it and sets none
    if of_server:
        handler.setup_optim(*of_server)
    return handler, trainer


def run(problem: Problem, method: str, given: dict[str, Any], equally: bool, seed: int, corrected: bool) -> list[float]:
    """Run a method with a seed; FedLab decides by the method whether learners count the same."""
    torch.manual_seed(seed)
    pipeline = Pipeline(*sides(method, given, problem, corrected), problem)
    pipeline.main()
    return pipeline.accuracies


if __name__ == "__main__":
    torch.set_num_threads(1)
    answer(run)

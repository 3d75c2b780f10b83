"""FLGo's side: `flgo_side.py PROBLEM.npz` reads runs as lines of JSON and answers each with its curve."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import flgo
import numpy as np
import torch
from flgo.benchmark.base import BasicTaskPipe
from flgo.benchmark.toolkits.cv.classification import GeneralCalculator
from flgo.experiment.logger import BasicLogger
from flgo.simulator.base import BasicSimulator
from flgo.utils.fmodule import FModule
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.peers.problem import (
    BATCH,
    HIDDEN,
    LASTS,
    LEARNERS,
    RATE,
    ROUNDS,
    STREAMS,
    TICKS,
    Problem,
    answer,
    at_ticks,
    tiers,
)

MODULES = {"fedasync": "fedasync", "fedbuff": "fedbuff", "power_of_choice": "powerofchoice", "tifl": "TiFL"}


class Islands(BasicTaskPipe):
    """Every learner's examples; TiFL scores them too, and uses the scores only from its round `I` on."""

    problem: Problem

    def load_data(self, running_time_option: dict[str, Any]) -> dict[str, Any]:
        x, y = torch.from_numpy(self.problem.x), torch.from_numpy(self.problem.y)
        parts = [TensorDataset(x[own], y[own]) for own in self.problem.train]
        names = self.feddata["client_names"]
        return {"server": {}} | {name: {"train": own, "val": own} for name, own in zip(names, parts, strict=True)}


class Network(FModule):
    """The initial model; FLGo makes more of its class without arguments."""

    problem: Problem

    def __init__(self) -> None:
        super().__init__()
        known = self.problem
        self.layers = nn.Sequential(
            nn.Linear(known.x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, int(known.y.max()) + 1)
        )
        with torch.no_grad():
            for parameter, array in zip(self.parameters(), known.initial.values(), strict=True):
                parameter.copy_(torch.from_numpy(array))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    @staticmethod
    def init_global_module(party: Any) -> None:
        if "Server" in party.get_classname():
            party.model = Network()


class Paces(BasicSimulator):
    """Answers arrive after as many ticks as a learner takes."""

    lasts: list[int]

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        self.set_variable(self.all_clients, "latency", self.lasts)


class Curve(BasicLogger):
    """Accuracy on all own test parts together, whenever the model has changed."""

    problem: Problem

    def initialize(self) -> None:
        self.points: list[tuple[float, float]] = []

    def log_once(self, *args: Any, **kwargs: Any) -> None:
        right, model = 0, self.coordinator.model.eval()
        for own in self.problem.test:
            with torch.no_grad():
                said = model(torch.from_numpy(self.problem.x[own])).argmax(1)
            right += int((said.numpy() == self.problem.y[own]).sum())
        self.points.append((self.clock.current_time, right / sum(map(len, self.problem.test))))

    def save_output_as_json(self, *args: Any, **kwargs: Any) -> None:
        """Store nothing."""


def parameters(method: str, given: dict[str, Any]) -> list[Any]:
    """Return the method's settings in FLGo's order."""
    settings: dict[str, list[Any]] = {
        "fedasync": [given.get("alpha"), given.get("rho"), "poly", 10, 6, given.get("a")],
        "fedbuff": [given.get("buffer", 0) / LEARNERS, given.get("eta")],
        "power_of_choice": [given.get("candidates")],
        "tifl": [2, 10 * ROUNDS, 0],
    }
    return settings[method]


def task(folder: Path) -> str:
    """Write what FLGo reads of a task, beside the examples, which the pipe has."""
    at = folder / "task"
    (at / "record").mkdir(parents=True)
    (at / "info").write_text(json.dumps({"benchmark": "islands", "scene": "horizontal", "num_clients": LEARNERS}))
    (at / "data.json").write_text(json.dumps({"client_names": [f"Client{i}" for i in range(LEARNERS)]}))
    return str(at)


def run(problem: Problem, method: str, given: dict[str, Any], equally: bool, seed: int, corrected: bool) -> list[float]:
    """Run a method with a seed, as FLGo has it."""
    Islands.problem = Network.problem = Curve.problem = problem
    stream = method in STREAMS
    sizes = [len(own) for own in problem.train]
    # its server sends a model at the tick after an answer
    Paces.lasts = [ticks - 1 for ticks in LASTS] if stream else [1 + 9 * tier for tier in tiers(sizes)]
    core = ModuleType("islands.core")
    core.TaskPipe, core.TaskCalculator = Islands, GeneralCalculator  # type: ignore[attr-defined]
    sys.modules |= {"islands": ModuleType("islands"), "islands.core": core}
    found = importlib.import_module(f"flgo.algorithm.{MODULES[method]}")
    algorithm = ModuleType(method)  # classes of its own, because FLGo changes those that it is given
    algorithm.Server = type("Server", (found.Server,), {})  # type: ignore[attr-defined]
    algorithm.Client = type("Client", (found.Client,), {})  # type: ignore[attr-defined]
    arguments, sys.argv = sys.argv, sys.argv[:1]  # FLGo reads them
    with tempfile.TemporaryDirectory() as folder:
        runner = flgo.init(
            task(Path(folder)),
            algorithm,
            {
                "num_rounds": 100_000 if stream else ROUNDS,
                "num_epochs": 1,
                "learning_rate": RATE,
                "batch_size": BATCH,
                "proportion": given.get("fraction", 1.0),
                "sample": "uniform",
                "aggregate": "uniform" if equally else "weighted",
                "train_holdout": 0.0,
                "algo_para": parameters(method, given),
                "seed": seed,
                "dataseed": seed,
                "gpu": [],
                "no_log_console": True,
                "no_tqdm": True,
            },
            model=Network,
            Logger=Curve,
            Simulator=Paces,
        )
        if stream:
            runner.register_exit_condition(lambda server: server.gv.clock.current_time >= TICKS * ROUNDS)
        np.random.seed(seed)
        runner.run()
    sys.argv = arguments
    points = runner.gv.logger.points
    return at_ticks(points) if stream else [score for _, score in points[1:]]


if __name__ == "__main__":
    torch.set_num_threads(1)
    answer(run)

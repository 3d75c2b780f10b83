"""Does the controller's cost grow with learners that are idle? Commits a second against the number of learners.

    python -m benchmarks.idle                       # 100 to 100,000 learners without rounds, to 1,000,000 with rounds
    python -m benchmarks.idle --most 10000 --seconds 2
    python -m benchmarks.idle --out FILE            # store what was measured

The controller alone is measured: tasks are answered at once with a vector that lies ready, so there is no training,
no clock and no network. Under the asynchronous methods every learner is at work and answers in turn; `fedavg` has 100
learners a round. What is printed is CPU time, and how the slowest compares with the fastest.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import archipel as ap
from archipel.core.algorithm import Algorithm
from archipel.core.controller import Controller
from archipel.core.layout import Layout
from archipel.core.types import (
    Command,
    Consistent,
    Evaluate,
    Evaluated,
    Event,
    Joined,
    Metrics,
    Score,
    Scored,
    ScoreTable,
    Train,
    Trained,
)
from archipel.kernels import kernels
from archipel.simulation.vectors import MemoryModels
from benchmarks.machine import facts, load

LAYOUT = Layout.of(nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 2)))
CONFUSION = np.array([[6, 2], [1, 1]])
OWN = Scored(10, 1.0, CONFUSION)

STREAM_SIZES = (100, 1_000, 10_000, 100_000)
ROUNDS_SIZES = (1_000, 10_000, 100_000, 1_000_000)

METHODS: dict[str, Callable[[int], Algorithm]] = {
    "async_fedavg": lambda _: ap.async_fedavg(),
    "fedasync": lambda _: ap.fedasync(),
    "fed2a": lambda _: ap.fed2a(),
    "async_dvw(evaluators=10)": lambda _: ap.async_dvw(evaluators=10),
    "fedavg, 100 a round": lambda learners: ap.fedavg(100 / learners),
}


class Engine:
    """Answers every command at once, tasks in the order they were handed out."""

    def __init__(self, algorithm: Algorithm, learners: int) -> None:
        self.models = MemoryModels()
        self.controller = Controller(
            algorithm,
            LAYOUT,
            self.models,
            ending=ap.Ending(commits=1 << 40),
            learners=learners,
            kernels=kernels(),
            classes=2,
            initial=torch.zeros(LAYOUT.size),
        )
        self.vector = torch.ones(LAYOUT.size)
        self.trains: deque[Train] = deque()
        self.evaluations: deque[Evaluate] = deque()
        for number in range(learners):
            self.tell(Joined(f"learner {number}", 100, 10))

    def tell(self, event: Event) -> None:
        for command in self.controller.handle(event):
            self.obey(command)

    def obey(self, command: Command) -> None:
        if isinstance(command, Train):
            self.trains.append(command)
        elif isinstance(command, Evaluate):
            self.evaluations.append(command)

    def step(self) -> None:
        """Answer one task."""
        if self.evaluations:
            asked = self.evaluations.popleft()
            self.tell(Evaluated(asked.task, answers(asked)))
        else:
            train = self.trains.popleft()
            name = f"t{train.task}"
            self.models.write(name, self.vector.clone())
            layers = train.plan.sends(LAYOUT.names)
            self.tell(Trained(train.task, name, layers, 5, Metrics(validation=OWN)))

    def commits(self, seconds: float) -> float:
        """Commits a second of CPU time, after a few to warm up."""
        state = self.controller.state
        while state.version < 5:
            self.step()
        first, began = state.version, time.process_time()
        while time.process_time() - began < seconds:
            self.step()
        return (state.version - first) / (time.process_time() - began)


def answers(asked: Evaluate) -> ScoreTable | tuple[Consistent, ...]:
    if not isinstance(asked.probe, Score):
        return (Consistent((1.0,) * len(LAYOUT.layers)),) * len(asked.sites)
    sites = len(asked.sites)
    return ScoreTable(np.full(sites, 10), np.ones(sites), np.broadcast_to(CONFUSION, (sites, 2, 2)), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=1_000_000, help="learners at most")
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU seconds for each figure")
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many counts")
    parser.add_argument("--out", type=Path, help="a JSON file for what was measured")
    given = parser.parse_args()
    told = {"machine": facts(), "load before": load()}
    methods = {name: flatness(name, given.most, given.seconds, given.repeats) for name in METHODS}
    if given.out:
        given.out.write_text(json.dumps({**told, "load after": load(), "methods": methods}) + "\n")


def flatness(name: str, most: int, seconds: float, repeats: int) -> dict[int, float]:
    """Return commits a CPU second by the number of learners: the best of several counts, of all sizes in turn."""
    sizes = ROUNDS_SIZES if name.startswith("fedavg") else STREAM_SIZES
    engines = {learners: Engine(METHODS[name](learners), learners) for learners in sizes if learners <= most}
    counts = [{learners: engine.commits(seconds) for learners, engine in engines.items()} for _ in range(repeats)]
    found = {learners: max(count[learners] for count in counts) for learners in engines}
    for learners, rate in found.items():
        print(f"{name:28} {learners:>9,} learners  {rate:>9,.1f} commits/s", flush=True)
    print(f"{name:28} slowest / fastest: {min(found.values()) / max(found.values()):.2f}\n", flush=True)
    return found


if __name__ == "__main__":
    main()

"""How fast a learner of a federation trains, against one learner of the simulator, in CPU time.

    python -m benchmarks.federation.learner                      # all networks of the zoo
    python -m benchmarks.federation.learner ReLU tanh --seconds 2 --out learner.json

The simulator runs FedAvg with this learner alone. The federation's learner trains the same tasks with its own executor
("training"), and does all that a task is to it, from the order's plan to the answer on disk ("task"), but for the
connection itself. All three take turns in one process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import archipel as ap
from archipel.assembly.contexts import learner_of
from archipel.core.parts.ending import Ending
from archipel.federation.learner.agent import Agent, Training
from archipel.federation.learner.local_state import StateFolder
from archipel.federation.learner.policy import Policy, SiteRules
from archipel.federation.learner.site_data import LocalSite
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.learner.learner import Job
from archipel.simulation.simulate import prepare
from archipel.simulation.simulator import Simulator
from benchmarks.machine import facts, load
from benchmarks.zoo_networks import BATCH, CLASSES, EXAMPLES, ZOO

TURNS, RATE = 5, 0.05


def simulation(name: str) -> tuple[Simulator, ap.data.Islands, Any]:
    """Return a run of FedAvg with one learner, without a test set."""
    kind, nothing = ZOO[name], torch.empty(0, dtype=torch.int64)
    x, y = kind.examples(EXAMPLES)
    island = ap.data.Island("00", torch.arange(EXAMPLES), nothing)
    classes = None if y.is_floating_point() else CLASSES
    data = ap.data.Islands(x, y, (island,), nothing, nothing, classes, "zoo")
    algorithm = ap.fedavg(1.0, batch=BATCH, **{"rate": RATE, **kind.training})
    made = prepare(algorithm, data, model=kind.make, loss=kind.loss, ending=Ending(rounds=10**9))
    made.begin()
    return made, data, algorithm


class Alone:
    """A learner of a federation without its connection."""

    def __init__(self, simulator: Simulator, data: ap.data.Islands, algorithm: ap.Algorithm, folder: Path) -> None:
        context = simulator.context
        learner = learner_of(data.learners[0], data, 0.0, 0)
        policy = Policy.of(algorithm, context.layout, None, Ending(rounds=10**9), 1, SiteRules())
        self.island = LocalSite(replace(context), learner, policy)
        link: Any = None
        self.agent = Agent(link, self.island, StateFolder(folder), {}, "")
        self.plan, self.model = policy.plans[0], context.layout.vector(context.module)
        self.tasks = 0

    def train(self) -> None:
        """Train a task, and nothing else."""
        self.tasks += 1
        job = Job.begin(self.island.learner, self.island.work.layout, self.model, self.plan, self.tasks)
        while not job.done:
            self.agent.trainer.advance(job)

    def do(self) -> None:
        """Do a task: check its plan, train, and bring the answer to the disk."""
        self.tasks += 1
        layers = messages.encode_layers(self.island.work.layout.names, ["00" * 32] * len(self.island.work.layout.names))
        order = pb.Train(task=self.tasks, plan=messages.encode_plan(self.plan, self.tasks), model=layers)
        plan = messages.decode_plan(order.plan)
        self.island.policy.check_plan(plan)
        training = Training(order, plan)
        job = self.agent._work_at(training, self.model, None)
        assert job is not None
        self.agent._answer(training, job, self.model, frozenset())


def _rounds(simulator: Simulator) -> Iterator[None]:
    while True:
        version = simulator.controller.state.version
        while simulator.controller.state.version == version:
            simulator.run(events=1)
        yield


def _rate(once: Callable[[], object], seconds: float) -> float:
    """Return how often something is done in a second of this process's CPU time."""
    began, count, passed = time.process_time(), 0, 0.0
    while passed < seconds:
        once()
        count += 1
        passed = time.process_time() - began
    return count / passed


def measure(name: str, seconds: float, turns: int = TURNS) -> dict[str, Any]:
    """Return updates a second of CPU time of all three, turn by turn."""
    simulator, data, algorithm = simulation(name)
    with tempfile.TemporaryDirectory() as folder:
        alone, rounds = Alone(simulator, data, algorithm, Path(folder)), _rounds(simulator)
        found = []
        try:
            for _ in range(turns + 1):
                simulated = _rate(lambda: next(rounds), seconds)
                found.append({"simulator": simulated, "training": _rate(alone.train, seconds)})
                found[-1]["task"] = _rate(alone.do, seconds)
        finally:
            simulator.close()
        trained_by = alone.agent.trainer.executor.name
    del found[0]  # it warms up
    return {"network": name, "simulator": simulator.executor.name, "learner": trained_by, "turns": found}


def ratio(measured: dict[str, Any], what: str) -> float:
    """Return the median of the turns' ratios to the simulator."""
    ratios = sorted(turn[what] / turn["simulator"] for turn in measured["turns"])
    return float(ratios[len(ratios) // 2])


def run(names: Sequence[str], seconds: float, turns: int = TURNS) -> list[dict[str, Any]]:
    """Measure networks one after the other, and print each."""
    results = []
    for name in names:
        results.append(measure(name, seconds, turns))
        ways = f"{results[-1]['learner']} against {results[-1]['simulator']}"
        ratios = f"training {ratio(results[-1], 'training'):.2f} x, task {ratio(results[-1], 'task'):.2f} x"
        print(f"{name:40} {ratios} of the simulator's updates/s; {ways}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federation.learner", description=__doc__)
    parser.add_argument("networks", nargs="*", help="all whose names contain one of these; all, if none is given")
    parser.add_argument("--seconds", type=float, default=0.5, help="CPU seconds of a turn")
    parser.add_argument("--out", type=Path, help="a JSON file for what was measured")
    given = parser.parse_args()
    names = [name for name in ZOO if not given.networks or any(part in name for part in given.networks)]
    before = load()
    torch.set_num_threads(1)
    results = run(names, given.seconds)
    if given.out:
        given.out.write_text(json.dumps({"machine": facts(), "load before": before, "learner": results}, indent=1))


if __name__ == "__main__":
    main()

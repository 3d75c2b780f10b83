"""Networks of all kinds against a loop written by hand: `python -m benchmarks.zoo --help`.

Archipel and the loop, with one and with two threads, take turns in one process, so that a busy spell of the machine
meets all of them; in every turn Archipel's rate is divided by the better one of the loop.

With `--one-core` both have one thread and their CPU time is measured, as other work on the machine changes that less.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import archipel as ap
from archipel.simulation.simulate import prepare
from archipel.simulation.simulator import Simulator
from benchmarks.machine import facts, load
from benchmarks.measures import Spread
from benchmarks.tables import zoo_table
from benchmarks.zoo_networks import BATCH, CLASSES, EXAMPLES, LEARNERS, ZOO, Kind

TURN_SECONDS = 0.5
RATE = 0.05


class BareLoop:
    """The loop that a good engineer writes: one network, every learner's turn, the mean in place."""

    def __init__(self, kind: Kind, x: Tensor, y: Tensor) -> None:
        torch.manual_seed(0)
        self.kind, self.x, self.y = kind, x, y
        self.module = kind.make().train()
        self.local = [*self.module.parameters(), *(b for b in self.module.buffers() if b.is_floating_point())]
        self.model = [tensor.detach().clone() for tensor in self.local]

    def updates(self) -> Iterator[None]:
        """Train round after round; yield after every learner, so that a turn can end."""
        settings = {"rate": RATE, "momentum": 0.0, "optimiser": "SGD", "options": {}, **self.kind.training}
        momentum = {"momentum": settings["momentum"]} if settings["momentum"] else {}
        while True:
            mean = [torch.zeros_like(tensor) for tensor in self.model]
            for learner in range(LEARNERS):
                with torch.no_grad():
                    torch._foreach_copy_(self.local, self.model)
                optimiser = getattr(torch.optim, settings["optimiser"])(
                    self.module.parameters(), lr=settings["rate"], **momentum, **settings["options"]
                )
                for batch in (learner * EXAMPLES + torch.randperm(EXAMPLES)).split(BATCH):
                    optimiser.zero_grad()
                    self.kind.loss(self.module(self.x[batch]), self.y[batch]).backward()
                    optimiser.step()
                with torch.no_grad():
                    torch._foreach_add_(mean, self.local, alpha=1 / LEARNERS)
                yield
            self.model = mean


def simulation(kind: Kind, x: Tensor, y: Tensor) -> Simulator:
    """Return a run of FedAvg without a test set, so that nothing is scored: the loop does not score either."""
    nothing, places = torch.empty(0, dtype=torch.int64), torch.arange(len(x)).split(EXAMPLES)
    islands = tuple(ap.data.Island(f"{i:02}", own, nothing) for i, own in enumerate(places))
    data = ap.data.Islands(x, y, islands, nothing, nothing, None if y.is_floating_point() else CLASSES, "zoo")
    algorithm = ap.fedavg(1.0, batch=BATCH, **{"rate": RATE, **kind.training})
    made = prepare(algorithm, data, model=kind.make, loss=kind.loss, ending=ap.Ending(rounds=10**9))
    made.begin()
    return made


def measure(name: str, repeats: int, seconds: float = TURN_SECONDS, one_core: bool = False) -> dict[str, Any]:
    """Return the rates of all turns, in learners' updates a second, and the ratios."""
    kind = ZOO[name]
    x, y = kind.examples(LEARNERS * EXAMPLES)
    clock = time.process_time if one_core else time.perf_counter
    before = torch.get_num_threads()
    threads = 1 if one_core else before
    torch.set_num_threads(threads)  # an executor has as many processes
    ours = simulation(kind, x, y)
    loop = BareLoop(kind, x, y).updates()
    rounds = _rounds(ours)
    turns: list[dict[str, float]] = []
    try:
        for _ in range(repeats + 1):
            turn = {"archipel": LEARNERS * _rate(rounds, seconds, clock)}
            for count in (1,) if one_core else (1, 2):
                torch.set_num_threads(count)
                turn[f"bare, {count} threads"] = _rate(loop, seconds, clock)
                torch.set_num_threads(threads)
            turns.append(turn)
    finally:
        ours.close()
        torch.set_num_threads(before)
    del turns[0]  # it warms up
    ratios = [turn["archipel"] / _better(turn) for turn in turns]
    return {
        "network": name,
        "goal": kind.goal,
        "execution": ours.executor.name,
        "reason": ours.executor.reason,
        "turns": turns,
        "ratios": ratios,
    }


def _better(turn: dict[str, float]) -> float:
    return max(rate for who, rate in turn.items() if who.startswith("bare"))


def _rounds(simulator: Simulator) -> Iterator[None]:
    """Run round after round."""
    while True:
        version = simulator.controller.state.version
        while simulator.controller.state.version == version:
            simulator.run(events=1)
        yield


def _rate(steps: Iterator[None], seconds: float, clock: Callable[[], float]) -> float:
    began, count, passed = clock(), 0, 0.0
    while passed < seconds:
        next(steps)
        count += 1
        passed = clock() - began
    return count / passed


def run(
    names: Sequence[str], repeats: int, seconds: float = TURN_SECONDS, one_core: bool = False
) -> list[dict[str, Any]]:
    """Measure networks one after the other."""
    measured = []
    for name in names:
        measured.append(measure(name, repeats, seconds, one_core))
        ratio = Spread.of(measured[-1]["ratios"])
        print(f"{name}: {ratio.middle:.2f} x, {measured[-1]['execution']}, load {load()}", flush=True)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("networks", nargs="*", help="all whose names contain one of these; all, if none is given")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=TURN_SECONDS, help="of a turn")
    parser.add_argument("--one-core", action="store_true", help="one thread each, in CPU time")
    parser.add_argument("--out", type=Path, help="a JSON file for what was measured")
    given = parser.parse_args()
    names = [name for name in ZOO if not given.networks or any(part in name for part in given.networks)]
    before = load()
    measured = run(names, given.repeats, given.seconds, given.one_core)
    if given.out:
        how = {"one core": given.one_core, "load before": before, "load after": load()}
        results = {"machine": facts(), **how, "zoo": measured}
        given.out.write_text(json.dumps(results))
    Console(width=140).print(zoo_table(measured, given.one_core))


if __name__ == "__main__":
    main()

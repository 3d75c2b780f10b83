"""What a secure sum costs, all learners and the controller in one process.

    python -m benchmarks.secure_sum [--learners 100] [--rounds 2] [--only round|cohort|flower] [--out FILE]

round    whole rounds of FedAvg in simulation with a network of a million parameters, with and without `SecureSum`;
         goal: at most 3 times
cohort   the protocol alone, 1,000 learners with 100,000 numbers of which a tenth drops out after sharing its secrets;
         goal: a minute on two cores
flower   the protocol alone beside Flower's SecAgg+ in its own environment: 30 learners with 100,000 numbers, all
         neighbours, a tenth dropping out; both in one process without a network, one after the other, twice

CPU time and wall-clock time are both told: the first depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from archipel import simulate
from archipel.algorithms import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.checks import ArchipelWarning
from archipel.core.parts import Ending, SecureSum
from archipel.data import digits
from archipel.models import mlp
from archipel.privacy.secure_sum.graph import degree
from archipel.privacy.secure_sum.rehearsal import rehearse
from benchmarks.environments.prepare import prepare
from benchmarks.machine import load

HIDDEN = (960, 960)
"""About a million parameters on digits."""
THRESHOLD = 0.75


def timed(work: Callable[[], Any]) -> dict[str, float]:
    """Run something; return its seconds, by the processor and by the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def whole_rounds(learners: int, rounds: int) -> dict[str, Any]:
    """Compare rounds with and without secure sums; the cost of one round less than asked is taken off."""
    islands = digits().split(learners=learners)
    found: dict[str, Any] = {"learners": learners}
    for name, method in {"plain": fedavg(), "secure": replace(fedavg(), privacy=SecureSum())}.items():

        def run(count: int, method: Algorithm = method) -> None:
            network = mlp(64, 10, HIDDEN)
            simulate(method, islands, model=network, ending=Ending(rounds=count), execution="plain")

        run(1)  # what is loaded and compiled once is no part of a round
        few, many = timed(partial(run, 1)), timed(partial(run, 1 + rounds))
        found[name] = {kind: (many[kind] - few[kind]) / rounds for kind in few}
    found["ratio"] = {kind: found["secure"][kind] / found["plain"][kind] for kind in ("cpu", "wall")}
    return found


def cohort(learners: int = 1000, numbers: int = 100_000, dropping: float = 0.1) -> dict[str, Any]:
    """Time the protocol alone, and check its sum."""
    names, draws = [f"site-{k}" for k in range(learners)], np.random.default_rng(0)
    sent = {name: draws.integers(0, 2**32, numbers).astype("<u4") for name in names[: round(learners * (1 - dropping))]}
    sums: list[Any] = []
    seconds = timed(lambda: sums.append(rehearse(names, "round 1", sent, least=3, threshold=THRESHOLD)))
    plain = np.zeros(numbers, "<u4")
    for one in sent.values():
        plain += one
    if not (sums[0] == plain).all():
        raise RuntimeError("The sum is another one than without masks.")
    return {"learners": learners, "numbers": numbers, "dropping": dropping, **seconds}


def beside_flower(learners: int = 30, numbers: int = 100_000, dropping: float = 0.1) -> dict[str, Any]:
    """Let both protocols add up alike."""
    neighbours = degree(learners)
    asked = [str(one) for one in (learners, numbers, neighbours, THRESHOLD, dropping)]
    command = [str(prepare("flower")), "-m", "benchmarks.contenders.flower_secagg", *asked]
    found: dict[str, Any] = {"learners": learners, "numbers": numbers, "neighbours": neighbours, "dropping": dropping}
    ours, theirs = [], []
    for _ in range(2):
        ours.append(cohort(learners, numbers, dropping)["cpu"])
        told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1200).stdout
        theirs.append(json.loads(told.splitlines()[-1]))
    if not all(one["right"] for one in theirs):
        raise RuntimeError("Flower's sum is another one than without masks.")
    ratios = [theirs[place]["cpu"] / mine for place, mine in enumerate(ours)]
    version, seconds = theirs[0]["flwr"], [one["cpu"] for one in theirs]
    return {**found, "flwr": version, "cpu": ours, "flower cpu": seconds, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=("round", "cohort", "flower"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore", ArchipelWarning)  # learners have few examples each
    told: dict[str, Any] = {"load before": load()}
    if given.only in (None, "round"):
        told["round"] = whole_rounds(given.learners, given.rounds)
    if given.only in (None, "cohort"):
        told["cohort"] = cohort()
    if given.only in (None, "flower"):
        told["flower"] = beside_flower()
    told["load after"] = load()
    print(json.dumps(told, indent=2))
    if given.out:
        given.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()

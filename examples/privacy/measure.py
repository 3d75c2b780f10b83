"""Accuracy against epsilon on Fashion-MNIST: noise at the controller, for whole learners drawn by chance.

    python measure.py measured.jsonl

A line for each run is added to the file; runs that it holds already are skipped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import archipel as ap
from archipel.core.parts import CentralNoise, Ending, Equally, Poisson
from archipel.core.records import PrivacySpent
from archipel.data import fmnist

ROUNDS = 40
LEARNERS = {100: 0.1, 1000: 0.1}
"""Learners, and the share of them that a round expects."""
EPSILONS = (1.0, 2.0, 4.0, 8.0, None)
"""Budgets at delta 1 / learners^1.1; None: no noise and no clipping."""
SEEDS = range(5)
"""Of the split, the network, and what learners and their examples are drawn by; noise follows from no seed."""
LOCAL = {"batch": 20, "rate": 0.1, "epochs": 1}


def methods(fraction: float) -> dict[str, Any]:
    return {
        "fedavg": ap.fedavg(fraction, equally=True, **LOCAL),
        "fedadam": replace(ap.fedadam(fraction=fraction, **LOCAL), weighting=Equally()),
        "hdafl": replace(ap.hdafl(fraction, **LOCAL), weighting=Equally()),
    }


def cases() -> Iterator[dict[str, Any]]:
    for seed, learners, epsilon in product(SEEDS, LEARNERS, EPSILONS):
        for method in methods(LEARNERS[learners]):
            yield {"learners": learners, "method": method, "epsilon": epsilon, "seed": seed}


def measure(case: dict[str, Any], islands: Any) -> dict[str, Any]:
    fraction = LEARNERS[case["learners"]]
    method = replace(methods(fraction)[case["method"]], selection=Poisson())
    if case["epsilon"] is not None:
        delta = float(case["learners"] ** -1.1)
        method = replace(method, privacy=CentralNoise(epsilon=case["epsilon"], delta=delta, clip=0.5))
    else:
        method = replace(method, selection=ap.parts.Uniform())
    run = ap.simulate(
        method,
        islands,
        model=lambda: ap.models.small_mlp(784, 10),
        ending=Ending(rounds=ROUNDS),
        evaluation=ap.Evaluation(every=10, at="learners", mean="learners"),
        seed=case["seed"],
    )
    spent = run.of(PrivacySpent)
    noise = spent[-1][1].noise if spent else 0.0
    return {**case, "accuracy": run.score, "spent": spent[-1][1].epsilon if spent else None, "noise": noise}


def main() -> None:
    path = Path(sys.argv[1])
    known = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = [{name: one[name] for name in ("learners", "method", "epsilon", "seed")} for one in known]
    islands: dict[tuple[int, int], Any] = {}
    for case in cases():
        if case in done:
            continue
        learners, seed = case["learners"], case["seed"]
        if (learners, seed) not in islands:
            split = fmnist().split(learners=learners, classes="iid", test="own(0.15)", seed=seed)
            islands = {(learners, seed): split}
        with path.open("a") as file:
            print(json.dumps(measure(case, islands[learners, seed])), file=file)


if __name__ == "__main__":
    main()

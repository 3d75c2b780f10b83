"""What a secure sum costs, all learners and the controller in one process.

    python -m benchmarks.secure_sum [--learners 100] [--rounds 2] [--only round cohort flower] [--out FILE]

round    whole rounds of FedAvg in simulation with a network of a million parameters, with and without `SecureSum`:
         learners with 200 examples and one pass, and the least that a round can be, one step of 14 examples on average;
         goal: at most 3 times. With it the bytes of key stream that a round takes and the time of AES alone: no
         implementation of this protocol with this cipher takes less
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
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from archipel import simulate
from archipel.algorithms import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.checks import ArchipelWarning
from archipel.core.parts import Ending, SecureSum
from archipel.data import Islands, digits, from_arrays
from archipel.models import mlp
from archipel.privacy.secure_sum.graph import degree
from archipel.privacy.secure_sum.masks import BLOCK
from archipel.privacy.secure_sum.rehearsal import rehearse
from benchmarks.environments.prepare import prepare
from benchmarks.machine import load

HIDDEN = (960, 960)
"""About a million parameters on digits."""
THRESHOLD = 0.75
KINDS = ("round", "cohort", "flower")
EXAMPLES = 200
"""Of each learner in a round as it is usual."""


def timed(work: Callable[[], Any]) -> dict[str, float]:
    """Run something; return its seconds, by the processor and by the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def made_up(learners: int) -> Islands:
    """Data in the shape of digits, with so many examples for each learner."""
    draws, home = np.random.default_rng(0), 1000
    count = learners * EXAMPLES + home
    x, y = draws.normal(size=(count, 64)).astype("float32"), draws.integers(0, 10, count)
    return from_arrays(x, y, name="made up").split(learners=learners, test=home / count)


def key_stream(learners: int) -> dict[str, Any]:
    """Return the bytes of masks in a round, and how long AES takes for as many, without adding them to anything."""
    parameters = sum(weights.numel() for weights in mlp(64, 10, HIDDEN).parameters())
    masks = learners * (degree(learners, THRESHOLD) + 1) + learners  # with the self mask, and taken off again
    size, piece = masks * parameters * 4, bytes(BLOCK)
    into = bytearray(BLOCK + 15)
    stream = Cipher(algorithms.AES(bytes(16)), modes.CTR(bytes(16))).encryptor()

    def encrypt() -> None:
        for _ in range(size // BLOCK):
            stream.update_into(piece, into)

    return {"bytes": size, **timed(encrypt)}


def whole_rounds(islands: Islands, rounds: int) -> dict[str, Any]:
    """Compare rounds with and without secure sums; the cost of one round less than asked is taken off."""
    sizes = [len(one.train) for one in islands.learners]
    found: dict[str, Any] = {"learners": len(sizes), "examples": sum(sizes) / len(sizes)}
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
    neighbours = degree(learners, THRESHOLD)
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
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore", ArchipelWarning)  # learners have few examples each
    told: dict[str, Any] = {"load before": load()}
    if "round" in given.only:
        told["round"] = whole_rounds(made_up(given.learners), given.rounds)
        told["smallest round"] = whole_rounds(digits().split(learners=given.learners), given.rounds)
        told["key stream"] = key_stream(given.learners)
    if "cohort" in given.only:
        told["cohort"] = cohort()
    if "flower" in given.only:
        told["flower"] = beside_flower()
    told["load after"] = load()
    print(json.dumps(told, indent=2))
    if given.out:
        given.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Run methods in Archipel and in the peers that have them, on one problem, and store the accuracy curves.

python -m benchmarks.peers [METHOD ...]        run these, or all, and store them in benchmarks/measured/peers.json

Every peer has an environment of its own (benchmarks/environments). `make pages` writes the table.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import archipel as ap
from archipel.data import Islands
from benchmarks.environments.prepare import prepare
from benchmarks.peers.methods import CORRECTED, CORRECTED_FEDLAB, METHODS, Method
from benchmarks.peers.problem import (
    BATCH,
    HIDDEN,
    LASTS,
    LEARNERS,
    NAMES,
    RATE,
    ROUNDS,
    SEEDS,
    STREAMS,
    TICKS,
    Problem,
    at_ticks,
)
from benchmarks.peers.table import STORED

ROOT = Path(__file__).parent.parent.parent

PACKAGES = {"fluke": "fluke-fl", "fedlab": "fedlab", "flgo": "flgo"}
"""Peers and the packages whose versions are stored."""


def islands() -> Islands:
    """Return digits of learners with few and many examples, and with other classes each."""
    return ap.data.digits().split(LEARNERS, sizes="powerlaw", classes="dirichlet(0.5)", test="own(0.25)", seed=3)


def network() -> torch.nn.Module:
    """Return the model that all begin with."""
    torch.manual_seed(0)
    return ap.models.mlp(64, 10, (HIDDEN,))


def normalised() -> torch.nn.Module:
    """Return the same with normalisation before the activation, for FedBN."""
    plain = dict(network().named_children())
    parts = (plain["fc1"], torch.nn.BatchNorm1d(HIDDEN), torch.nn.ReLU(), plain["head"])
    return torch.nn.Sequential(OrderedDict(zip(("fc1", "norm", "relu", "head"), parts, strict=True)))


def fleet(method: Method) -> ap.Fleet | None:
    """Return how long tasks take, where it matters."""
    sizes = [len(own.train) for own in islands().learners]
    if method.name == "tifl":
        return ap.Fleet(fast=LEARNERS // 2, slow=LEARNERS - LEARNERS // 2)
    if method.name not in STREAMS:
        return None
    largest_first = sorted(range(LEARNERS), key=lambda i: -sizes[i])  # a fleet's groups are given out in this order
    steps = [-(-size // BATCH) for size in sizes]
    return ap.Fleet(*(ap.Group(f"learner {i}", 1, train_seconds=LASTS[i] / steps[i]) for i in largest_first))


def problem() -> Problem:
    """Return the problem as arrays."""
    data, model = islands(), network().state_dict()
    return Problem(
        data.x.numpy(),
        data.y.numpy(),
        [one.train.numpy() for one in data.learners],
        [one.test.numpy() for one in data.learners],
        {name: model[name].numpy() for name in NAMES},
    )


def algorithm(method: Method) -> ap.Algorithm:
    """Return Archipel's method, with all learners in every round unless it chooses them."""
    local: dict[str, Any] = {"epochs": 1, "batch": BATCH, "rate": RATE, "momentum": 0.0, "options": {}}
    if method.name == "per_fedavg":
        # a peer's step takes two batches; here they are the two parts of one
        local |= {"epochs": 2, "batch": 2 * BATCH}
    if method.name in STREAMS:
        streamed: ap.Algorithm = getattr(ap, method.name)(**(local | method.settings))
        return streamed
    made: ap.Algorithm = getattr(ap, method.name)(**({"fraction": 1.0} | local | method.settings))
    made = replace(made, weighting=ap.Equally() if method.equally else ap.ByExamples())
    return replace(made, personal=None) if method.name == "per_fedavg" else made


def ours(method: Method, seed: int) -> list[float]:
    """Return Archipel's accuracies on all own test parts together, round by round."""
    found = ap.simulate(
        algorithm(method),
        islands(),
        model=normalised if method.name == "fedbn" else network,
        fleet=fleet(method),
        ending=ap.Ending(seconds=TICKS * ROUNDS) if method.name in STREAMS else ap.Ending(rounds=ROUNDS),
        evaluation=ap.Evaluation(1, at="learners"),
        seed=seed,
    )
    points = [(time, scores.metrics["accuracy"]) for time, scores in found.scores]
    return at_ticks(points) if method.name in STREAMS else [score for _, score in points[1:]]


def theirs(peer: str, methods: Iterable[Method], at: Path) -> dict[str, list[list[float]]]:
    """Return a peer's, of methods and seeds, all from one process."""
    corrected, peer = peer.endswith("corrected"), peer.split(",")[0]
    asked = [(method, seed) for method in methods for seed in SEEDS]
    lines = (
        json.dumps(
            {"method": one.name, "given": one.settings, "equally": one.equally, "seed": seed, "corrected": corrected}
        )
        for one, seed in asked
    )
    answers = at.with_name(f"{peer}-{corrected}.jsonl")
    ran = subprocess.run(
        [prepare(peer), ROOT / "benchmarks" / "peers" / f"{peer}_side.py", at, answers],
        input="\n".join(lines),
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(f"{peer} failed:\n{ran.stderr[-2000:]}")
    found: dict[str, list[list[float]]] = {}
    for (method, _), line in zip(asked, answers.read_text().splitlines(), strict=True):
        curve = json.loads(line)
        if isinstance(curve, str):
            print(f"{peer}: {method.name}: {curve}", file=sys.stderr)
        else:
            found.setdefault(method.name, []).append(curve)
    return found


@functools.cache
def version_of(peer: str) -> str:
    """Return the version that a peer's environment has."""
    code = f"from importlib.metadata import version; print(version({PACKAGES[peer]!r}))"
    return subprocess.run([prepare(peer), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Run what is asked for, and keep the rest."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("methods", nargs="*", metavar="METHOD")
    asked.add_argument("--sides", nargs="*", default=("archipel", *PACKAGES, CORRECTED, CORRECTED_FEDLAB))
    given = asked.parse_args()
    wanted = given.methods or [method.name for method in METHODS]
    known = {method.name: method for method in METHODS}
    if unknown := [name for name in wanted if name not in known]:
        raise SystemExit(f"peers: no method {unknown[0]!r}. There are: {', '.join(known)}.")
    kept = json.loads(STORED.read_text()) if STORED.exists() else {"methods": {}, "versions": {}}
    asked_peers = [peer for peer in PACKAGES if peer in given.sides]
    kept["versions"] |= {"archipel": version("archipel"), **{peer: version_of(peer) for peer in asked_peers}}
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder) / "problem.npz"
        problem().save(at)
        chosen = [known[name] for name in wanted]
        for side in given.sides:
            had = [method for method in chosen if side in ("archipel", *method.peers)]
            if side == "archipel":
                made = {method.name: [ours(method, seed) for seed in SEEDS] for method in had}
            else:
                made = theirs(side, had, at) if had else {}
            for name, curves in made.items():
                kept["methods"].setdefault(name, {})[side] = [[round(score, 5) for score in curve] for curve in curves]
            STORED.write_text(json.dumps(kept, sort_keys=True) + "\n")  # after each side, since it takes minutes


if __name__ == "__main__":
    main()

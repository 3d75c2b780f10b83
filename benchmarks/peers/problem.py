"""The problem that both sides solve; numpy alone, because every peer has an environment of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LEARNERS, ROUNDS, RATE, BATCH, HIDDEN = 10, 20, 0.1, 16, 32
SEEDS = (1, 2, 3)
"""Of the order of the mini-batches; data and initial weights are always the same."""
NAMES = ("fc1.weight", "fc1.bias", "head.weight", "head.bias")
"""Of the arrays of the initial model, the layers of `archipel.models.mlp`."""
LASTS = (101, 347, 173, 251, 127, 313, 197, 223, 149, 281)
"""Ticks of a simulated clock that a task of each learner takes, for methods without rounds. Few coincide."""
TICKS = 200
"""Between two points of such a method's curve."""
STREAMS = ("fedasync", "fedbuff")
"""Methods without rounds."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Problem:
    """What every learner has, and the model that all begin with."""

    x: Array
    y: Array
    train: list[Array]
    """Indices of every learner's training examples."""
    test: list[Array]
    """Indices of every learner's own test part."""
    initial: dict[str, Array]

    def save(self, path: Path) -> None:
        """Write it for a peer."""
        parts = {f"train{i}": own for i, own in enumerate(self.train)} | {
            f"test{i}": t for i, t in enumerate(self.test)
        }
        np.savez(path, x=self.x, y=self.y, **parts, **self.initial)  # type: ignore[arg-type]

    @staticmethod
    def load(path: Path) -> Problem:
        """Read what `save` wrote."""
        with np.load(path) as kept:
            train, test = ([kept[f"{part}{i}"] for i in range(LEARNERS)] for part in ("train", "test"))
            return Problem(kept["x"], kept["y"], train, test, {name: kept[name] for name in NAMES})


def tiers(sizes: list[int]) -> list[int]:
    """Return each learner's tier, 0 or 1: by descending size, learners belong to the first and the second in turn."""
    ranks = np.argsort(np.argsort(-np.array(sizes), kind="stable"), kind="stable")
    return [int(rank) % 2 for rank in ranks]


def at_ticks(points: list[tuple[float, float]]) -> list[float]:
    """Return a curve by time: the accuracy after every `TICKS`, from (time, accuracy) of each version."""
    return [[score for time, score in points if time <= TICKS * (i + 1)][-1] for i in range(ROUNDS)]


Run = Callable[..., list[float]]
"""Of the problem, the method, its settings, whether learners count the same, the seed, and whether it is corrected."""


def answer(run: Run) -> None:
    """Be a peer's side: answer every line of standard input, a run, with its accuracies, or with what went wrong.

    Answers go to a file, because peers print.
    """
    problem, answers = Problem.load(Path(sys.argv[1])), Path(sys.argv[2])
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found: Any = run(problem, **asked)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        with answers.open("a") as file:
            file.write(json.dumps(found) + "\n")

"""The fleet: how fast learners compute and communicate, and how reliable they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass

import numpy as np
from numpy.typing import NDArray

from archipel.core.checks import at_least, between, more_than, require
from archipel.simulation.attacks import attack_of


@dataclass(frozen=True)
class Group:
    """Learners of equal speed, reliability and honesty."""

    name: str
    """Its name, also for methods with thresholds for each group."""
    count: int
    """How many learners are in it."""
    train_seconds: float = 0.01
    """Seconds of one training step (a mini-batch)."""
    evaluate_seconds: float = 0.002
    """Seconds of one evaluation step (a mini-batch)."""
    bandwidth: float | None = None
    """Bytes a second, each way; None: transfers take no time."""
    latency: float = 0.0
    """Seconds before a message arrives."""
    drop_rate: float = 0.0
    """Probability that a task is lost on its way."""
    up: float | None = None
    """Mean seconds a learner stays before it goes away; None: it never does."""
    down: float = 60.0
    """Mean seconds it stays away."""
    varies: float = 0.0
    """How much training seconds vary from task to task: deviation of their logarithm; 0: not at all."""
    attack: str = ""
    """The attack of its learners, which then do not send what they have trained: "sign_flip(1)", "scaled(100)",
    "noise(10)", "label_flip", "alie(1.5)" or "inner_product(0.5)", each with a number; empty: they are honest."""
    claims: int = 1
    """Examples that a learner claims for each that it has."""
    loss: InitVar[None] = None
    """The old name of `drop_rate`."""

    def __post_init__(self, loss: None) -> None:
        owner = f"Group {self.name!r}"
        require(loss is None, f"{owner}: loss is called drop_rate now; give drop_rate={loss}.")
        at_least(0, owner, count=self.count)
        at_least(0, owner, train_seconds=self.train_seconds)
        at_least(0, owner, varies=self.varies)
        at_least(0, owner, evaluate_seconds=self.evaluate_seconds)
        at_least(0, owner, latency=self.latency)
        at_least(1, owner, claims=self.claims)
        attack_of(self.attack)
        between(owner, "drop_rate", self.drop_rate, 0, 1)
        more_than(0, owner, down=self.down)
        for name in ("bandwidth", "up"):
            if getattr(self, name) is not None:
                more_than(0, owner, **{name: getattr(self, name)})


@dataclass(frozen=True, init=False)
class Fleet:
    """Groups of learners: Fleet(fast=5, slow=5), or Fleet(Group("hospital", 4, train_seconds=0.1), ...).

    In the short form, fast learners take 10 ms a training step and 2 ms an evaluation step, slow ones ten times that,
    as GPUs and CPUs in Metis.
    """

    groups: tuple[Group, ...]

    def __init__(self, *groups: Group, fast: int = 0, slow: int = 0) -> None:
        named = list(groups)
        if fast:
            named.append(Group("fast", fast))
        if slow:
            named.append(Group("slow", slow, train_seconds=0.1, evaluate_seconds=0.02))
        object.__setattr__(self, "groups", tuple(named))
        require(
            sum(group.count for group in named) > 0,
            "Fleet: it has no learners; give Fleet(fast=5, slow=5) or groups with a count.",
        )
        names = [group.name for group in named]
        require(len(names) == len(set(names)), f"Fleet: two groups have the same name: {', '.join(names)}.")

    def __repr__(self) -> str:
        return f"Fleet({', '.join(map(repr, self.groups))})"

    def assign(self, sizes: Sequence[int]) -> NDArray[np.int64]:
        """Return the index of every learner's group: alternating by descending data size (Metis section VI)."""
        counts = np.array([group.count for group in self.groups])
        require(
            len(sizes) == counts.sum(),
            f"Fleet: it has {counts.sum()} learners "
            f"({', '.join(f'{g.count} {g.name}' for g in self.groups)}), the data have {len(sizes)} islands; "
            "make them equal.",
        )
        # the n-th learner of a group has its turn in the n-th lap, after those of earlier groups
        group = np.repeat(np.arange(len(counts)), counts)
        lap = np.concatenate([np.arange(count) for count in counts])
        assigned = np.empty(len(sizes), np.int64)
        assigned[np.argsort(-np.array(sizes), kind="stable")] = group[np.lexsort((group, lap))]
        return assigned

    def attacks(self, names: Sequence[str], assigned: NDArray[np.int64]) -> dict[str, str]:
        """Return what attackers do, by name; assigned: the place of every learner's group."""
        attacks = [group.attack for group in self.groups]
        rows = np.flatnonzero(np.array([bool(attack) for attack in attacks])[assigned]).tolist()
        return {names[row]: attacks[int(assigned[row])] for row in rows}

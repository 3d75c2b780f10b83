"""The fleet: how fast learners compute and communicate, and how reliable they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass

from archipel.core.checks import at_least, between, more_than, require
from archipel.simulation.attacks import attack_of


@dataclass(frozen=True)
class Group:
    """Learners that are alike in speed, reliability and honesty."""

    name: str
    """What it is called, also where a method has thresholds for each group."""
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
    """What its learners do instead of sending what they have trained: "sign_flip(1)", "scaled(100)", "noise(10)",
    "label_flip", "alie(1.5)" or "inner_product(0.5)", each with a number; empty: they are honest."""
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

    By the short form fast learners take 10 ms a training step and 2 ms an evaluation step, slow ones ten times that,
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
            "Fleet: nobody is in it; give Fleet(fast=5, slow=5) or groups with a count.",
        )
        names = [group.name for group in named]
        require(len(names) == len(set(names)), f"Fleet: two groups have the same name: {', '.join(names)}.")

    def __repr__(self) -> str:
        return f"Fleet({', '.join(map(repr, self.groups))})"

    def assign(self, names: Sequence[str], sizes: Sequence[int]) -> dict[str, Group]:
        """Who is in which group: alternating between groups by descending data size (Metis section VI)."""
        room = {group.name: group.count for group in self.groups}
        require(
            len(names) == sum(room.values()),
            f"Fleet: it has {sum(room.values())} learners "
            f"({', '.join(f'{g.count} {g.name}' for g in self.groups)}), the data have {len(names)} islands; "
            "make them equal.",
        )
        assigned: dict[str, Group] = {}
        turn = 0
        for place in sorted(range(len(names)), key=lambda i: (-sizes[i], i)):
            while room[self.groups[turn % len(self.groups)].name] == 0:
                turn += 1
            group = self.groups[turn % len(self.groups)]
            room[group.name] -= 1
            turn += 1
            assigned[names[place]] = group
        return assigned

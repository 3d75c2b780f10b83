"""How a federation is held together, and what is known of its guests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from archipel.core.checks import require
from archipel.core.types import Evaluate, Result, Role, Train
from archipel.data.standardise import Moments
from archipel.federation.security.roles import OperatorRole
from archipel.federation.wire.codec import MOST


class Rejected(Exception):
    """A call that cannot be answered as it was made; the words go to the caller."""


class Missing(Exception):
    """A call asks for something that is not there, or not any more."""


class Busy(Exception):
    """A call that may be made again in a moment."""


@dataclass(frozen=True)
class Guest:
    """A learner on the study's list."""

    group: str = ""
    role: Role = "train"


@dataclass(frozen=True)
class Limits:
    """What any learner may claim."""

    examples: int = 10_000_000
    """Examples to train on."""
    validation: int = 10_000_000
    test: int = 10_000_000
    most_share: float = 0.8
    """Of a weight, of everybody's moments and of a pooled score; with n learners never below 1/n."""


@dataclass(frozen=True)
class Terms:
    """What the study says of a federation."""

    learners: Mapping[str, Guest]
    """Who may take part."""
    wait_for: int
    """Learners that have to be there before it begins."""
    heartbeat: float = 5.0
    """Seconds between two signs of life."""
    silence: float = 30.0
    """Seconds without one after which a learner is taken for gone."""
    task_deadline: float = 86_400.0
    """Seconds that a training task may take."""
    opinion_deadline: float = 60.0
    """Seconds that learners have for trying a model."""
    norm_bound: float | None = None
    """How far an update may move the model; None: as far as it likes."""
    limits: Limits = Limits()
    operators: Mapping[str, OperatorRole] = field(default_factory=dict)
    """Who looks after the federation."""

    def __post_init__(self) -> None:
        for what in ("examples", "validation", "test"):
            most = getattr(self.limits, what)
            require(
                len(self.learners) * most <= MOST,
                f"federation.limits.{what} is {most}: {len(self.learners)} learners could claim more together than "
                f"{MOST}, up to which sums are exact. Lower it to {MOST // len(self.learners)} or less.",
            )


class Home(Protocol):
    """The controller's own site."""

    def answer(self, command: Evaluate) -> Result: ...

    def standardise(self, by: Moments) -> None: ...


@dataclass(eq=False)
class Seat:
    """A learner, as long as this process runs."""

    name: str
    seen: float = 0.0
    """When it gave its last sign of life."""
    orders: dict[int, Train | Evaluate] = field(default_factory=dict)
    """What it has to do."""
    queue: asyncio.Queue[tuple[str, int]] | None = None
    """What it is to be told next; None while it does not listen."""
    holds: set[str] = field(default_factory=set)
    """Digests of the layers it was given last and those it sent last."""
    private: set[str] = field(default_factory=set)
    """Layers that it has its own of."""
    given: dict[int, dict[str, int]] = field(default_factory=dict)
    """Bytes of each layer that were put on the wire for a task."""
    fetching: int = 0
    """Models it is fetching now."""
    failures: int = 0
    """Training tasks in a row that came to nothing."""
    rests_until: float = 0.0
    """It is given nothing to train before: what fails at once must not fail a thousand times a minute."""
    told_end: bool = False
    """It knows that the run is over."""

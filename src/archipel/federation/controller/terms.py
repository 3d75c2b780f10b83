"""The settings of a federation, and the errors that callers get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from archipel.core.checks import require
from archipel.core.types import Evaluate, Result, Role
from archipel.data.standardise import Moments
from archipel.federation.security.roles import OperatorRole
from archipel.federation.wire.messages import MOST


class Rejected(Exception):
    """A call with an invalid request; the message goes to the caller."""


class Missing(Exception):
    """A call for something that does not exist, or no longer exists."""


class RetryLater(Exception):
    """A call that may be repeated soon."""


@dataclass(frozen=True)
class ListedLearner:
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
    most_movement: float | None = 10.0
    """How far an update may move a layer, in medians of what learners' updates lately moved it by; None: no limit."""


@dataclass(frozen=True)
class Terms:
    """The federation section of a study."""

    learners: Mapping[str, ListedLearner]
    """Who may take part."""
    wait_for: int
    """Learners that must have joined before the run begins."""
    heartbeat: float = 5.0
    """Seconds between two heartbeats."""
    silence: float = 30.0
    """Seconds without one after which a learner counts as gone."""
    task_deadline: float | None = None
    """Seconds that a training task may take; None: by what learners' last tasks have taken."""
    opinion_deadline: float = 60.0
    """Seconds that learners have to evaluate a model."""
    norm_bound: float | None = None
    """How far an update may move the model; None: no limit."""
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


class HomeSite(Protocol):
    """The controller's own site."""

    def answer(self, command: Evaluate) -> Result: ...

    def standardise(self, by: Moments) -> None: ...

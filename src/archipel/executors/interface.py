"""What trains and scores models in a simulation.

The simulator knows this interface only. What an executor computes does not depend on how many processes or threads it
has, and is computed in the background where that is worth it: `wait` and `result` return when it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from archipel.core.types import Score, ScoreTable
from archipel.learner.learner import Job
from archipel.learner.probes import Parts

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class PendingResult(Protocol[T_co]):
    """A value that may still be computed."""

    def result(self) -> T_co:
        """Wait for the value and return it."""


@dataclass(frozen=True)
class KnownResult(Generic[T]):
    """A value that was computed at once."""

    value: T

    def result(self) -> T:
        """Return the value."""
        return self.value


class Executor(Protocol):
    """Trains jobs and scores models."""

    name: str
    """As `simulate(execution=...)` and a run's `execution` call it."""
    reason: str
    """Why no faster executor was chosen; empty if there is none, or one was asked for."""

    @property
    def ahead(self) -> int:
        """Return how many jobs it can train before their results are needed; 0: it gains nothing from that.

        Above 0 it trains jobs one by one, so that it makes no difference which of them are submitted together.
        """

    def running(self) -> AbstractContextManager[None]:
        """Prepare torch for a simulation in a block: the number of its threads is a part of the arithmetic."""

    def divide(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Return the stacks in which these jobs are trained; the bits of a job depend on its stack alone."""

    def submit(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        """Start to train jobs for this many epochs, or to their ends; a job must not be read before `wait`."""

    def wait(self, job: Job | None = None) -> None:
        """Return when this job, or every job, has been trained as far as was asked for."""

    def drop(self, job: Job) -> None:
        """Give a job up: it is not waited for."""

    def score(self, model: Tensor, parts: Parts, probe: Score, *, urgent: bool = False) -> PendingResult[ScoreTable]:
        """Start to score a model on the examples of several sites; urgent: the result is needed at once."""

    def close(self) -> None:
        """Stop all processes and drop what is being computed."""

"""The interface of executors, which train and score models in a simulation.

The simulator knows this interface only. Results do not depend on the number of processes or threads. Work may run in
the background: `wait` and `result` return when it is done.
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
    """A value whose computation may not be finished."""

    def result(self) -> T_co:
        """Wait for the value and return it."""


@dataclass(frozen=True)
class KnownResult(Generic[T]):
    """A value that was computed immediately."""

    value: T

    def result(self) -> T:
        """Return the value."""
        return self.value


class Executor(Protocol):
    """Trains jobs and scores models."""

    name: str
    """Its name in `simulate(execution=...)` and in a run's `execution`."""
    reason: str
    """Why no faster executor was chosen; empty if there is none, or this one was requested."""

    @property
    def ahead(self) -> int:
        """Return how many jobs are worth submitting before their results are needed; 0: none.

        If above 0, jobs are trained one by one, so that results do not depend on which are submitted together.
        """

    def running(self) -> AbstractContextManager[None]:
        """Set torch's threads for a simulation within a block: their number affects rounding."""

    def divide(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Return the stacks in which these jobs are trained; the bits of a job depend on its stack alone."""

    def submit(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        """Start training jobs for this many epochs, or until they are done; call `wait` before reading a job."""

    def wait(self, job: Job | None = None) -> None:
        """Wait until this job, or all jobs, have been trained as far as requested."""

    def drop(self, job: Job) -> None:
        """Abandon a job, which `wait` then ignores."""

    def score(self, model: Tensor, parts: Parts, probe: Score, *, urgent: bool = False) -> PendingResult[ScoreTable]:
        """Start scoring a model on the examples of several sites; urgent: the result is needed immediately."""

    def close(self) -> None:
        """Stop all processes and abandon open work."""

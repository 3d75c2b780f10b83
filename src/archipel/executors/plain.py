"""Plain execution: one learner at a time, in this thread. The reference for all others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from archipel.core.types import Score, ScoreTable
from archipel.executors.arithmetic import is_small
from archipel.executors.fork_scorer import ForkScorer
from archipel.executors.interface import KnownResult, PendingResult
from archipel.kernels.threads import threads
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.probes import Parts, score_parts
from archipel.learner.training import advance


class Plain:
    """Trains jobs one at a time, as soon as they are submitted."""

    name = "plain"
    reason = ""
    ahead = 0

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        self.scorer = ForkScorer(context) if is_small(context) else None
        """Scores models in another process; None for a large network, which keeps all cores busy itself."""

    def running(self) -> AbstractContextManager[None]:
        """Let torch use one thread for a small network, and its default number for a large one."""
        return threads(None if self.scorer is None else 1)

    def divide(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Return the jobs one by one."""
        return [[job] for job in jobs]

    def submit(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        """Train jobs for this many epochs, or until they are done."""
        for job in jobs:
            advance(self.context, job, epochs)

    def wait(self, job: Job | None = None) -> None:
        """Return at once: `submit` has trained the jobs."""

    def drop(self, job: Job) -> None:
        """Do nothing: `submit` has trained the job."""

    def score(self, model: Tensor, parts: Parts, probe: Score, *, urgent: bool = False) -> PendingResult[ScoreTable]:
        """Score a model, in another process if that is worth it."""
        if self.scorer is None:
            return KnownResult(score_parts(self.context, model.to(self.context.x.device), parts, probe.bins))
        return self.scorer.score(model, parts, probe, urgent=urgent)

    def close(self) -> None:
        """Stop the scoring process."""
        if self.scorer is not None:
            self.scorer.close()

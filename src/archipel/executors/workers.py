"""Execution on workers: one learner at a time in each of several forked processes with one thread each.

A learner with a machine of its own is one process with any number of threads.

Processes and not threads: small steps would wait for the interpreter lock, and dropout draws from a generator that
threads share.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from archipel.core.frozen_weights import copied
from archipel.core.types import Score, ScoreTable
from archipel.executors.fork_pool import ForkPool
from archipel.executors.interface import KnownResult, PendingResult
from archipel.executors.shortcuts import with_shortcuts
from archipel.kernels.threads import threads
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.probes import Parts, score_parts
from archipel.learner.training import advance


class Workers:
    """Trains jobs in as many processes as torch has threads, this one included, each with its own parameters."""

    name = "workers"
    reason = ""
    ahead = 0

    def __init__(self, context: TrainingContext, count: int | None = None, threads_each: int = 1) -> None:
        self.context, self._threads_each = context, threads_each
        on_cpu = context.x.device.type == "cpu"
        self.pool = ForkPool(count or torch.get_num_threads() if on_cpu else 1, context.layout.size)
        module = copied(context.module)
        twice = context.descent is not None and context.descent.differentiates_twice
        if not (twice or context.local_noise):  # neither second derivatives nor gradients of single examples
            module = with_shortcuts(module)
        self._faster = replace(context, module=module)

    def running(self) -> AbstractContextManager[None]:
        """Leave the number of torch's threads unchanged."""
        return threads(None)

    def divide(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Return the jobs one by one."""
        return [[job] for job in jobs]

    def submit(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        """Start training jobs for this many epochs, or until they are done."""
        # largest first, so that the processes finish together; results do not depend on the order
        ordered = sorted(jobs, key=lambda job: -job.examples)
        self.pool.submit([[job] for job in ordered], epochs, self._train)

    def _train(self, jobs: Sequence[Job], epochs: int | None) -> None:
        with threads(self._threads_each):
            for job in jobs:
                advance(self._faster, job, epochs)

    def wait(self, job: Job | None = None) -> None:
        """Wait until this job, or all jobs, have been trained."""
        self.pool.wait(self._train, job)

    def drop(self, job: Job) -> None:
        """Do nothing: a submitted job cannot be stopped."""

    def score(self, model: Tensor, parts: Parts, probe: Score, *, urgent: bool = False) -> PendingResult[ScoreTable]:
        """Score a model with all of torch's threads."""
        return KnownResult(score_parts(self.context, model.to(self.context.x.device), parts, probe.bins))

    def close(self) -> None:
        """Stop all processes."""
        self.pool.close()

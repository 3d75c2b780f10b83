"""Execution on workers: learner by learner, on threads of this process that compute with one thread each."""

from __future__ import annotations

import copy
import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from archipel.core.types import Score, ScoreTable
from archipel.kernels.threads import threads
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.probes import Parts, score_parts
from archipel.learner.training import advance
from archipel.simulation.executors.interface import Pending, Ready
from archipel.simulation.executors.shortcuts import with_shortcuts


class Workers:
    """Trains jobs on as many workers as torch has threads, each with a copy of the network; they share the data."""

    name = "workers"

    def __init__(self, context: TrainingContext, count: int | None = None) -> None:
        self.context = context
        self.count = count or torch.get_num_threads()
        self._free: queue.SimpleQueue[TrainingContext] = queue.SimpleQueue()
        for _ in range(self.count):
            self._free.put(replace(context, module=with_shortcuts(copy.deepcopy(context.module))))

    def running(self) -> AbstractContextManager[None]:
        """Leave torch's threads as they are."""
        return threads(None)

    def divide(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Return the jobs one by one."""
        return [[job] for job in jobs]

    def submit(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        """Train jobs for this many epochs, or to their ends, and wait for all of them."""
        # the largest first, so that no worker is left alone with it at the end; results do not depend on the order
        ordered = sorted(jobs, key=lambda job: -job.examples)
        # the fork is around all workers: those inside overlap, and would restore one another's state
        with torch.random.fork_rng(devices=[]), threads(1), ThreadPoolExecutor(self.count) as pool:
            for _ in pool.map(lambda job: self._train(job, epochs), ordered):
                pass

    def _train(self, job: Job, epochs: int | None) -> None:
        torch.set_num_threads(1)
        context = self._free.get()
        try:
            advance(context, job, epochs)
        finally:
            self._free.put(context)

    def wait(self, job: Job | None = None) -> None:
        """Return at once: `submit` has waited."""

    def score(self, model: Tensor, parts: Parts, probe: Score, *, urgent: bool = False) -> Pending[ScoreTable]:
        """Score a model with all threads of torch."""
        return Ready(score_parts(self.context, model.to(self.context.x.device), parts, probe.bins))

    def close(self) -> None:
        """Do nothing: the threads end with every `submit`."""

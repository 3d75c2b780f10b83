"""Train a learner's tasks with the executor that suits its network, epoch by epoch.

Between two epochs a task can be cancelled or asked back.
"""

from __future__ import annotations

import logging

from archipel.executors.arithmetic import is_small
from archipel.executors.choice import executor_alone
from archipel.executors.interface import Executor
from archipel.federation.learner.site_data import LocalSite
from archipel.learner.learner import Job, TrainingContext

log = logging.getLogger("archipel.learner")


class LocalTrainer:
    """Carries jobs on. All its calls come from one thread."""

    def __init__(self, island: LocalSite, threads: int) -> None:
        """threads: of a large network; a small one would wait for more than one."""
        self._island, self._threads = island, threads
        self._made: tuple[TrainingContext, Executor] | None = None

    @property
    def executor(self) -> Executor:
        """The executor for the learner's network; made anew when its examples have been standardised."""
        context = self._island.work
        if self._made is None or self._made[0] is not context:
            self.close()
            threads = 1 if self._threads == 1 or is_small(context) else self._threads
            plan, execution = self._island.policy.plans[0], self._island.execution
            executor = executor_alone(context, plan, execution, threads)
            log.info("trains", extra={"execution": executor.name, "threads": threads, "reason": executor.reason})
            self._made = context, executor
        return self._made[1]

    def advance(self, job: Job) -> None:
        """Carry a job on by an epoch."""
        executor = self.executor
        with executor.running():
            executor.submit([job], 1)
            executor.wait(job)

    def close(self) -> None:
        """Drop what is being computed."""
        if self._made is not None:
            self._made[1].close()
            self._made = None

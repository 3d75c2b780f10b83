"""An executor whose jobs are computed on a Ray cluster, to the bits of the executor that works inside each actor.

The inner executor divides jobs into stacks, from the jobs alone; a task carries some stacks to an actor. What an
actor does not answer is given to another one, and computed in this process if there is none: no result depends on where
it was computed.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import Tensor

from archipel.core.checks import ArchipelWarning
from archipel.core.types import Score, ScoreTable
from archipel.executors.interface import Executor, PendingResult
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.probes import Parts
from archipel.simulation.cluster.actor_pool import ActorPool, PooledActor
from archipel.simulation.cluster.cluster_tasks import ClusterTask, PlacedModels, ScoreModel, TrainStacks, cost_of
from archipel.simulation.cluster.connection import ClusterError, ClusterLost

AT_ONCE = 2
"""Assignments that an actor has at a time: the next one travels while it works."""
ATTEMPTS = 3
"""Actors that a task may be lost with before it is computed in this process."""
NUMBERS = 1 << 22
"""Parameters of a task's models at most, unless a single stack has more."""
LOOK = 0.25
"""Longest wait between two looks at the pool, in seconds."""


class ClusterExecutor:
    """Trains jobs, and scores large networks, on the actors of a pool."""

    def __init__(
        self,
        inner: Executor,
        context: TrainingContext,
        pool: ActorPool,
        *,
        early: bool,
        scores: bool,
        disconnect: Callable[[], None] = lambda: None,
    ) -> None:
        """early: the inner executor makes no stacks.

        scores: models are scored on the cluster, too; small networks are scored faster here.
        """
        self.name, self.reason, self.early = inner.name, inner.reason, early
        self.inner = inner
        self.context = context
        self.pool = pool
        self.scores = scores
        self._disconnect = disconnect
        self._placed = PlacedModels(pool.ray)
        self._waiting: deque[ClusterTask] = deque()
        self._out: list[ClusterTask] = []
        self._training: dict[Job, TrainStacks] = {}
        self.losses = 0
        """Actors that were lost."""

    def running(self) -> AbstractContextManager[None]:
        """Prepare torch as the inner executor does; refuse to go on without a cluster between two calls."""
        if self.pool.gone:
            raise ClusterLost(
                f"cluster {self.pool.cluster.address!r} is lost: {self.pool.gone}. Resume the run when the cluster is "
                "up again, on any number of nodes, or without one."
            )
        return self.inner.running()

    def divide(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Return the stacks of the inner executor."""
        return self.inner.divide(jobs)

    def submit(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        """Start to train jobs for this many epochs, or to their ends."""
        for stacks in self._divided([job for job in jobs if not job.done], epochs):
            task = TrainStacks(self._placed, self.inner, stacks, epochs)
            self._waiting.append(task)
            self._training.update(dict.fromkeys(task.jobs, task))
        self._assign()

    def wait(self, job: Job | None = None) -> None:
        """Return when this job, or every job, has been trained as far as was asked for."""
        for one in list(self._training) if job is None else [job]:
            task = self._training.get(one)
            if task is not None:
                self.finish(task)
                for trained in task.jobs:
                    self._training.pop(trained, None)

    def score(self, model: Tensor, parts: Parts, probe: Score, *, urgent: bool = False) -> PendingResult[ScoreTable]:
        """Score a model, on the cluster where that is worth it."""
        if not self.scores:
            return self.inner.score(model, parts, probe, urgent=urgent)
        task = ScoreModel(self._placed, self.inner, model, parts, probe)
        self._waiting.appendleft(task)
        self._assign()
        return ClusterScore(self, task)

    def close(self) -> None:
        """Stop all actors and drop what is being computed."""
        self.pool.close()
        self._waiting.clear()
        self._out.clear()
        self._training.clear()
        self.inner.close()
        self._disconnect()

    def finish(self, task: ClusterTask) -> None:
        """Work on all tasks until the results of this one are here."""
        while not task.done:
            self.look()
            if task.answered:
                self._collect(task)
            elif self._waiting and not self.pool.ready and not self.pool.expected:
                self._compute_here(self._waiting.popleft())
            else:
                self._receive_answers()

    def look(self) -> None:
        """Look at the pool: give the work of lost actors to others, and waiting work to those who are free."""
        for actor in self.pool.tick():
            self._take_back(actor)
        self._assign()

    def _divided(self, jobs: Sequence[Job], epochs: int | None) -> Iterator[list[list[Job]]]:
        """Yield the stacks of each task: of like cost, and no more than fits."""
        costs = [(cost_of(stack, epochs), stack) for stack in self.inner.divide(jobs)]
        costs.sort(key=lambda pair: -pair[0])
        fair = sum(cost for cost, _ in costs) / max(1, AT_ONCE * len(self.pool.ready))
        chosen: list[list[Job]] = []
        total, numbers = 0.0, 0
        for cost, stack in costs:
            size = self.context.layout.size * len(stack)
            if chosen and (total + cost > fair or numbers + size > NUMBERS):
                yield chosen
                chosen, total, numbers = [], 0.0, 0
            chosen.append(stack)
            total, numbers = total + cost, numbers + size
        if chosen:
            yield chosen

    def _assign(self) -> None:
        """Give waiting tasks to the actors that have least to do."""
        ready = self.pool.ready
        while self._waiting:
            free = [actor for actor in ready if len(actor.work) < AT_ONCE]
            if not free:
                return
            actor = min(free, key=lambda one: sum(task.cost for task in one.work))
            task = self._waiting.popleft()
            task.actor, task.references = actor, task.send(actor)
            actor.work.append(task)
            self._out.append(task)

    def _receive_answers(self) -> None:
        """Wait a moment for news, and note what actors have computed."""
        ray = self.pool.ray
        answers = {task.references[0]: task for task in self._out}
        awaited = [*answers, *self.pool.replies()]
        if not awaited:
            self.pool.pause(LOOK)
            return
        if not ray.wait(awaited, num_returns=1, timeout=LOOK, fetch_local=False)[0]:
            return
        there, _ = ray.wait(awaited, num_returns=len(awaited), timeout=0, fetch_local=False)
        for reference in there:
            if reference in answers:
                self._receive(answers[reference])

    def _receive(self, task: ClusterTask) -> None:
        actor, errors = task.actor, self.pool.ray.exceptions
        assert actor is not None
        try:
            task.check()
        except errors.OutOfMemoryError as error:
            raise ClusterError(
                f"cluster: node {actor.node} ran out of memory, and Ray ended an actor. Give each actor more of a node "
                f"with --per-actor, or use nodes with more memory. Ray reports: {error}"
            ) from None
        except (errors.RayActorError, errors.ObjectLostError, errors.GetTimeoutError):
            self.pool.lose(actor)  # the next tick returns its tasks
            return
        task.answered = True
        actor.work.remove(task)
        self._out.remove(task)

    def _collect(self, task: ClusterTask) -> None:
        errors = self.pool.ray.exceptions
        try:
            task.collect()
        except (errors.ObjectLostError, errors.GetTimeoutError, errors.RayActorError):
            self._again(task)  # the node that had the results is lost
        else:
            task.done, task.references = True, ()

    def _take_back(self, actor: PooledActor) -> None:
        """Give the tasks of a lost actor to others."""
        self.losses += 1
        warnings.warn(
            f"cluster: an actor on node {actor.node or 'unknown'} is lost; its work is done again.",
            ArchipelWarning,
            stacklevel=2,
        )
        for task in reversed(actor.work):
            self._out.remove(task)
            self._again(task)

    def _again(self, task: ClusterTask) -> None:
        task.actor, task.references, task.answered = None, (), False
        task.attempts += 1
        if task.attempts < ATTEMPTS:
            self._waiting.appendleft(task)
        else:
            self._compute_here(task)

    def _compute_here(self, task: ClusterTask) -> None:
        task.compute_here()
        task.done = True


@dataclass(frozen=True)
class ClusterScore:
    """A score that the cluster computes."""

    executor: ClusterExecutor
    task: ScoreModel

    def result(self) -> ScoreTable:
        """Wait for the score."""
        self.executor.finish(self.task)
        assert self.task.answer is not None
        return self.task.answer

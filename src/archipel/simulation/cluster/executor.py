"""An executor whose jobs are computed on a Ray cluster, to the bits of the executor that works inside each actor.

The inner executor divides jobs into stacks, from the jobs alone; a task carries some stacks to an actor. A task
of a lost actor is given to another one, or computed in this process if there is none: no result depends on where it was
computed.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from archipel.core.checks import ArchipelWarning
from archipel.core.types import Score, ScoreTable
from archipel.executors.interface import Executor, PendingResult
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.probes import Parts
from archipel.simulation.cluster.actor_pool import ActorPool, PooledActor
from archipel.simulation.cluster.cluster_tasks import ClusterTask, ScoreModel, Stage, TrainStacks, cost_of
from archipel.simulation.cluster.connection import ClusterLost
from archipel.simulation.cluster.placed_models import PlacedModels

AT_ONCE = 2
"""Tasks that an actor has at a time: the next one travels while it works."""
ATTEMPTS = 3
"""Actors that a task may be lost with before it is computed in this process."""
NUMBERS = 1 << 22
"""Parameters of a task's models at most, unless a single stack has more."""
FETCHED = 1 << 26
"""Parameters of trained models that are fetched before they are needed; the others stay with their nodes."""
LOOK = 0.25
"""Longest wait between two checks of the pool, in seconds."""


class ClusterExecutor:
    """Trains jobs, and scores large networks, on the actors of a pool."""

    def __init__(
        self,
        inner: Executor,
        context: TrainingContext,
        pool: ActorPool,
        *,
        one_by_one: bool,
        scores: bool,
        disconnect: Callable[[], None] = lambda: None,
    ) -> None:
        """one_by_one: the inner executor makes no stacks.

        scores: models are scored on the cluster, too; small networks are scored faster here.
        """
        self.name, self.reason = inner.name, inner.reason
        self.inner = inner
        self.context = context
        self.pool = pool
        self.one_by_one = one_by_one
        self.scores = scores
        self._disconnect = disconnect
        self._placed = PlacedModels(pool.ray, context.layout.size)
        self._waiting: deque[ClusterTask] = deque()
        self._answered: deque[ClusterTask] = deque()
        """Computed by actors, and not fetched yet."""
        self._fetched = 0
        """Parameters of models that were fetched, or are on their way, and were not needed yet."""
        self._training: dict[Job, TrainStacks] = {}
        self.losses = 0
        """Actors that were lost."""

    @property
    def ahead(self) -> int:
        """Return how many jobs keep all actors busy; 0 if jobs are trained in stacks."""
        return AT_ONCE * max(1, len(self.pool.actors)) if self.one_by_one else 0

    def running(self) -> AbstractContextManager[None]:
        """Prepare torch as the inner executor does; raise if the cluster was lost since the last call."""
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

    def drop(self, job: Job) -> None:
        """Give a job up; do not train it if no actor has it yet and it is alone."""
        task = self._training.pop(job, None)
        if task is not None and not any(other in self._training for other in task.jobs):
            for queue in (self._waiting, self._answered):
                if task in queue:
                    queue.remove(task)
            self._release(task)
            task.stage = Stage.DROPPED

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
        self._answered.clear()
        self._training.clear()
        self.inner.close()
        self._disconnect()

    def finish(self, task: ClusterTask) -> None:
        """Work on all tasks until the results of this one are here."""
        while task.stage is not Stage.DONE:
            self.look()
            if task.stage is Stage.FETCHED:
                self._collect(task)
            elif task.stage is Stage.ANSWERED:
                self._fetch(task)
            elif self._waiting and not self.pool.ready and not self.pool.expected:
                self._compute_here(self._waiting.popleft())
            else:
                self.pool.wait(LOOK)

    def look(self) -> None:
        """Check the pool: give the work of lost actors to others, and waiting work to free actors."""
        for actor in self.pool.tick():
            self._take_back(actor)
        if self.pool.differences:
            self.reason = "; ".join(filter(None, (self.inner.reason, *self.pool.differences)))
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
        free = [actor for actor in self.pool.ready if len(actor.work) < AT_ONCE] if self._waiting else []
        while self._waiting and free:
            actor = min(free, key=lambda one: sum(task.cost for task in one.work))
            task = self._waiting.popleft()
            task.stage, task.actor = Stage.OUT, actor
            actor.work.append(task)
            self.pool.expect(actor, task.send(actor), partial(self._receive, task))
            if len(actor.work) == AT_ONCE:
                free.remove(actor)

    def _receive(self, task: ClusterTask, answer: Any) -> None:
        """Note an answer; fetch what belongs to it if there is room."""
        assert task.actor is not None
        task.actor.work.remove(task)
        if task.stage is Stage.DROPPED:
            return
        task.receive(answer)
        if task.stage is Stage.ANSWERED:
            task.actor.results.append(task)
            self._answered.append(task)
            self._fetch_some()

    def _fetch_some(self) -> None:
        """Fetch results in the order in which they were computed, as many as there is room for."""
        while self._answered and self._fetched + self._answered[0].size <= FETCHED:
            self._fetch(self._answered[0])

    def _fetch(self, task: ClusterTask) -> None:
        assert task.actor is not None
        self._answered.remove(task)
        self._fetched += task.size
        task.stage = Stage.FETCHING
        self.pool.expect(task.actor, task.beside, partial(self._arrived, task))

    def _arrived(self, task: ClusterTask, results: Any) -> None:
        if task.stage is Stage.FETCHING:
            task.results, task.stage = results, Stage.FETCHED

    def _collect(self, task: ClusterTask) -> None:
        """Take over results that were fetched."""
        task.collect()
        self._release(task)
        task.stage = Stage.DONE
        self._fetch_some()

    def _release(self, task: ClusterTask) -> None:
        """Let the cluster forget the results of a task."""
        if task.stage in (Stage.FETCHING, Stage.FETCHED):
            self._fetched -= task.size
        if task.actor is not None and task in task.actor.results:
            task.actor.results.remove(task)
        task.results = task.beside = None

    def _take_back(self, actor: PooledActor) -> None:
        """Give the tasks of a lost actor to others, also those whose results it still has."""
        self.losses += 1
        warnings.warn(
            f"cluster: an actor on node {actor.node or 'unknown'} is lost; its work is done again.",
            ArchipelWarning,
            stacklevel=2,
        )
        lost = [task for task in (*actor.results, *actor.work) if task.stage not in (Stage.FETCHED, Stage.DROPPED)]
        for task in reversed(lost):
            self._again(task)

    def _again(self, task: ClusterTask) -> None:
        if task.stage is Stage.ANSWERED:
            self._answered.remove(task)
        self._release(task)
        task.stage, task.actor = Stage.WAITING, None
        task.attempts += 1
        if task.attempts < ATTEMPTS:
            self._waiting.appendleft(task)
        else:
            self._compute_here(task)

    def _compute_here(self, task: ClusterTask) -> None:
        task.compute_here()
        task.stage = Stage.DONE


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

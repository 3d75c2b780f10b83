"""An executor whose jobs are computed on a Ray cluster, to the bits of the executor that works inside each actor.

The inner executor divides jobs into stacks, from the jobs alone; an assignment carries some stacks to an actor. What an
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
from archipel.core.types import Score, Tallies
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.probes import Parts
from archipel.simulation.cluster.actor_pool import ActorPool, PooledActor
from archipel.simulation.cluster.assignments import Assignment, PlacedModels, ScoreModel, TrainStacks, cost_of
from archipel.simulation.cluster.connection import ClusterError, ClusterLost
from archipel.simulation.executors.interface import Executor, Pending

AT_ONCE = 2
"""Assignments that an actor has at a time: the next one travels while it works."""
ATTEMPTS = 3
"""Actors that an assignment may be lost with before it is computed in this process."""
NUMBERS = 1 << 22
"""Parameters of an assignment's models at most, unless a single stack has more."""
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
        scores: bool,
        disconnect: Callable[[], None] = lambda: None,
    ) -> None:
        """scores: models are scored on the cluster, too; small networks are scored faster here."""
        self.name = inner.name
        self.inner = inner
        self.context = context
        self.pool = pool
        self.scores = scores
        self._disconnect = disconnect
        self._placed = PlacedModels(pool.ray)
        self._waiting: deque[Assignment] = deque()
        self._out: list[Assignment] = []
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
            assignment = TrainStacks(self._placed, self.inner, stacks, epochs)
            self._waiting.append(assignment)
            self._training.update(dict.fromkeys(assignment.jobs, assignment))
        self._assign()

    def wait(self, job: Job | None = None) -> None:
        """Return when this job, or every job, has been trained as far as was asked for."""
        for one in list(self._training) if job is None else [job]:
            assignment = self._training.get(one)
            if assignment is not None:
                self.finish(assignment)
                for trained in assignment.jobs:
                    self._training.pop(trained, None)

    def score(self, model: Tensor, parts: Parts, probe: Score, *, urgent: bool = False) -> Pending[Tallies]:
        """Score a model, on the cluster where that is worth it."""
        if not self.scores:
            return self.inner.score(model, parts, probe, urgent=urgent)
        assignment = ScoreModel(self._placed, self.inner, model, parts, probe)
        self._waiting.appendleft(assignment)
        self._assign()
        return ClusterScore(self, assignment)

    def close(self) -> None:
        """Stop all actors and drop what is being computed."""
        self.pool.close()
        self._waiting.clear()
        self._out.clear()
        self._training.clear()
        self.inner.close()
        self._disconnect()

    def finish(self, assignment: Assignment) -> None:
        """Work on all assignments until the results of this one are here."""
        while not assignment.done:
            self.look()
            if assignment.answered:
                self._collect(assignment)
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
        """Yield the stacks of each assignment: of like cost, and no more than fits."""
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
        """Give waiting assignments to the actors that have least to do."""
        ready = self.pool.ready
        while self._waiting:
            free = [actor for actor in ready if len(actor.work) < AT_ONCE]
            if not free:
                return
            actor = min(free, key=lambda one: sum(assignment.cost for assignment in one.work))
            assignment = self._waiting.popleft()
            assignment.actor, assignment.references = actor, assignment.send(actor)
            actor.work.append(assignment)
            self._out.append(assignment)

    def _receive_answers(self) -> None:
        """Wait a moment for news, and note what actors have computed."""
        ray = self.pool.ray
        answers = {assignment.references[0]: assignment for assignment in self._out}
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

    def _receive(self, assignment: Assignment) -> None:
        actor, errors = assignment.actor, self.pool.ray.exceptions
        assert actor is not None
        try:
            assignment.check()
        except errors.OutOfMemoryError as error:
            raise ClusterError(
                f"cluster: node {actor.node} ran out of memory, and Ray ended an actor. Give each actor more of a node "
                f"with --per-actor, or use nodes with more memory. Ray reports: {error}"
            ) from None
        except (errors.RayActorError, errors.ObjectLostError, errors.GetTimeoutError):
            self.pool.lose(actor)  # the next tick returns its assignments
            return
        assignment.answered = True
        actor.work.remove(assignment)
        self._out.remove(assignment)

    def _collect(self, assignment: Assignment) -> None:
        errors = self.pool.ray.exceptions
        try:
            assignment.collect()
        except (errors.ObjectLostError, errors.GetTimeoutError, errors.RayActorError):
            self._again(assignment)  # the node that had the results is lost
        else:
            assignment.done, assignment.references = True, ()

    def _take_back(self, actor: PooledActor) -> None:
        """Give the assignments of a lost actor to others."""
        self.losses += 1
        warnings.warn(
            f"cluster: an actor on node {actor.node or 'unknown'} is lost; its work is done again.",
            ArchipelWarning,
            stacklevel=2,
        )
        for assignment in reversed(actor.work):
            self._out.remove(assignment)
            self._again(assignment)

    def _again(self, assignment: Assignment) -> None:
        assignment.actor, assignment.references, assignment.answered = None, (), False
        assignment.attempts += 1
        if assignment.attempts < ATTEMPTS:
            self._waiting.appendleft(assignment)
        else:
            self._compute_here(assignment)

    def _compute_here(self, assignment: Assignment) -> None:
        assignment.compute_here()
        assignment.done = True


@dataclass(frozen=True)
class ClusterScore:
    """A score that the cluster computes."""

    executor: ClusterExecutor
    assignment: ScoreModel

    def result(self) -> Tallies:
        """Wait for the score."""
        self.executor.finish(self.assignment)
        assert self.assignment.answer is not None
        return self.assignment.answer

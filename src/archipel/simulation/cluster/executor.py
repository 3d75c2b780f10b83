"""An executor whose jobs are computed on a Ray cluster, to the bits of the executor that works inside each actor.

Jobs are divided into stacks by the inner executor, from the jobs alone; a message carries some stacks to an actor. What
an actor does not answer is given to another one, and computed in this process if there is none: no result depends on
where it was computed.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from archipel.core.checks import ArchipelWarning
from archipel.core.types import Score, Tallies
from archipel.learner.batches import epochs_of
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.probes import Parts
from archipel.simulation.cluster.connection import ClusterError
from archipel.simulation.cluster.crew import Crew, Member
from archipel.simulation.cluster.requests import JobFailure, JobReply, as_tensors, request_of
from archipel.simulation.executors.interface import Executor, Pending

AT_ONCE = 2
"""Messages that an actor has at a time: the next one travels while it works."""
ATTEMPTS = 3
"""Actors that a message may cost before it is computed in this process."""
NUMBERS = 1 << 22
"""Parameters of a message's models at most, unless a single stack has more."""
MODELS_KEPT = 4
"""Models whose references are kept for the next messages: in a stream, several tasks carry the same version."""
PARTS_KEPT = 256
"""Parts whose examples an actor keeps; after that it forgets all of them."""
SECONDS = 0.25
"""Longest wait between two looks at the crew."""

T = TypeVar("T")


@dataclass(eq=False)
class Message(Generic[T]):
    """Work for one actor."""

    cost: float
    """By which work is placed."""
    send: Callable[[Member], Sequence[Any]]
    """Start it on an actor; return its references: the first one tells how it ended."""
    receive: Callable[[Sequence[Any]], None]
    """Take over the results."""
    at_home: Callable[[], None]
    """Do it in this process."""
    references: Sequence[Any] = ()
    member: Member | None = None
    attempts: int = 0
    ended: bool = False


class ClusterExecutor:
    """Trains jobs, and scores large networks, on the actors of a crew."""

    def __init__(
        self,
        inner: Executor,
        context: TrainingContext,
        crew: Crew,
        *,
        scores: bool,
        disconnect: Callable[[], None] = lambda: None,
    ) -> None:
        """scores: models are scored on the cluster, too; small networks are scored faster here."""
        self.name = inner.name
        self.inner = inner
        self.context = context
        self.crew = crew
        self.scores = scores
        self._disconnect = disconnect
        self._waiting: deque[Message[Any]] = deque()
        self._out: list[Message[Any]] = []
        self._message_of: dict[Job, Message[Any]] = {}
        self._models: OrderedDict[int, tuple[Tensor, Any]] = OrderedDict()

    @property
    def lost(self) -> str | None:
        """Return why the cluster is lost; work goes on in this process."""
        return self.crew.gone

    def running(self) -> AbstractContextManager[None]:
        """Prepare torch as the inner executor does."""
        return self.inner.running()

    def submit(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        """Start to train jobs for this many epochs, or to their ends."""
        for stacks in self._divided([job for job in jobs if not job.done], epochs):
            training = _Training(self, stacks, epochs)
            message = Message(training.cost, training.send, training.receive, training.at_home)
            self._waiting.append(message)
            self._message_of.update(dict.fromkeys(training.jobs, message))
        self._assign()

    def wait(self, job: Job | None = None) -> None:
        """Return when this job, or every job, has been trained as far as was asked for."""
        for one in list(self._message_of) if job is None else [job]:
            message = self._message_of.get(one)
            if message is not None:
                self.finish(message)

    def score(self, model: Tensor, parts: Parts, probe: Score, *, urgent: bool = False) -> Pending[Tallies]:
        """Score a model, on the cluster where that is worth it."""
        if not self.scores:
            return self.inner.score(model, parts, probe, urgent=urgent)
        scoring = _Scoring(self, model, parts, probe)
        self._waiting.appendleft(scoring.message)
        self._assign()
        return scoring

    def close(self) -> None:
        """Stop all actors and drop what is being computed."""
        self.crew.close()
        self._waiting.clear()
        self._out.clear()
        self._message_of.clear()
        self._models.clear()
        self.inner.close()
        self._disconnect()

    # ----------------------------------------------------------------------------------------------- for its messages

    def reference(self, model: Tensor) -> Any:
        """Put a model into the cluster once."""
        kept = self._models.pop(id(model), None)
        if kept is None:
            kept = (model, self.crew.ray.put(model.cpu().numpy()))
        self._models[id(model)] = kept
        while len(self._models) > MODELS_KEPT:
            self._models.popitem(last=False)
        return kept[1]

    def forget(self, jobs: Sequence[Job]) -> None:
        """Note that these jobs have been trained."""
        for job in jobs:
            self._message_of.pop(job, None)

    def finish(self, message: Message[Any]) -> None:
        """Work on all messages until this one has ended."""
        while not message.ended:
            for member in self.crew.tick():
                self._take_back(member)
            self._assign()
            if self._waiting and not self.crew.ready and not self.crew.expected:
                self._do_at_home(self._waiting.popleft())
            else:
                self._receive_some()

    # ------------------------------------------------------------------------------------------------- how they travel

    def _divided(self, jobs: Sequence[Job], epochs: int | None) -> Iterator[list[list[Job]]]:
        """Yield the stacks of each message: of like cost, and no more than can be held."""
        stacks = self.inner.divide(jobs)
        if not stacks:
            return
        stacks.sort(key=lambda stack: -_cost(stack, epochs))
        places = max(1, AT_ONCE * len(self.crew.ready))
        fair = sum(_cost(stack, epochs) for stack in stacks) / places
        message: list[list[Job]] = []
        cost, numbers, size = 0.0, 0, self.context.layout.size
        for stack in stacks:
            if message and (cost >= fair or numbers + size * len(stack) > NUMBERS):
                yield message
                message, cost, numbers = [], 0.0, 0
            message.append(stack)
            cost += _cost(stack, epochs)
            numbers += size * len(stack)
        yield message

    def _assign(self) -> None:
        """Give waiting messages to the members that have least to do."""
        ready = self.crew.ready
        while self._waiting:
            free = [member for member in ready if len(member.messages) < AT_ONCE]
            if not free:
                return
            member = min(free, key=lambda one: one.load)
            message = self._waiting.popleft()
            message.member = member
            message.references = message.send(member)
            member.messages.append(message)
            member.load += message.cost
            self._out.append(message)

    def _receive_some(self) -> None:
        """Wait a moment for news, and take over what has ended."""
        ray = self.crew.ray
        first = {message.references[0]: message for message in self._out}
        awaited = [*first, *self.crew.replies()]
        if not awaited:
            self.crew.pause(SECONDS)
            return
        found, _ = ray.wait(awaited, num_returns=1, timeout=SECONDS, fetch_local=False)
        if found:
            found, _ = ray.wait(awaited, num_returns=len(awaited), timeout=0, fetch_local=False)
        for reference in found:
            if reference in first:
                self._receive(first[reference])

    def _receive(self, message: Message[Any]) -> None:
        ray, member = self.crew.ray, message.member
        assert member is not None
        errors = ray.exceptions
        try:
            message.receive(message.references)
        except errors.OutOfMemoryError as error:
            raise ClusterError(
                f"cluster: node {member.node} ran out of memory, and Ray has ended the actor. Give each actor more of a "
                f"node with --per-actor, or use nodes with more memory. Ray reports: {error}"
            ) from None
        except (errors.RayActorError, errors.ObjectLostError, errors.GetTimeoutError):
            self.crew.lose(member)  # its messages come back with the next tick
            return
        self._ended(message)

    def _ended(self, message: Message[Any]) -> None:
        message.ended, message.references = True, ()
        if message.member is not None:
            message.member.messages.remove(message)
            message.member.load -= message.cost
            self._out.remove(message)

    def _take_back(self, member: Member) -> None:
        """Put the messages of a lost member back into the line."""
        warnings.warn(
            f"cluster: lost the actor on node {member.node or 'unknown'}; its work is done again.",
            ArchipelWarning,
            stacklevel=2,
        )
        for message in reversed(member.messages):
            self._out.remove(message)
            message.member, message.references = None, ()
            message.attempts += 1
            if message.attempts < ATTEMPTS:
                self._waiting.appendleft(message)
            else:
                self._do_at_home(message)
        member.messages = []

    def _do_at_home(self, message: Message[Any]) -> None:
        message.at_home()
        message.ended = True


class _Training:
    """A message that trains stacks of jobs."""

    def __init__(self, executor: ClusterExecutor, stacks: list[list[Job]], epochs: int | None) -> None:
        self.executor = executor
        self.stacks = stacks
        self.epochs = epochs
        self.jobs = [job for stack in stacks for job in stack]
        self.cost = sum(_cost(stack, epochs) for stack in stacks)

    def send(self, member: Member) -> Sequence[Any]:
        """Start it on an actor."""
        models: dict[int, tuple[int, Any]] = {}

        def place(model: Tensor) -> int:
            if id(model) not in models:
                models[id(model)] = len(models), self.executor.reference(model)
            return models[id(model)][0]

        requests = []
        for stack in self.stacks:
            requests.append([])
            for job in stack:
                anchor = None if job.anchor is None else place(job.anchor)
                known = id(job.learner) in member.learners
                requests[-1].append(request_of(job, place(job.vector), anchor, known=known))
                member.learners[id(job.learner)] = job.learner
        references = [reference for _, reference in models.values()]
        train = member.handle.train.options(num_returns=2)
        return train.remote(requests, self.epochs, *references)  # type: ignore[no-any-return]

    def receive(self, references: Sequence[Any]) -> None:
        """Take over what has changed."""
        ray = self.executor.crew.ray
        replies = ray.get(references[0], timeout=60)
        _raise_failure(replies)
        models = ray.get(references[1], timeout=600)
        for job, reply, model in zip(self.jobs, replies, models, strict=True):
            assert isinstance(reply, JobReply)
            job.epochs, job.losses, job.validation = reply.epochs, reply.losses, reply.validation
            job.memory = as_tensors(reply.memory)
            job.vector = torch.from_numpy(model.copy()).to(job.vector.device)
        self.executor.forget(self.jobs)

    def at_home(self) -> None:
        """Train in this process."""
        for stack in self.stacks:
            self.executor.inner.submit(stack, self.epochs)
        self.executor.inner.wait()
        self.executor.forget(self.jobs)


class _Scoring:
    """A message that scores a model, and its result."""

    def __init__(self, executor: ClusterExecutor, model: Tensor, parts: Parts, probe: Score) -> None:
        self.executor = executor
        self.model = model
        self.parts = parts
        self.probe = probe
        self.answer: Tallies | None = None
        self.message: Message[Tallies] = Message(len(parts.examples), self._send, self._receive, self._at_home)

    def result(self) -> Tallies:
        """Wait for the score."""
        self.executor.finish(self.message)
        assert self.answer is not None
        return self.answer

    def _send(self, member: Member) -> Sequence[Any]:
        key, known = id(self.parts), id(self.parts) in member.parts
        forget = not known and len(member.parts) == PARTS_KEPT
        if forget:
            member.parts.clear()
        member.parts[key] = self.parts
        examples = None if known else (self.parts.examples.numpy(), self.parts.sizes)
        model = self.executor.reference(self.model)
        return [member.handle.score.remote(key, examples, forget, self.probe.bins, model)]

    def _receive(self, references: Sequence[Any]) -> None:
        found = self.executor.crew.ray.get(references[0], timeout=60)
        _raise_failure(found)
        self.answer = found

    def _at_home(self) -> None:
        self.answer = self.executor.inner.score(self.model, self.parts, self.probe, urgent=True).result()


def _cost(stack: Sequence[Job], epochs: int | None) -> float:
    """Return the examples that a stack will have trained on, by which work is placed."""
    return float(sum(job.plan.batch * (_last_step(job, epochs) - job.steps) for job in stack))


def _last_step(job: Job, epochs: int | None) -> int:
    end = epochs_of(job.plan, job.examples)
    return job.steps_at(end if epochs is None else min(end, job.epochs + epochs))


def _raise_failure(found: object) -> None:
    if isinstance(found, JobFailure):
        whom = f" of learner {', '.join(found.learners[:3])}" if found.learners else ""
        more = f" and {len(found.learners) - 3} others" if len(found.learners) > 3 else ""
        raise ClusterError(f"cluster: training{whom}{more} failed on node {found.node}:\n{found.story}")

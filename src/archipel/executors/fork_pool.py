"""Train stacks of jobs in this process and forked ones.

If a process fails, its stack is trained in this one, so failures do not change results.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from archipel.core.types import Plan
from archipel.executors.forking import close_all, fork, shared_numbers
from archipel.kernels.threads import threads
from archipel.learner.example_budget import StepNoise
from archipel.learner.learner import Job, Learner

TrainStack: TypeAlias = Callable[[Sequence[Job], int | None], None]
"""Trains a stack of jobs for a number of epochs, or until they are done."""

KNOWN = 1 << 16
"""Most learners whose examples a process caches; beyond that it clears its cache."""
ROWS = 3
"""Vectors of a job that both processes use: the model, the model it received, and the shift."""


class ForkPool:
    """A pool of as many processes as torch has threads, this one included; without fork, of this one alone.

    Models are copied by one thread: after a parallel copy torch's threads spin for some milliseconds on cores that the
    processes need.
    """

    def __init__(self, count: int, numbers: int) -> None:
        """numbers: most parameters of a stack."""
        self.count = count if sys.platform == "linux" else 1
        self.numbers = numbers
        self._workers: list[_Worker] = []
        self._out: list[tuple[_Worker, Sequence[Job], int | None]] = []
        """Workers that are training, their stacks and epochs."""
        self._jobs_out: set[int] = set()
        """Identities of the jobs in those stacks."""
        weakref.finalize(self, _close_workers, self._workers)

    @threads(1)
    def submit(self, stacks: Sequence[Sequence[Job]], epochs: int | None, train: TrainStack) -> None:
        """Train all stacks, each process one at a time. Results do not depend on the number of processes.

        Workers may still be training when it returns: call `wait` before reading a job.
        """
        for start in range(0, len(stacks), self.count):
            self.wait(train)
            own, *others = stacks[start : start + self.count]
            while len(self._workers) < len(others):
                self._workers.append(_Worker(train, self.numbers))
            for worker, stack in zip(self._workers, others, strict=False):
                worker.send(stack, epochs)
                self._out.append((worker, stack, epochs))
                self._jobs_out.update(map(id, stack))
            train(own, epochs)

    @threads(1)
    def wait(self, train: TrainStack, job: Job | None = None) -> None:
        """Wait until this job, or all jobs, have been trained."""
        if job is not None and id(job) not in self._jobs_out:
            return
        out, self._out = self._out, []
        self._jobs_out.clear()
        try:
            failed = [(stack, epochs) for worker, stack, epochs in out if not worker.receive(stack)]
        except BaseException:
            self.close()  # discard partially read replies
            raise
        if failed:
            self.close()
        for stack, epochs in failed:  # succeeds here, or raises the error
            train(stack, epochs)

    def close(self) -> None:
        """Stop all workers; `wait` trains their unfinished stacks in this process."""
        _close_workers(self._workers)


class _Worker:
    """The parent's side of a worker process."""

    def __init__(self, train: TrainStack, numbers: int) -> None:
        self._memory = _SharedRows(numbers)
        self._known: dict[int, Learner] = {}
        """Learners whose examples the process has, by identity."""
        self.connection = fork(_serve, train, self._memory)

    def send(self, jobs: Sequence[Job], epochs: int | None) -> None:
        """Send a stack to the process."""
        count, size = len(jobs), jobs[0].vector.numel()
        rows = self._memory.rows(count, size)
        row_of: dict[int, int] = {}
        """Rows of vectors by identity: in a round all jobs start from the same one."""
        requests = []
        forget = len(self._known) + count > KNOWN
        if forget:
            self._known.clear()
        for i, job in enumerate(jobs):
            learner, examples = job.learner, None
            if id(learner) not in self._known:
                self._known[id(learner)] = learner
                examples = (learner.name, learner.train.numpy(), learner.validation.numpy())
            places = []
            for row, vector in zip(range(i, ROWS * count, count), _vectors(job), strict=True):
                if vector is not None and id(vector) not in row_of:
                    row_of[id(vector)] = row
                    rows[row].copy_(vector)
                places.append(None if vector is None else row_of[id(vector)])
            progress = (job.epochs, job.losses, _as_arrays(job.memory), _as_arrays(job.kept), job.plain)
            requests.append((id(learner), examples, places, job.plan, job.key, job.noise, *progress))
        with suppress(OSError):  # a process that died is noticed when its reply is read
            self.connection.send((size, epochs, forget, requests))

    def receive(self, jobs: Sequence[Job]) -> bool:
        """Update the jobs from the reply; return False and leave them unchanged if the process has failed."""
        try:
            replies = self.connection.recv()
        except (EOFError, OSError):
            return False
        if replies is None:
            return False
        count = len(jobs)
        rows = self._memory.rows(count, jobs[0].vector.numel())
        for i, (job, reply) in enumerate(zip(jobs, replies, strict=True)):
            if reply is not None:
                job.epochs, job.losses, job.validation, memory, kept = reply
                job.vector = rows[i].clone()
                job.memory, job.kept = _as_tensors(memory), _as_tensors(kept)
        return True


def _close_workers(workers: list[_Worker]) -> None:
    close_all([worker.connection for worker in workers])
    workers.clear()


class _SharedRows:
    """Memory for the vectors of a stack, shared by two processes."""

    def __init__(self, numbers: int) -> None:
        self._numbers = shared_numbers(ROWS * numbers)
        self._last: tuple[tuple[int, int] | None, Sequence[Tensor]] = (None, ())

    def rows(self, count: int, size: int) -> Sequence[Tensor]:
        """Return rows for the vectors of this many jobs: first all models, then all anchors, then all shifts."""
        shape = (count, size)
        if self._last[0] != shape:  # raises if they do not fit
            self._last = shape, self._numbers[: ROWS * count * size].view(ROWS * count, size).unbind()
        return self._last[1]


def _vectors(job: Job) -> tuple[Tensor | None, ...]:
    return job.vector, job.anchor, job.shift


def _as_arrays(memory: dict[str, Any]) -> dict[str, Any]:
    """Convert tensors for a pipe, which copies arrays; torch would share the tensors between the processes."""
    return {
        name: value.numpy() if isinstance(value, Tensor) else _as_arrays(value) if isinstance(value, dict) else value
        for name, value in memory.items()
    }


def _as_tensors(memory: dict[str, Any]) -> dict[str, Any]:
    """Reverse `_as_arrays`."""
    return {
        name: torch.from_numpy(value.copy())
        if isinstance(value, np.ndarray)
        else _as_tensors(value)
        if isinstance(value, dict)
        else value
        for name, value in memory.items()
    }


# ---------------------------------------------------------------------------------------------- in the forked process


def _serve(connection: Connection, train: TrainStack, memory: _SharedRows) -> None:
    learners: dict[int, Learner] = {}
    while True:
        size, epochs, forget, requests = connection.recv()
        if forget:
            learners.clear()
        rows = memory.rows(len(requests), size)
        jobs = [_job(learners, rows, *request) for request in requests]
        before = [job.epochs for job in jobs]
        try:
            train(jobs, epochs)
        except Exception:  # the parent trains the same stack, and raises the same error
            connection.send(None)
            continue
        replies: list[tuple[Any, ...] | None] = []
        for i, job in enumerate(jobs):
            if job.epochs == before[i]:  # it was done already
                replies.append(None)
                continue
            rows[i].copy_(job.vector)
            own = _as_arrays(job.memory), _as_arrays(job.kept)
            replies.append((job.epochs, job.losses, job.validation, *own))
        connection.send(replies)


def _job(
    learners: dict[int, Learner],
    rows: Sequence[Tensor],
    identity: int,
    examples: tuple[str, Any, Any] | None,
    places: list[int | None],
    plan: Plan,
    key: int,
    noise: StepNoise | None,
    epochs: int,
    losses: list[float],
    memory: dict[str, Any],
    kept: dict[str, Any],
    plain: bool,
) -> Job:
    if examples is not None:
        name, train, validation = examples
        nothing = torch.empty(0, dtype=torch.int64)
        learners[identity] = Learner(name, torch.from_numpy(train), torch.from_numpy(validation), nothing)
    vector, anchor, shift = (None if row is None else rows[row] for row in places)
    assert vector is not None
    own: dict[str, Any] = {"shift": shift, "noise": noise, "kept": _as_tensors(kept), "plain": plain}
    return Job(learners[identity], plan, vector, anchor, key, epochs, losses, _as_tensors(memory), **own)

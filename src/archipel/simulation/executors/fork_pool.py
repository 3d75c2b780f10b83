"""More hands: forked processes that train stacks of learners, or try a model, beside this one.

Threads do not help a small network: every operation takes the interpreter's lock, and handing it to and fro takes
longer than the operation. A fork has the data and the network without a copy, as the workers of torch's DataLoader do,
and computes with one thread. It is gone when its pipe closes. What it fails at is done here instead, so that nothing
depends on it but time.
"""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import select
import signal
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeAlias

import torch
from torch import Tensor

from archipel.core.types import Plan
from archipel.learner.learner import Job, Learner

Advance: TypeAlias = Callable[[Sequence[Job], int | None], None]
"""Carries a stack of jobs on by so many epochs, or to their ends."""

ROWS = 3
"""Vectors of a job that travel: the model, the model it received, and the momentum."""
QUESTIONS = 64
"""Questions of an errand that may be out at a time,"""
NUMBERS_OUT = 1 << 22
"""the parameters of the models they are about,"""
BYTES_OUT = 1 << 16
"""and their bytes, beside the models: a pipe holds as many."""


class Hands:
    """As many processes as there are cores to use, this one included; without fork, this one alone."""

    def __init__(self, count: int, numbers: int) -> None:
        """numbers: parameters of a stack at most."""
        self.count = count if sys.platform == "linux" else 1
        self.numbers = numbers
        self._others: list[_Hand] = []
        self._out: list[tuple[_Hand, Sequence[Job], int | None]] = []
        """Who is at which stack, and for how many epochs."""
        self._away: set[int] = set()
        """Identities of the jobs in them."""
        weakref.finalize(self, _dismiss, self._others)

    def advance(self, stacks: Sequence[Sequence[Job]], epochs: int | None, advance: Advance) -> None:
        """Carry all stacks on, as many at a time as there are hands. What comes out does not depend on their number.

        The others may still be at the last ones when it returns: `settle` before a job is looked at.
        """
        for start in range(0, len(stacks), self.count):
            self.settle(advance)
            mine, *theirs = stacks[start : start + self.count]
            while len(self._others) < len(theirs):
                self._others.append(_Hand(advance, self.numbers))
            for hand, stack in zip(self._others, theirs, strict=False):
                hand.give(stack, epochs)
                self._out.append((hand, stack, epochs))
                self._away.update(map(id, stack))
            advance(mine, epochs)

    def settle(self, advance: Advance, job: Job | None = None) -> None:
        """Have this job, or all, at hand."""
        if job is not None and id(job) not in self._away:
            return
        out, self._out = self._out, []
        self._away.clear()
        try:
            undone = [(stack, epochs) for hand, stack, epochs in out if not hand.take(stack)]
        except BaseException:
            _dismiss(self._others)  # an answer half read is none
            raise
        if undone:  # a process died or failed: here it works, or says why not
            _dismiss(self._others)
        for stack, epochs in undone:
            advance(stack, epochs)


class _Hand:
    """The near side of one process."""

    def __init__(self, advance: Advance, numbers: int) -> None:
        self._room = _Room(numbers)
        self._known: dict[int, Learner] = {}
        """Learners whose examples it knows, by their identity."""
        self.connection = _forked(_train, advance, self._room)

    def give(self, jobs: Sequence[Job], epochs: int | None) -> None:
        count, size = len(jobs), jobs[0].vector.numel()
        rows = self._room.rows(count, size)
        laid: dict[int, int] = {}
        """In which row a vector lies, by its identity: in a round all jobs begin with the same one."""
        tickets = []
        for i, job in enumerate(jobs):
            learner, examples = job.learner, None
            if id(learner) not in self._known:
                self._known[id(learner)] = learner
                examples = (learner.name, learner.train.numpy(), learner.validation.numpy())
            numbers = []
            for row, vector in zip(range(i, ROWS * count, count), _vectors(job), strict=True):
                if vector is not None and id(vector) not in laid:
                    laid[id(vector)] = row
                    rows[row].copy_(vector)
                numbers.append(None if vector is None else laid[id(vector)])
            tickets.append((id(learner), examples, numbers, job.plan, job.epochs, job.losses))
        with suppress(OSError):  # a dead one shows when its answer is taken
            self.connection.send((size, epochs, tickets))

    def take(self, jobs: Sequence[Job]) -> bool:
        """Take over what it has done; False, and the jobs are as they were, if it has failed."""
        try:
            answers = self.connection.recv()
        except (EOFError, OSError):
            return False
        if answers is None:
            return False
        count = len(jobs)
        rows = self._room.rows(count, jobs[0].vector.numel())
        for i, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
            if answer is not None:
                job.epochs, job.losses, job.validation, remembers = answer
                job.vector = rows[i].clone()
                job.memory = {"momentum": rows[2 * count + i].clone()} if remembers else {}
        return True


def _dismiss(hands: list[_Hand]) -> None:
    _hang_up([hand.connection for hand in hands])
    hands.clear()


class _Room:
    """Memory that two processes share."""

    def __init__(self, numbers: int) -> None:
        self._numbers = torch.frombuffer(mmap.mmap(-1, 4 * ROWS * numbers), dtype=torch.float32)
        self._last: tuple[tuple[int, int] | None, Sequence[Tensor]] = (None, ())

    def rows(self, count: int, size: int) -> Sequence[Tensor]:
        """Places for the vectors of so many jobs: first all models, then all anchors, then all momenta."""
        asked = (count, size)
        if self._last[0] != asked:  # an error where they do not fit
            self._last = asked, self._numbers[: ROWS * count * size].view(ROWS * count, size).unbind()
        return self._last[1]


def _vectors(job: Job) -> tuple[Tensor | None, ...]:
    return job.vector, job.anchor, job.memory.get("momentum")


class Errand:
    """A process that tries models one after the other while this one goes on; answers are fetched when they are needed.

    Models lie in shared memory, so that a question is short, and all that are out fit into the pipe: this side never
    waits for the other one to read, whatever the other one waits for.
    """

    def __init__(self, answer: Callable[..., Any]) -> None:
        """answer: what is done with a model and what else a question says; models are all of one size."""
        self._answer = answer
        self._connection: list[Connection] = []
        """None or one."""
        self._rows: Tensor = torch.empty(0)
        """Room for models, one row each: the n-th question's is in the n-th row, counted round and round."""
        self._asked = 0
        """Questions so far."""
        self._out: deque[_Question] = deque()
        self._answers: dict[int, Any] = {}
        weakref.finalize(self, _hang_up, self._connection)

    def begin(self, number: int, model: Tensor, *further: Any) -> None:
        """Have the question answered under this number."""
        if not len(self._rows):
            count = max(1, min(QUESTIONS, NUMBERS_OUT // model.numel()))
            self._rows = torch.frombuffer(mmap.mmap(-1, 4 * count * model.numel()), dtype=torch.float32).view(count, -1)
        row = self._asked % len(self._rows)
        message = ForkingPickler.dumps((row, further))
        while self._out and not self._has_room(len(message)):
            self._land()
        if not self._connection:
            self._connection.append(_forked(_reply, self._answer, self._rows))
        self._asked += 1
        self._rows[row].copy_(model)
        self._out.append(_Question(number, row, further, len(message)))
        with suppress(OSError):  # a dead one shows when its answer is taken
            self._connection[0].send_bytes(message)

    def _has_room(self, length: int) -> bool:
        """May one more question go out, and is no answer waiting?"""
        if not self._connection or len(self._out) == len(self._rows) or _has_spoken(self._connection[0]):
            return False
        return sum(question.length for question in self._out) + length <= BYTES_OUT

    def result(self, number: int) -> Any:
        while number not in self._answers:
            self._land()
        return self._answers.pop(number)

    def _land(self) -> None:
        """Have the answer to the oldest question; where the other process is gone or fails, it is found here."""
        found = None
        try:
            if self._connection:
                found = self._connection[0].recv()
        except (EOFError, OSError):
            pass
        except BaseException:
            _hang_up(self._connection)  # an answer half read is none
            raise
        question = self._out.popleft()
        if found is None:
            _hang_up(self._connection)
            found = self._answer(self._rows[question.row], *question.further)
        self._answers[question.number] = found


@dataclass(frozen=True, slots=True)
class _Question:
    number: int
    row: int
    further: tuple[Any, ...]
    length: int
    """Bytes of it in the pipe."""


def _has_spoken(connection: Connection) -> bool:
    """As `connection.poll()`, which makes a selector first."""
    look = select.poll()
    look.register(connection, select.POLLIN)
    return bool(look.poll(0))


def _hang_up(connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()
    connections.clear()


# ------------------------------------------------------------------------------------------------- the far side


def _forked(serve: Callable[..., None], *given: Any) -> Connection:
    """Fork a process that serves; the near end of its pipe."""
    context = multiprocessing.get_context("fork")
    near, far = context.Pipe()
    context.Process(target=_begin, args=(near, serve, far, *given), daemon=True).start()
    far.close()
    return near


def _begin(near: Connection, serve: Callable[..., None], *given: Any) -> None:
    near.close()  # else the pipe would never be closed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that has the say
    torch.set_num_threads(1)
    gc.freeze()  # a collection would touch, and so copy, what is shared
    with suppress(EOFError, OSError):
        serve(*given)


def _reply(connection: Connection, answer: Callable[..., Any], rows: Tensor) -> None:
    while True:
        row, further = connection.recv()
        try:
            found = answer(rows[row], *further)
        except Exception:  # the other side asks itself, and tells
            found = None
        connection.send(found)


def _train(connection: Connection, advance: Advance, room: _Room) -> None:
    learners: dict[int, Learner] = {}
    while True:
        size, epochs, tickets = connection.recv()
        rows = room.rows(len(tickets), size)
        jobs = [_job(learners, rows, *ticket) for ticket in tickets]
        before = [job.epochs for job in jobs]
        try:
            advance(jobs, epochs)
        except Exception:  # the other side does the same work again, and tells
            connection.send(None)
            continue
        answers: list[tuple[Any, ...] | None] = []
        for i, job in enumerate(jobs):
            if job.epochs == before[i]:  # it was at its end, and stays as it is on the other side
                answers.append(None)
                continue
            rows[i].copy_(job.vector)
            if job.memory:
                rows[2 * len(jobs) + i].copy_(job.memory["momentum"])
            answers.append((job.epochs, job.losses, job.validation, bool(job.memory)))
        connection.send(answers)


def _job(
    learners: dict[int, Learner],
    rows: Sequence[Tensor],
    key: int,
    examples: tuple[str, Any, Any] | None,
    numbers: list[int | None],
    plan: Plan,
    epochs: int,
    losses: list[float],
) -> Job:
    if examples is not None:
        name, train, validation = examples
        nothing = torch.empty(0, dtype=torch.int64)
        learners[key] = Learner(name, torch.from_numpy(train), torch.from_numpy(validation), nothing)
    vector, anchor, momentum = (None if number is None else rows[number] for number in numbers)
    assert vector is not None
    memory = {} if momentum is None else {"momentum": momentum}
    return Job(learners[key], plan, vector, anchor, epochs, losses, memory)

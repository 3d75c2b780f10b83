"""Score models in a forked process while this one continues.

Models are in shared memory, so requests are short, and all open ones fit into the pipe: this process never blocks on
writing. If the process fails, its requests are computed in this one.
"""

from __future__ import annotations

import select
import sys
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

from archipel.core.types import Score, ScoreTable
from archipel.executors.forking import close_all, fork, shared_numbers
from archipel.executors.interface import KnownResult, PendingResult
from archipel.learner.learner import TrainingContext
from archipel.learner.probes import Parts, score_parts

WORTH_A_PROCESS = 5_000_000
"""Fewest multiplications of a score that is worth sending to the process."""
QUESTIONS = 64
"""Most open requests."""
NUMBERS_OUT = 1 << 22
"""Most parameters of their models."""
BYTES_OUT = 1 << 16
"""Most bytes of them without the models: the capacity of a pipe."""
PARTS_KEPT = 256
"""Most parts whose examples the process caches; beyond that it clears its cache."""


class ForkScorer:
    """A process that computes scores, one at a time."""

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        self.cores = torch.get_num_threads() if context.x.device.type == "cpu" and sys.platform == "linux" else 1
        self.connections: list[Connection] = []
        """None or one."""
        self._rows: Tensor = torch.empty(0)
        """Memory for models: the n-th request's is in row n, modulo the number of rows."""
        self._asked = 0
        """Number of requests so far."""
        self._out: deque[ScoreRequest] = deque()
        self._known: dict[int, Parts] = {}
        """Parts that the process has cached, by identity."""
        weakref.finalize(self, close_all, self.connections)

    def score(self, model: Tensor, parts: Parts, probe: Score, *, urgent: bool = False) -> PendingResult[ScoreTable]:
        """Score a model in the process if a core is free and it is worth it, otherwise or if urgent in this one."""
        worth = len(parts.examples) * self.context.layout.size > WORTH_A_PROCESS
        if urgent or self.cores < 2 or not worth:
            return KnownResult(self.score_here(model.to(self.context.x.device), parts, probe.bins))
        return self.ask(model, parts, probe.bins)

    def score_here(self, model: Tensor, parts: Parts, bins: int) -> ScoreTable:
        """Score a model in this process."""
        return score_parts(self.context, model, parts, bins)

    def ask(self, model: Tensor, parts: Parts, bins: int) -> ScoreRequest:
        """Send a request to the process."""
        if not len(self._rows):
            count = max(1, min(QUESTIONS, NUMBERS_OUT // model.numel()))
            self._rows = shared_numbers(count * model.numel()).view(count, -1)
        message = self._message(parts, bins)
        while self._out and not self._has_room(len(message)):
            self.receive()
        if not self.connections:  # a new process has no parts
            self._known.clear()
            message = self._message(parts, bins)
            self.connections.append(fork(_serve, self))
        row = self._asked % len(self._rows)
        self._asked += 1
        self._rows[row].copy_(model)
        question = ScoreRequest(self, row, parts, bins, len(message))
        self._out.append(question)
        with suppress(OSError):  # a process that died is noticed when its answer is read
            self.connections[0].send_bytes(message)
        return question

    def _message(self, parts: Parts, bins: int) -> memoryview:
        """Encode a request, with the examples unless the process has them."""
        new = id(parts) not in self._known
        forget = new and len(self._known) == PARTS_KEPT
        if forget:
            self._known.clear()
        self._known[id(parts)] = parts
        examples = (parts.examples.numpy(), parts.sizes) if new else None
        return ForkingPickler.dumps((self._asked % len(self._rows), id(parts), examples, forget, bins))

    def _has_room(self, length: int) -> bool:
        """Return whether another request fits, and no answer is waiting to be read."""
        if not self.connections or len(self._out) == len(self._rows) or _can_read(self.connections[0]):
            return False
        return sum(question.length for question in self._out) + length <= BYTES_OUT

    def receive(self) -> None:
        """Read the answer to the oldest request."""
        found = None
        try:
            if self.connections:
                found = self.connections[0].recv()
        except (EOFError, OSError):
            pass
        except BaseException:
            close_all(self.connections)  # discard a partially read answer
            raise
        question = self._out.popleft()
        if found is None:
            close_all(self.connections)
            try:
                found = self.score_here(self._rows[question.row], question.parts, question.bins)
            except Exception as error:  # belongs to this request, even while another is awaited
                question.error = error
        question.answer = found

    def serve(self, connection: Connection) -> None:
        """Answer requests; runs in the process."""
        known: dict[int, Parts] = {}
        while True:
            row, key, examples, forget, bins = connection.recv()
            if forget:
                known.clear()
            if examples is not None:
                known[key] = Parts(torch.from_numpy(examples[0]), examples[1])
            try:
                found: Any = self.score_here(self._rows[row], known[key], bins)
            except Exception:  # the parent computes the same score and raises the same error
                found = None
            connection.send(found)

    def close(self) -> None:
        """Stop the process; open requests are computed in this one."""
        close_all(self.connections)


@dataclass(eq=False, slots=True)
class ScoreRequest:
    """A score that the process computes."""

    scorer: ForkScorer
    row: int
    parts: Parts
    bins: int
    length: int
    """Its bytes in the pipe."""
    answer: ScoreTable | None = None
    error: Exception | None = None
    """The error that scoring raised."""

    def result(self) -> ScoreTable:
        """Wait for the answer."""
        while self.answer is None:
            if self.error is not None:
                raise self.error
            self.scorer.receive()
        return self.answer


def _serve(connection: Connection, scorer: ForkScorer) -> None:
    scorer.serve(connection)


def _can_read(connection: Connection) -> bool:
    """Return `connection.poll()`, without the cost of its selector."""
    look = select.poll()
    look.register(connection, select.POLLIN)
    return bool(look.poll(0))

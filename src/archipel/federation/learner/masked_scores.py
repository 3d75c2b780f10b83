"""A learner's scores in secure sums: counted once, kept on disk, and added up with the others'.

A score that was counted again, by another number of threads, could differ a little. Under the same masks the difference
would be seen, so what is sent is what was written down first.
"""

from __future__ import annotations

import torch

from archipel.core.parts.secure_sum import SecureSum
from archipel.core.pooled_scores import ScoreNumbers
from archipel.core.types import Scored
from archipel.federation.learner.local_state import HeldScore, StateFolder
from archipel.federation.learner.policy import Refusal
from archipel.federation.learner.sum_rounds import Signatures, SumRounds
from archipel.federation.wire import federation_pb2 as pb
from archipel.privacy.secure_sum.masks import Whole, whole_type
from archipel.privacy.secure_sum.sum_messages import SecureSumRefused

FILE = "score-sum.json"
MOST = 8
"""Scores that wait for their sums: a version is scored while the next ones are made."""


class MaskedScores(SumRounds):
    """The sums of scores."""

    def __init__(self, name: str, folder: StateFolder, settings: SecureSum, signatures: Signatures | None) -> None:
        super().__init__(FILE, name, folder, settings, signatures)

    def holds(self, task: int, question: str) -> bool:
        """Return whether the score that a question asks for is on disk; refuse another question in its place."""
        held = self._found(task)
        if held is not None and held.question != question:
            raise Refusal(f"the score {task} was asked of another model before")
        if held is None and task >= self._folder.memory.last_score:
            raise Refusal(f"the score {task} comes out of turn; scores are numbered downwards")
        return held is not None

    def hold(self, task: int, question: str, scored: Scored, numbers: ScoreNumbers) -> None:
        """Write a score down; what a sum may have is not replaced by a second count."""
        counted = HeldScore(task, question, torch.from_numpy(numbers.encode(scored)))
        memory = self._folder.memory
        with self._folder.lock:
            if self.holds(task, question):  # asked at the same time as another one, it may be held by now
                return
            memory.held.append(counted)
            if len(memory.held) > MOST:
                first = max(memory.held, key=lambda one: one.task)
                memory.last_score = min(memory.last_score, first.task)  # it is not counted a second time
                memory.held.remove(first)
            self._folder.save()

    def _admit(self, step: pb.SumStep) -> None:
        memory, held = self._folder.memory, self._found(step.task)
        if held is None or step.training != step.task or step.layers:
            raise SecureSumRefused(f"{self._name}: it has no score {step.task}.")
        if step.task >= memory.last_score:
            raise SecureSumRefused(f"{self._name}: the score {step.task} was in a sum before.")
        with self._folder.lock:
            memory.last_score = step.task
            self._folder.save()

    def _numbers(self, task: int) -> Whole | None:
        held = self._found(task)
        return None if held is None else held.numbers.numpy().view(whole_type(64))

    def _forget(self) -> None:
        memory = self._folder.memory
        with self._folder.lock:
            memory.held = [one for one in memory.held if one.task < memory.last_score]

    def _found(self, task: int) -> HeldScore | None:
        return next((one for one in self._folder.memory.held if one.task == task), None)

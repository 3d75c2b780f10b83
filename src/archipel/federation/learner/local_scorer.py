"""A learner's answers to questions about models: counted beside training, sent or, for a secure sum, kept."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch
from torch import Tensor

from archipel.core.frozen_weights import copied
from archipel.core.pooled_scores import ScoreNumbers
from archipel.federation.learner.masked_scores import MaskedScores
from archipel.federation.learner.site_data import LocalSite
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.kernels.threads import threads
from archipel.learner.learner import Learner, TrainingContext
from archipel.learner.personal_model import used_model
from archipel.learner.probes import score


class LocalScorer:
    """Scores models on a learner's own examples, with a second network."""

    def __init__(self, island: LocalSite, sums: MaskedScores | None) -> None:
        """Take a learner's site; sums: of scores, where the controller must not see single ones."""
        self._island, self._sums = island, sums
        self._threads = torch.get_num_threads()  # new threads inherit the number of threads that is set now
        self.work = self._copied()

    def _copied(self) -> TrainingContext:
        return replace(self._island.work, module=copied(self._island.work.module))

    def begin_anew(self) -> None:
        """Use the site's examples as they are now."""
        self.work = self._copied()

    def keeps(self, order: pb.Evaluate) -> bool:
        """Return whether the answer is on disk for a secure sum."""
        return self._sums is not None and self._sums.holds(order.task, question_of(order))

    def answer(self, order: pb.Evaluate, vector: Tensor, learner: Learner) -> pb.Scored:
        """Return the score of a model; without numbers if they are kept for a secure sum."""
        work, part = self.work, learner.validation if order.part == "validation" else learner.test
        with threads(self._threads):
            # evidence is about what was sent; scores for the records are numbered downwards
            own = learner.with_private(work.layout, vector) if order.task >= 0 else used_model(work, learner, vector)
            scored = score(work, own.to(work.x.device), part, order.bins)
        if self._sums is None:
            return messages.encode_scored(scored)
        numbers = ScoreNumbers(work.classes, order.bins, work.per_token)
        self._sums.hold(order.task, question_of(order), scored, numbers)
        return pb.Scored()


def question_of(order: pb.Evaluate) -> str:
    """Return a hash of what a question asks for."""
    said = pb.Evaluate(task=order.task, part=order.part, bins=order.bins, model=order.model)
    return hashlib.sha256(said.SerializeToString(deterministic=True)).hexdigest()

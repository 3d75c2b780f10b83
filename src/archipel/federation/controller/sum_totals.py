"""What secure sums add up: the updates of a round, or the scores of a version."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from archipel.core.parts.secure_sum import SecureSum, mean_model
from archipel.core.pooled_scores import ScoreNumbers
from archipel.core.types import AddUp, Evaluate, Event, Pooled, PooledScore, Summed, Traffic
from archipel.federation.storage.durable_controller import DurableController, Moved
from archipel.federation.storage.stored_models import Delivery, as_bytes
from archipel.federation.wire import federation_pb2 as pb
from archipel.privacy.secure_sum.masking_learner import Verify
from archipel.privacy.secure_sum.masks import Bits, Whole
from archipel.privacy.secure_sum.sum_collector import SumCollector


@dataclass(frozen=True)
class SumRules:
    """The settings of the study's secure sums."""

    sums: SecureSum
    equally: bool
    verify: Verify
    """Checks a learner's signature against the authority."""
    noise: float = 0.0
    """That any sum of a cohort has at least, in clips."""


@dataclass(frozen=True)
class AddScores:
    """Add up these learners' scores; an order of the engine, in answer to an `Evaluate` that is pooled."""

    question: Evaluate
    learners: tuple[str, ...]

    @property
    def task(self) -> int:
        return self.question.task


@dataclass(frozen=True)
class SumOutcome:
    """The event that a sum leads to, and what is written with it."""

    event: Event
    delivery: Delivery | None
    moved: Moved


class Total(Protocol):
    """One kind of sum."""

    bits: Bits
    size: int
    """Numbers of each learner."""
    traffic: Traffic
    """Bytes that were moved for it before, which a sum that fails has cost too."""

    def ask(self, learner: str, step: pb.SumStep) -> None:
        """Name what is added up, in the first request to a learner."""

    def outcome(self, total: Whole, collector: SumCollector) -> SumOutcome:
        """Return what the sum of the senders' numbers leads to; raise `ValueError` if they cannot have sent it."""


class UpdateTotal:
    """The sum of a round's updates."""

    def __init__(self, command: AddUp, rules: SumRules, durable: DurableController) -> None:
        self.bits: Bits = rules.sums.bits
        self.size = 1 + sum(durable.layout.layers[place].size for place in durable.layout.indices(command.layers))
        self.traffic = Traffic()
        self._command, self._rules, self._durable = command, rules, durable

    def ask(self, learner: str, step: pb.SumStep) -> None:
        step.training = self._command.tasks[self._command.learners.index(learner)]
        step.layers.extend(self._command.layers)

    def outcome(self, total: Whole, collector: SumCollector) -> SumOutcome:
        rules, command, layout, senders = self._rules, self._command, self._durable.layout, collector.senders
        places = layout.indices(command.layers)
        start = self._durable.models.read(command.start)
        quantiser = rules.sums.quantiser(collector.cohort, rules.equally, rules.noise)
        model, weight = mean_model(quantiser, total, len(senders), start, layout.slices(places))
        pieces = [as_bytes(model[layout.layers[place].start : layout.layers[place].stop]) for place in places]
        blob = self._durable.blobs.put(pieces)
        self._durable.blobs.pin(blob)
        hashes = {layout.names[at]: hashlib.sha256(piece).hexdigest() for at, piece in zip(places, pieces, strict=True)}
        tasks = tuple(t for t, name in zip(command.tasks, command.learners, strict=True) if name in senders)
        moved: Moved = {
            "train up": {
                name: len(senders) * layout.bytes(layout.indices([name])) * self.bits // 32 for name in command.layers
            }
        }
        up = sum(moved["train up"].values())
        event = Summed(command.task, f"s{command.task}", tasks, weight, Traffic(up=up, sites=len(senders)))
        return SumOutcome(event, Delivery(blob, 0, tuple(places), hashes), moved)


class ScoreTotal:
    """The sum of the scores of a version."""

    bits: Bits = 64

    def __init__(self, command: AddScores, numbers: ScoreNumbers, traffic: Traffic, moved: Moved) -> None:
        """traffic, moved: of the question."""
        self.size, self.traffic = numbers.size, traffic
        self._command, self._numbers, self._moved = command, numbers, moved

    def ask(self, learner: str, step: pb.SumStep) -> None:
        step.training = self._command.task

    def outcome(self, total: Whole, collector: SumCollector) -> SumOutcome:
        sites: Sequence[str] = self._command.question.sites
        rows = tuple(row for row, name in enumerate(sites) if name in collector.senders)
        answer = PooledScore(rows, self._numbers.decode(total, len(rows)))
        return SumOutcome(Pooled(self._command.task, answer, self.traffic), None, self._moved)

"""Learners and a controller of one secure sum, phase by phase, for tests that change one thing."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from archipel.privacy.secure_sum.masking_learner import MaskingLearner
from archipel.privacy.secure_sum.masks import Whole
from archipel.privacy.secure_sum.sum_collector import SumCollector
from archipel.privacy.secure_sum.sum_messages import RoundKeys, SumPhase

ROUND = "round 1"
TERMS: dict[str, Any] = {"least": 3, "threshold": 0.75}


def sign(statement: bytes) -> tuple[bytes, bytes]:
    return statement, b""


def verify(keys: RoundKeys, statement: bytes) -> str | None:
    return None if keys.signature == statement else "it is forged"


def learner(name: str, secret: bytes | None = None, **changes: Any) -> MaskingLearner:
    usual = {**TERMS, "sign": sign, "verify": verify}
    return MaskingLearner(name, ROUND, secret or os.urandom(32), **(usual | changes))


@dataclass
class MaskedRound:
    """A round that is run up to a phase; `absent` learners stop before they send their numbers."""

    count: int
    numbers: dict[str, Whole] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    terms: dict[str, Any] = field(default_factory=dict)
    total: Whole | None = None

    def __post_init__(self) -> None:
        self.learners = {f"site-{k}": learner(f"site-{k}", **self.terms) for k in range(self.count)}
        self.collector = SumCollector(ROUND, self.learners, verify=verify, **(TERMS | self.terms))

    def until(self, phase: SumPhase) -> MaskedRound:
        """Go through all phases before this one."""
        while self.collector.phase != phase:
            for name in sorted(self.collector.waiting - set(self.absent if self.collector.phase == "mask" else ())):
                if not (self.collector.phase == "reveal" and self.collector.complete):
                    self.step(name)
            self.collector.close()
        return self

    def step(self, name: str) -> None:
        """Have a learner go through the phase that the round is at."""
        one, collector = self.learners[name], self.collector
        match collector.phase:
            case "advertise":
                collector.take_keys(one.advertise())
            case "share":
                collector.take_boxes(name, one.share(collector.cohort_for(name)))
            case "mask":
                tags = one.mask(collector.boxes_for(name))
                masked = one.masked(self.numbers.get(name, np.zeros(2, "<u4")))
                self.total = masked if self.total is None else self.total + masked
                collector.take_sent(name, tags)
            case "confirm":
                collector.take_confirmed(name, one.confirm(collector.tags_for(name)))
            case "reveal":
                collector.take_shares(name, one.reveal(collector.tags_for(name)))

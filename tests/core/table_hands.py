"""Algorithms and hands that several tables of events begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from archipel.algorithms import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts import (
    ByDistributedValidation,
    Community,
    Ending,
    Equally,
    Evaluation,
    Mean,
    Relay,
    Selection,
    Stream,
)
from archipel.core.state import View
from archipel.core.types import (
    Metrics,
)
from tests.core.hand import (
    Hand,
    joined,
    scored,
    trained,
)


@dataclass(frozen=True)
class Script(Selection):
    """Select learners by a script: the n-th draw takes the n-th word, one letter for each learner."""

    words: tuple[str, ...]

    def select(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        number = int(draw.split()[-1])
        return [name for name in self.words[number] if name in candidates][:count]


def stream(buffer: int = 1, **settings: Any) -> Algorithm:
    return Algorithm("stream", protocol=Stream(buffer, **settings), weighting=Equally())


def three_with_opinions(order: Literal["arrival", "ready"]) -> Hand:
    algorithm = Algorithm("dvw", protocol=Stream(order=order), weighting=ByDistributedValidation(), merge=Community())
    return Hand(algorithm, learners=3).play(
        (joined("a", validation=5),),
        (joined("b", validation=5),),
        (joined("c", validation=5), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (trained(0), "ask 3 b c t0"),
        (trained(1), "ask 4 a c t1"),
    )


def relay(*script: str, hops: int = 2, fraction: float = 0.5) -> Algorithm:
    return Algorithm("relay", protocol=Relay(fraction, hops), selection=Script(script))


def three_under_dvw(**settings: Any) -> Hand:
    algorithm = Algorithm("dvw", protocol=Stream(), weighting=ByDistributedValidation(**settings), merge=Mean())
    own = Metrics(validation=scored(1, 1))
    return Hand(algorithm, learners=3).play(
        (joined("a", validation=5),),
        (joined("b", validation=5),),
        (joined("c", validation=5), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (trained(0, metrics=own), "ask 3 b c t0"),
    )


def one_learner(ending: Ending, evaluation: Evaluation | None = None, algorithm: Algorithm | None = None) -> Hand:
    return Hand(algorithm or fedavg(), learners=1, ending=ending, evaluation=evaluation)

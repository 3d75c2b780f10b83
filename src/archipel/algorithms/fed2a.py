"""Fed2A: S. Liu, Q. Chen and L. You, Fed2A: Federated Learning Mechanism in Asynchronous and Adaptive Modes, 2022.

Implemented: the two-stage asynchronous procedure (section 3.2: commit at K updates or after a waiting time, then only
contributors get the new model); PLU (3.3.1); TVW (formula 4); RCE (formulas 5 to 10); their integration, Algorithm 1.
In formula 4 the factors n_t, f(t) and TW_t are the same for all updates of a commit and cancel in the normalisation,
so TW is n_k f(t, k), and Fed2A's weight is that times rc for each layer.

Read so (docs/decisions/0006, 0008 to 0010): the first period uploads all layers; a task's round is the version that
would follow when its answer arrives, or, as an option, when it is handed out; deep layers that were trained but not
uploaded are given up, the learner gets the community's at its next task; a constant RDM counts 1 against a constant
one and 0 else; K, rate, batch and epochs are not given in the paper and are arguments here.
"""

from __future__ import annotations

from typing import Literal, Unpack

from archipel.algorithms.constructor import constructor
from archipel.core.algorithm import Algorithm
from archipel.core.parts.planning import PeriodicLayers
from archipel.core.parts.protocol import Stream
from archipel.core.parts.weighting import ByConsistency, ByExamples, ByFreshness, Product
from archipel.core.types import Distance, Local, Plan

Curve = Literal["exp", "inv", "log"]


@constructor
def fed2a(
    buffer: int = 5,
    max_wait: float | None = None,
    period: int = 10,
    last: int = 7,
    deep: str | tuple[str, ...] = "deep",
    curve: Curve = "inv",
    distance: Distance = "cosine",
    by: Literal["arrival", "hand-out"] = "arrival",
    **local: Unpack[Local],
) -> Algorithm:
    """Fed2A: buffered asynchrony, deep layers uploaded periodically, weights by freshness and consistency.

    buffer: updates K of a commit; max_wait: seconds after which fewer are enough; None: never.
    period: rounds P of a period; last: the rounds D at its end in which deep layers are uploaded too.
    deep: the deep layers, by name; "deep": those behind the last convolution, or behind the first layer.
    by: a task's round is the one in which its answer arrives, or the one in which it is handed out.
    curve: how a weight falls with staleness; distance: how the layers' outputs on the stimuli are compared.
    """
    return Algorithm(
        "fed2a",
        protocol=Stream(buffer, max_wait),
        weighting=Product(ByExamples(), ByFreshness(curve), ByConsistency(distance)),
        planners=(PeriodicLayers(period, last, deep, by),),
        plan=Plan(**local),
    )


@constructor
def plu(
    buffer: int = 5,
    max_wait: float | None = None,
    period: int = 10,
    last: int = 7,
    deep: str | tuple[str, ...] = "deep",
    by: Literal["arrival", "hand-out"] = "arrival",
    **local: Unpack[Local],
) -> Algorithm:
    """PLU alone: buffered asynchrony by examples, deep layers only in the last D rounds of every P.

    buffer: updates K of a commit; max_wait: seconds after which fewer are enough; None: never.
    period: rounds P of a period; last: the rounds D at its end in which deep layers are uploaded too.
    deep: the deep layers, by name; "deep": those behind the last convolution, or behind the first layer.
    by: a task's round is the one in which its answer arrives, or the one in which it is handed out.
    """
    return Algorithm(
        "plu",
        protocol=Stream(buffer, max_wait),
        planners=(PeriodicLayers(period, last, deep, by),),
        plan=Plan(**local),
    )


@constructor
def tvw(curve: Curve = "inv", buffer: int = 5, max_wait: float | None = None, **local: Unpack[Local]) -> Algorithm:
    """TVW alone: buffered asynchrony, weights by examples and freshness (formula 4).

    curve: how a weight falls with staleness.
    buffer: updates K of a commit; max_wait: seconds after which fewer are enough; None: never.
    """
    return Algorithm(
        f"tvw_{curve}",
        protocol=Stream(buffer, max_wait),
        weighting=Product(ByExamples(), ByFreshness(curve)),
        plan=Plan(**local),
    )


@constructor
def rce(
    distance: Distance = "cosine", buffer: int = 5, max_wait: float | None = None, **local: Unpack[Local]
) -> Algorithm:
    """RCE alone: buffered asynchrony, each layer weighted by its representational consistency (formula 10).

    distance: how the layers' outputs on the stimuli are compared.
    buffer: updates K of a commit; max_wait: seconds after which fewer are enough; None: never.
    """
    return Algorithm("rce", protocol=Stream(buffer, max_wait), weighting=ByConsistency(distance), plan=Plan(**local))

"""FedRep: L. Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021.

Implemented: algorithm 1: a learner trains its own head with the received representation fixed, then the representation
with the head fixed, and sends the representation. Ten epochs of the head and one of the representation, SGD of .01 with
momentum .5, batches of 10 and a tenth of the learners are the paper's for CIFAR-10 with two classes a learner. Scores
are the learners' mean on their own test data (docs/decisions/0014).

Read so: both parts have the same rate, and momentum begins anew with the second one; representations count by their
learners' examples, where the paper weighs them the same for data of one size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.phases import HeadFirst
from archipel.core.parts.planning import PrivateLayers
from archipel.core.types import Local

DEFAULTS: Local = {"batch": 10, "rate": 0.01, "momentum": 0.5}


@constructor
def fedrep(
    private: str | tuple[str, ...] = "head", head_epochs: int = 10, fraction: float = 0.1, **local: Unpack[Local]
) -> Algorithm:
    """FedRep: a shared representation below private heads, which are trained first.

    private: the layers of the head, by name; "head": the last one.
    head_epochs: epochs of the head; `epochs` is those of the representation behind them.
    fraction: share C of the learners that takes part in a round.
    """
    return replace(
        fedavg(fraction, **(DEFAULTS | local)),
        name="fedrep",
        planners=(PrivateLayers(private), HeadFirst(private, head_epochs)),
    )

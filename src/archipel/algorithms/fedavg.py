"""FedAvg: B. McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017.

Implemented: w <- sum_k (n_k / n) w_k over a share C of the learners drawn anew each round (Metis eq. 1 with p_k =
n_k; RADFed section III; D&C Algorithm 1 weighs equally instead: pass `equally=True`).
"""

from __future__ import annotations

from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.core.algorithm import Algorithm
from archipel.core.parts.protocol import Rounds
from archipel.core.parts.weighting import ByExamples, Equally
from archipel.core.types import Local, Plan


@constructor
def fedavg(
    fraction: float = 1.0, *, equally: bool = False, deadline: float | None = None, **local: Unpack[Local]
) -> Algorithm:
    """FedAvg: rounds of local training and a mean weighted by the number of examples.

    fraction: share C of the learners that takes part in a round.
    equally: weigh every learner the same.
    deadline: seconds after which a round closes with those who have answered; None: never.
    """
    return Algorithm(
        "fedavg",
        protocol=Rounds(fraction, deadline=deadline),
        weighting=Equally() if equally else ByExamples(),
        plan=Plan(**local),
    )

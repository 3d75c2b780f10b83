"""FedProx: T. Li et al., Federated Optimization in Heterogeneous Networks, 2020.

Implemented: FedAvg with (mu / 2) ||w - w'||^2 in every local loss, w' being the model the task carried. Not
implemented: gamma-inexactness; a learner does the epochs its plan asks for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.planning import Proximal
from archipel.core.types import Local


@constructor
def fedprox(mu: float = 0.01, fraction: float = 1.0, **local: Unpack[Local]) -> Algorithm:
    """FedProx: FedAvg with a proximal term that keeps learners near the received model.

    mu: weight of the proximal term (Fed2A compares with 1).
    fraction: share C of the learners that takes part in a round.
    """
    return replace(fedavg(fraction, **local), name="fedprox", planners=(Proximal(mu),))

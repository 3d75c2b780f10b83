"""FedAvgM: T.-M. H. Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019.

Implemented: v <- beta v + delta, w <- w - v with delta = w - mean of the local models, beta = .9; `eta` is the server
rate of Reddi et al., which the paper does not have: 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.server import Momentum
from archipel.core.types import Local


@constructor
def fedavgm(beta: float = 0.9, eta: float = 1.0, fraction: float = 1.0, **local: Unpack[Local]) -> Algorithm:
    """FedAvgM: FedAvg with momentum at the controller.

    beta: attenuation of the momentum; eta: server learning rate.
    fraction: share C of the learners that takes part in a round.
    """
    return replace(fedavg(fraction, **local), name="fedavgm", server=Momentum(eta, beta))

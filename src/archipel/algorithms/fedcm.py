"""FedCM: J. Xu et al., FedCM: Federated Learning with Client-level Momentum, 2021.

Implemented: algorithm 1: v = alpha g + (1 - alpha) Delta_t, x_i <- x_i - eta_l v; Delta_t+1 = mean of (x_t - x_i) /
(eta_l K). alpha = .1, five epochs of SGD in batches of 50 with rate .1 and weight decay .001 and a tenth of the
learners are the paper's.

Read so (docs/decisions/0077): the server's step is eta times the mean movement, which is the paper's eta_g for eta_g =
eta eta_l K: with eta = 1 the new model is the mean, as in the authors' experiments. Learners that make different
numbers of steps K each divide by their own. The step is written as rate alpha eta_l along g + Delta (1 - alpha) /
alpha, which is the same up to rounding; the weight decay is part of g.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.server import Replace
from archipel.core.parts.shifts import LearnerMomentum
from archipel.core.parts.weighting import Equally
from archipel.core.types import Local

DEFAULTS: Local = {"epochs": 5, "batch": 50, "rate": 0.1, "options": {"weight_decay": 1e-3}}


@constructor
def fedcm(alpha: float = 0.1, eta: float = 1.0, fraction: float = 0.1, **local: Unpack[Local]) -> Algorithm:
    """FedCM: local steps mostly follow the mean direction of all updates of the last round.

    alpha: share of the learner's own gradient in a step.
    eta: server learning rate.
    fraction: share C of the learners that takes part in a round.
    """
    return replace(
        fedavg(fraction, **(DEFAULTS | local)),
        name="fedcm",
        weighting=Equally(),
        server=Replace(eta),
        planners=(LearnerMomentum(alpha),),
    )

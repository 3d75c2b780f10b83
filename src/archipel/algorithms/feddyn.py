"""FedDyn: D. A. E. Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.

Implemented: algorithm 1: theta_k minimises L_k(theta) - <grad L_k(theta_k'), theta> + (alpha / 2) ||theta - theta'||^2,
theta_k' being the learner's last model and theta' the one it received; grad L_k(theta_k) = grad L_k(theta_k') -
alpha (theta_k - theta'); h <- h - (alpha / m) sum of (theta_k - theta') over the m learners; theta = mean of theta_k -
h / alpha. alpha = .01, a tenth of the learners, five epochs of SGD in batches of 50 with rate .1 and weight decay .001
are the paper's for CIFAR-10.

Read so (docs/decisions/0077): a learner minimises by its epochs of SGD; the controller works out both h and the
learners' gradients from the models, so the latter travel down with each task. Not implemented: the decay of the rate by
.998 a round (add Decay(.998)).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.shifts import DynamicMean, DynamicRegulariser
from archipel.core.parts.weighting import Equally
from archipel.core.types import Local

DEFAULTS: Local = {"epochs": 5, "batch": 50, "rate": 0.1, "options": {"weight_decay": 1e-3}}


@constructor
def feddyn(alpha: float = 0.01, fraction: float = 0.1, **local: Unpack[Local]) -> Algorithm:
    """FedDyn: each learner's loss is changed from task to task, so that local optima agree with the global one.

    alpha: weight of the proximal term, and how far a task's movement changes the learner's loss.
    fraction: share C of the learners that takes part in a round.
    """
    return replace(
        fedavg(fraction, **(DEFAULTS | local)),
        name="feddyn",
        weighting=Equally(),
        merge=DynamicMean(),
        planners=(DynamicRegulariser(alpha),),
    )

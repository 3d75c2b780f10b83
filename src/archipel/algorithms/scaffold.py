"""SCAFFOLD: S. P. Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020.

Implemented: algorithm 1 with option II: y_i <- y_i - eta_l (g_i(y_i) - c_i + c), c_i+ = c_i - c + (x - y_i) /
(K eta_l), x <- x + eta_g mean of (y_i - x), c <- c + (1 / N) sum of (c_i+ - c_i); eta_g = 1 and a fifth of the learners
in a round, as in its experiments. Not implemented: option I, a pass over the data for the gradient at x.

Read so (docs/decisions/0077): the controller works c_i out from the models, so c - c_i travels down with each task, as
many bytes as c would, and nothing but the model travels up. Learners are weighed alike. Layers that a task does not
train or send keep their c_i; private layers have none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.server import Replace
from archipel.core.parts.shifts import ControlVariates
from archipel.core.parts.weighting import Equally
from archipel.core.types import Local


@constructor
def scaffold(eta: float = 1.0, fraction: float = 0.2, **local: Unpack[Local]) -> Algorithm:
    """SCAFFOLD: control variates correct every gradient by how the learner's differs from the mean of all.

    eta: server learning rate.
    fraction: share C of the learners that takes part in a round.
    """
    return replace(
        fedavg(fraction, **local),
        name="scaffold",
        weighting=Equally(),
        server=Replace(eta),
        planners=(ControlVariates(),),
    )

"""FedLC: J. Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022.

Implemented: FedAvg whose learners minimise -log(exp(f_y - tau n_y^(-1/4)) / sum over c of exp(f_c - tau n_c^(-1/4))),
n_c being the learner's own examples of class c. tau = 1.

Read so (docs/decisions/0185): the sum is over all classes, as in cross entropy, where the paper prints it without the
example's own, which would have no minimum. A class that a learner has no examples of is left out of its sum, the limit
of n_c -> 0. Settings of local training and the share of learners are FedAvg's here, not the paper's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.objective import LogitCalibration
from archipel.core.types import Local


@constructor
def fedlc(tau: float = 1.0, fraction: float = 1.0, **local: Unpack[Local]) -> Algorithm:
    """FedLC: class scores are calibrated by how many examples of each class a learner has.

    tau: how much; 0 is cross entropy over the classes that a learner has.
    fraction: share C of the learners that takes part in a round.
    """
    return replace(fedavg(fraction, **local), name="fedlc", objective=LogitCalibration(tau))

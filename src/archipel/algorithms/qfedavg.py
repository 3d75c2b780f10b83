"""q-FedAvg: T. Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020.

Implemented: algorithm 2: with L = 1 / eta, D_k = L (w - w_k), Delta_k = F_k^q D_k and h_k = q F_k^(q - 1) |D_k|^2 + L
F_k^q, w <- w - sum Delta_k / sum h_k. F_k is the mean loss of the model that learner k received over its training data,
which it reports: one more pass over them. Learners are drawn uniformly and count the same; the paper draws them by
their examples, which `weighting=ByExamples()` has in the mean.

q = 1 is the paper's choice for two of its four data sets; .001 and 5 are the others'. q = 0 is FedAvg with equal
weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.changes import FairChange
from archipel.core.types import Local


@constructor
def qfedavg(q: float = 1.0, fraction: float = 1.0, **local: Unpack[Local]) -> Algorithm:
    """q-FedAvg: learners with a higher loss count for more, so that scores are more alike.

    q: how much more; 0: all the same.
    fraction: share C of the learners that takes part in a round.
    """
    plain = fedavg(fraction, equally=True, **local)
    return replace(plain, name="qfedavg", merge=FairChange(q, plain.plan.rate))

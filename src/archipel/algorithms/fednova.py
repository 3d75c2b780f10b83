"""FedNova: J. Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, 2020.

Implemented: w <- w - tau_eff sum p_k eta d_k (eq. 6) with d_k = (w - w_k) / (eta |a_k|_1), p_k = n_k / n and tau_eff =
sum p_k |a_k|_1 (section 4.1); a_k of SGD, of SGD with momentum and of SGD with a proximal term. Learners whose data
fill more batches make more steps and still count by their examples alone. Not implemented: the server momentum of its
appendix (replace the server with Momentum()).

Read so (docs/decisions/0185): tau_eff is the same with a proximal term, where the authors' program then takes the mean
number of steps, sum p_k tau_k.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.checks import at_least
from archipel.core.parts.changes import NormalisedChange
from archipel.core.parts.planning import Proximal
from archipel.core.types import Local


@constructor
def fednova(mu: float = 0.0, fraction: float = 1.0, **local: Unpack[Local]) -> Algorithm:
    """FedNova: each change is divided by the total weight of its learner's local steps before averaging.

    mu: weight of a proximal term (mu / 2) ||w - w'||^2 in the loss; 0: none.
    fraction: share C of the learners that takes part in a round.
    """
    at_least(0, "fednova", mu=mu)
    plain = fedavg(fraction, **local)
    return replace(
        plain,
        name="fednova",
        merge=NormalisedChange(plain.plan.momentum, plain.plan.rate * mu),
        planners=(Proximal(mu),) if mu else (),
    )

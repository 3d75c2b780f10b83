"""Per-FedAvg: A. Fallah et al., Personalized Federated Learning: A Meta-Learning Approach, NeurIPS 2020.

Implemented: algorithm 1: w_i <- w_i - beta (I - alpha H_i(w_i; D'')) grad f_i(w_i - alpha grad f_i(w_i; D); D'), w <-
mean of w_i. Per-FedAvg (FO) leaves the Hessian H out; Per-FedAvg (HF) has H g = (grad f(w + delta g) - grad f(w -
delta g)) / (2 delta); "exact" computes it. Before it is scored, the model makes one step of rate alpha on the learner's
data; scores are the learners' mean on their own test data (docs/decisions/0115). alpha = .005, beta = .001, 20 steps
and a quarter of the learners are those with which the authors of pFedMe ran it.

Read so (docs/decisions/0116): D, D' and D'' are parts of one mini-batch, so a batch of 40 or 60 holds the two or three
batches of 20; the step before scoring is on one mini-batch of that size, the same for every version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.descent import PARTS, MetaDescent
from archipel.core.parts.personal import FineTuned
from archipel.core.parts.weighting import Equally
from archipel.core.types import Local

BATCH = 20
"""Examples of D, of D' and of D''."""


@constructor
def per_fedavg(
    alpha: float = 0.005,
    hessian: Literal["none", "differences", "exact"] = "none",
    tuning_steps: int = 1,
    fraction: float = 0.25,
    **local: Unpack[Local],
) -> Algorithm:
    """Per-FedAvg: a shared model from which one step on a learner's own data leads to a good model of its own.

    alpha: rate of that step; `rate` is beta, that of the shared model.
    hessian: "none" for Per-FedAvg (FO), "differences" for Per-FedAvg (HF), or "exact".
    tuning_steps: steps on the learner's own data before it is scored.
    fraction: share C of the learners that takes part in a round.
    """
    descent = MetaDescent(alpha, hessian)
    usual: Local = {"steps": None if "epochs" in local else 20, "batch": BATCH * PARTS[hessian], "rate": 0.001}
    return replace(
        fedavg(fraction, **(usual | local)),
        name="per_fedavg",
        weighting=Equally(),
        descent=descent,
        personal=FineTuned(steps=tuning_steps, rate=alpha, momentum=0.0),
    )

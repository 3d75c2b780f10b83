"""pFedMe: C. T. Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020.

Implemented: algorithm 1: for each of R mini-batches, theta minimises f(theta) + (lambda / 2) ||theta - w_i||^2 by K
gradient steps, then w_i <- w_i - eta lambda (w_i - theta); w <- (1 - beta) w + beta mean of w_i. lambda = 15, K = 5
with a rate of .1, R = 20 mini-batches of 20, eta = .005, beta = 1 and 5 of 20 learners are those of the authors'
program for MNIST. Scores are of theta, the learners' mean on their own test data (docs/decisions/0115).

Read so (docs/decisions/0116): theta begins as the received model and goes on from one mini-batch to the next, as in the
authors' program; mini-batches go through a learner's data in an order drawn for each pass. Learners that are not drawn
for a round do not train in it, where the paper has all train and draws whose models count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.descent import MoreauDescent
from archipel.core.parts.personal import KeptModel
from archipel.core.parts.server import Replace
from archipel.core.parts.weighting import Equally
from archipel.core.types import Local

DEFAULTS: Local = {"steps": 20, "batch": 20, "rate": 0.005}


@constructor
def pfedme(
    weight: float = 15.0,
    inner_steps: int = 5,
    inner_rate: float = 0.1,
    beta: float = 1.0,
    fraction: float = 0.25,
    **local: Unpack[Local],
) -> Algorithm:
    """pFedMe: the shared model moves to where the learners' own models, held near it, are.

    weight: lambda, how near the learners' own models are held.
    inner_steps: K, steps of the own model on each mini-batch.
    inner_rate: its learning rate; `rate` is that of the shared model.
    beta: share of the mean in the new model; above 1 it is overshot.
    fraction: share C of the learners that takes part in a round.
    """
    return replace(
        fedavg(fraction, **_settings(local)),
        name="pfedme",
        weighting=Equally(),
        server=Replace(beta),
        descent=MoreauDescent(weight, inner_steps, inner_rate),
        personal=KeptModel(),
    )


def _settings(local: Local) -> Local:
    """Return the defaults with these settings; epochs stand instead of steps."""
    return DEFAULTS | ({"steps": None} if "epochs" in local else {}) | local

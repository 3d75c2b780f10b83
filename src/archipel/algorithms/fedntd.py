"""FedNTD: G. Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated Learning, 2022.

Implemented: FedAvg whose learners minimise L_CE + beta L_NTD, L_NTD being the Kullback-Leibler divergence of the local
from the received model's softmax, at temperature tau, over the classes that are not an example's own. beta = tau = 1,
five epochs of SGD with rate .01, momentum .9, weight decay 1e-5 and batches of 50, and a tenth of the learners are
those of the authors' program for CIFAR-10.

Read so: the term is not multiplied with tau^2, which the authors' program does in its later versions: its beta is this
one divided by tau^2. The received model is scored as in evaluation, without dropout. Not implemented: the decay of the
rate by .99 a round (add Decay(.99)).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.objective import NotTrueDistillation
from archipel.core.types import Local

DEFAULTS: Local = {"epochs": 5, "batch": 50, "rate": 0.01, "momentum": 0.9, "options": {"weight_decay": 1e-5}}


@constructor
def fedntd(beta: float = 1.0, tau: float = 1.0, fraction: float = 0.1, **local: Unpack[Local]) -> Algorithm:
    """FedNTD: learners keep what the received model says of the classes that are not an example's own.

    beta: weight of that term in the loss; tau: temperature of the softmax in it.
    fraction: share C of the learners that takes part in a round.
    """
    return replace(fedavg(fraction, **(DEFAULTS | local)), name="fedntd", objective=NotTrueDistillation(beta, tau))

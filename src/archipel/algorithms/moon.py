"""MOON: Q. Li, B. He, D. Song, Model-Contrastive Federated Learning, CVPR 2021.

Implemented: algorithm 1: the loss is cross entropy + mu l_con, l_con = -log(e^(s / tau) / (e^(s / tau) + e^(p /
tau))), s = cos(z, z_glob), p = cos(z, z_prev); z, z_glob and z_prev are the representations of an example in the
local model, the received one and the learner's last local one; models are averaged by examples. mu = 5, tau = .5, 10
epochs of SGD with rate .01, momentum .9, weight decay 1e-5 and batches of 64 are the paper's for CIFAR-10.

Read so (docs/decisions/0117): a representation is what goes into the head; the paper's networks have a projection of
two layers before it, which is for the network to have. In a learner's first task z_prev is z_glob, so that nothing is
contrasted; both models run as they do when they are scored, without dropout and with stored statistics.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.objective import ModelContrast
from archipel.core.types import Local

DEFAULTS: Local = {"epochs": 10, "batch": 64, "rate": 0.01, "momentum": 0.9, "options": {"weight_decay": 1e-5}}


@constructor
def moon(mu: float = 5.0, tau: float = 0.5, fraction: float = 1.0, **local: Unpack[Local]) -> Algorithm:
    """MOON: representations are drawn towards the shared model's and away from the learner's last own ones.

    mu: weight of the contrast.
    tau: temperature of the cosines.
    fraction: share C of the learners that takes part in a round.
    """
    return replace(fedavg(fraction, **(DEFAULTS | local)), name="moon", objective=ModelContrast(mu, tau))

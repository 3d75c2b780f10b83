"""Ditto: T. Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021.

Implemented: algorithm 1 with FedAvg as its global solver: w <- w + mean of (w_k - w) over the learners of a round;
v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w)), from the learner's last v_k, w being the model it received. lambda
= 1; one epoch of each model. Scores are of v_k, the learners' mean on their own test data (docs/decisions/0115).

Read so: v_k begins as the model that the learner's first task carries, and a learner without a task yet is scored with
the shared model; the epochs of v_k come behind those of w_k, on mini-batches drawn anew, where the authors' program
trains both on each mini-batch. Not implemented: a lambda that each learner chooses by its validation data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.personal import KeptModel, PersonalPhase
from archipel.core.parts.weighting import Equally
from archipel.core.types import Local


@constructor
def ditto(weight: float = 1.0, personal_epochs: int = 1, fraction: float = 1.0, **local: Unpack[Local]) -> Algorithm:
    """Ditto: beside the shared model every learner trains one of its own, held near the shared one.

    weight: lambda, how near.
    personal_epochs: epochs of the learner's own model in a task; `epochs` is those of the shared one.
    fraction: share C of the learners that takes part in a round.
    """
    return replace(
        fedavg(fraction, **local),
        name="ditto",
        weighting=Equally(),
        planners=(PersonalPhase(weight, personal_epochs),),
        personal=KeptModel(),
    )

"""APFL: Y. Deng, M. M. Kamani, M. Mahdavi, Adaptive Personalized Federated Learning, 2020.

Implemented: algorithm 1: on every mini-batch w_i <- w_i - eta grad f_i(w_i) and v_i <- v_i - eta alpha grad f_i(m_i),
with m_i = alpha v_i + (1 - alpha) w_i; w <- mean of w_i. alpha = .5 is the default of the authors' program; with
`adaptive` alpha <- alpha - eta <v_i - w_i, grad f_i(m_i)> at the first mini-batch of every task, as there. Scores are
of alpha v_i + (1 - alpha) w, w being the shared model: the learners' mean on their own test data
(docs/decisions/0115).

Read so (docs/decisions/0116): models are mixed by their weights, as the paper has it, where the authors' program mixes
their outputs; both gradients are taken before either model moves; alpha stays within 0 and 1, and is not regularised,
which the program does. v_i begins as the model that the learner's first task carries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.descent import MixedDescent
from archipel.core.parts.personal import MixedModel
from archipel.core.parts.weighting import Equally
from archipel.core.types import Local


@constructor
def apfl(share: float = 0.5, adaptive: bool = False, fraction: float = 1.0, **local: Unpack[Local]) -> Algorithm:
    """APFL: every learner uses a mixture of the shared model and one that it trains for that mixture.

    share: alpha, how much of the mixture is the learner's own model.
    adaptive: whether the share descends too, in every learner by itself.
    fraction: share C of the learners that takes part in a round.
    """
    return replace(
        fedavg(fraction, **local),
        name="apfl",
        weighting=Equally(),
        descent=MixedDescent(share, adaptive),
        personal=MixedModel(),
    )

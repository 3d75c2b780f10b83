"""FedBN: X. Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021.

Implemented: algorithm 1: FedAvg without the normalisation layers: their weights, biases and statistics stay with each
learner. E = 1, SGD of .01 and batches of 32 are the paper's. Layer and group normalisation stay too; a network without
any is refused. Scores are the learners' mean on their own test data (docs/decisions/0014).

Read so: all learners count by their examples, as in FedAvg; the paper weighs them the same, and its data sets are cut
to one size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.planning import PrivateLayers
from archipel.core.types import Local

DEFAULTS: Local = {"rate": 0.01}


@constructor
def fedbn(fraction: float = 1.0, **local: Unpack[Local]) -> Algorithm:
    """FedBN: FedAvg with private normalisation layers.

    fraction: share C of the learners that takes part in a round.
    """
    return replace(fedavg(fraction, **(DEFAULTS | local)), name="fedbn", planners=(PrivateLayers("norms"),))

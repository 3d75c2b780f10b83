"""FedBABU: J. Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, 2022.

Implemented: algorithm 1: the head keeps its initial weights, the body alone is trained and averaged by examples. C =
.1, the rate .1 and momentum .9 are the paper's; its epochs are 1 to 10.

Not implemented: fine-tuning of the whole network at each learner before it is scored; scores are the paper's "initial"
ones, of the shared network.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.frozen import FrozenLayers
from archipel.core.types import Local

DEFAULTS: Local = {"rate": 0.1, "momentum": 0.9}


@constructor
def fedbabu(frozen: str | tuple[str, ...] = "head", fraction: float = 0.1, **local: Unpack[Local]) -> Algorithm:
    """FedBABU: only the body is trained; the head stays as it was initialised.

    frozen: the layers that stay, by name; "head": the last one.
    fraction: share C of the learners that takes part in a round.
    """
    return replace(fedavg(fraction, **(DEFAULTS | local)), name="fedbabu", planners=(FrozenLayers(frozen),))

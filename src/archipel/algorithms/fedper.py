"""FedPer: M. G. Arivazhagan et al., Federated Learning with Personalization Layers, 2019.

Implemented: algorithms 1 and 2: the base layers are averaged by examples over all learners, the personalisation layers
are trained and kept by each of them. E = 4 and the rate .01 are the paper's. HDAFL is the same with a part of the
learners in each round. Scores are the learners' mean on their own test data (docs/decisions/0014).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.planning import PrivateLayers
from archipel.core.types import Local

DEFAULTS: Local = {"epochs": 4, "rate": 0.01}


@constructor
def fedper(private: str | tuple[str, ...] = "head", fraction: float = 1.0, **local: Unpack[Local]) -> Algorithm:
    """FedPer: shared base layers, private personalisation layers.

    private: the personalisation layers, by name; "head": the last one, "deep": all behind the convolutions.
    fraction: share C of the learners that takes part in a round.
    """
    return replace(fedavg(fraction, **(DEFAULTS | local)), name="fedper", planners=(PrivateLayers(private),))

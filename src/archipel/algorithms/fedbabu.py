"""FedBABU: J. Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, 2022.

Implemented: algorithm 1: the head keeps its initial weights, the body alone is trained and averaged by examples. Before
it is scored, every learner fine-tunes the whole network on its own data for five epochs; scores are the learners' mean
on their own test data (docs/decisions/0115). C = .1, the rate .1 and momentum .9 are the paper's; its epochs are 1 to
10. With `tuning_epochs=0` scores are the paper's "initial" ones, of the shared network.

Read so (docs/decisions/0117): fine-tuning has the rate and momentum of training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.checks import at_least
from archipel.core.parts.frozen import FrozenLayers
from archipel.core.parts.personal import FineTuned
from archipel.core.types import Local

DEFAULTS: Local = {"rate": 0.1, "momentum": 0.9}


@constructor
def fedbabu(
    frozen: str | tuple[str, ...] = "head", fraction: float = 0.1, tuning_epochs: int = 5, **local: Unpack[Local]
) -> Algorithm:
    """FedBABU: only the body is trained; the head stays as it was initialised until learners fine-tune both.

    frozen: the layers that stay, by name; "head": the last one.
    fraction: share C of the learners that takes part in a round.
    tuning_epochs: epochs of the whole network on a learner's own data before it is scored; 0: none.
    """
    at_least(0, "fedbabu", tuning_epochs=tuning_epochs)
    return replace(
        fedavg(fraction, **(DEFAULTS | local)),
        name="fedbabu",
        planners=(FrozenLayers(frozen),),
        personal=FineTuned(tuning_epochs) if tuning_epochs else None,
    )

"""D&C: P. Chandran et al., Divide-and-Conquer Federated Learning under Data Heterogeneity, 2021.

Implemented: FedAvg with equal weights (Algorithm 1); the pre-pass of 5 rounds where the split has to be found;
layer-wise divergence by EQ2 or EQ3; alternating feature-learning (20 epochs) and fine-tuning (4 epochs, half rate)
rounds in which only the layers that train travel; a rate that starts at .001 and falls by 10 % a round. D&C' of Table 2
is the same with more rounds, for the same bytes as FedAvg: Ending(bytes=...). With a given split there is no pre-pass:
feature-learning rounds are CR = 1, 3, 5 and so on in section 4.2.2, and the full model travels every two rounds
(section 5).

Read so (docs/decisions/0011 to 0013): divergence between more than two learners is the mean over pairs; the split is
before the first layer whose divergence exceeds the middle between the lowest and the highest (`threshold`), or given;
where no layer stands out only the last is fine-tuned, as the paper does for class imbalance; the pre-pass trains with
the feature-learning epochs; the rate falls in the pre-pass too; the local solver is SGD, as section 2 says.
"""

from __future__ import annotations

from typing import Literal, Unpack

from archipel.algorithms.constructor import constructor
from archipel.core.algorithm import Algorithm
from archipel.core.parts.planning import Decay, DivideAndConquer
from archipel.core.parts.protocol import Rounds
from archipel.core.parts.weighting import Equally
from archipel.core.types import Local, Plan

PREPASS = 5
DEFAULTS: Local = {"epochs": 20, "rate": 0.001}


@constructor
def divide_and_conquer(
    prepass: int | None = None,
    split: str | int | None = None,
    tuning_epochs: int = 4,
    tuning_rate: float = 0.5,
    divergence: Literal["cosine", "euclidean", "direction"] = "cosine",
    threshold: float = 0.5,
    decay: float = 0.9,
    fraction: float = 1.0,
    **local: Unpack[Local],
) -> Algorithm:
    """D&C: split the net where local weights diverge, then train features and classifier in turn.

    prepass: rounds of the whole net before the split is found; None: 5, and none where it is given.
    split: the last feature layer, by name or by number from 1; None: found where weights diverge.
    tuning_epochs: epochs of a fine-tuning round; `epochs` is those of the others.
    tuning_rate: rate of fine-tuning rounds, relative to that of the others.
    divergence: how far two learners' weights are apart: "cosine" (EQ3), "euclidean" (EQ2) or "direction", which is EQ3
        without its division by the norm.
    threshold: how far up from the lowest to the highest divergence a layer counts as diverging.
    decay: factor of the rate at every round; fraction: share of the learners that takes part in a round.
    """
    plan = Plan(**(DEFAULTS | local))
    if prepass is None:
        prepass = PREPASS if split is None else 0
    return Algorithm(
        "divide_and_conquer",
        protocol=Rounds(fraction),
        weighting=Equally(),
        planners=(
            DivideAndConquer(prepass, split, plan.epochs, tuning_epochs, tuning_rate, divergence, threshold),
            Decay(decay),
        ),
        plan=plan,
    )

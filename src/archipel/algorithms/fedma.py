"""FedMA: H. Wang et al., Federated Learning with Matched Averaging, ICLR 2020 (D&C's strongest competitor).

Implemented: Algorithm 1, layer by layer: {Pi_j} = BBP-MAP({W_j,n}), W_n = mean of W_j,n Pi_j^T, the inputs of W_j,n+1
put in the same order, layers n + 1 to N trained on with layers 1 to n frozen; the last layer averaged by class with
the learners' class counts; the cost of section 2.2 (eq. 2 with PFNM's prior) solved by linear assignment; linear and
convolutional layers, embeddings and LSTMs, which are matched by their input weights (section 2.3, H = mean of Pi_j H_j
Pi_j^T); FedMA with communication, where learners begin the next sweep with the averaged network cut to the neurons they
were matched with. A local round settles one layer, so a network of N layers needs N of them for one of the paper's
communication rounds. Defaults are those of the published code for VGG9 on CIFAR-10.

Read so (docs/decisions/0061 to 0063): a neuron is averaged over the learners that have it; sigma and sigma0 are
standard deviations, and the cost is the paper's, not that of the published code; the network's shape is fixed, and
`growth` says how much of it is room for new neurons; all learners begin with one initial model; a version between two
settled layers is the network that would come out if it were matched to its end; all layers that are not settled travel,
where the paper sends one.

Not implemented: batch normalisation and residual connections, which the paper leaves out too; dropping neurons.
"""

from __future__ import annotations

from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.core.algorithm import Algorithm
from archipel.core.parts.matched import LayerByLayer, MatchedMean
from archipel.core.parts.protocol import Rounds
from archipel.core.parts.weighting import Equally
from archipel.core.types import Local, Plan

DEFAULTS: Local = {"epochs": 20, "batch": 64, "rate": 0.01, "momentum": 0.9}


@constructor
def fedma(
    sigma: float = 1.0,
    sigma0: float = 1.0,
    gamma: float = 7.0,
    iterations: int = 5,
    growth: float = 1.5,
    fraction: float = 1.0,
    **local: Unpack[Local],
) -> Algorithm:
    """FedMA: match the learners' neurons before averaging them, one layer a round.

    sigma: standard deviation of a learner's neurons around the shared ones; sigma0: of the shared ones around zero.
    gamma: more of it makes more new neurons.
    iterations: times that each learner is matched again.
    growth: width of the network's hidden layers relative to the neurons they begin with; 1: no room for new ones.
    fraction: share of the learners that takes part in a round.
    """
    return Algorithm(
        "fedma",
        protocol=Rounds(fraction),
        weighting=Equally(),
        merge=MatchedMean(sigma, sigma0, gamma, iterations, growth),
        planners=(LayerByLayer(),),
        plan=Plan(**(DEFAULTS | local)),
    )

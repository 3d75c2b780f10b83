"""HDAFL and LG-FedAvg: some layers are shared, the others stay with each learner.

L. Yang, C. Beliard and D. Rossi, Heterogeneous Data-Aware Federated Learning; it compares with LG-FedAvg of P. P. Liang
et al.

Implemented: Algorithm 1: the generic layers are averaged by examples over a share of the learners, the specific layer
(the classifier) stays with each learner after ClientInit. Its other option, weights by the norm of the gradient, is
`by_gradient_norm`. LG-FedAvg keeps the features and shares the classifier. With private layers the score is the
learners' mean on their own test data, for the methods compared too (docs/decisions/0014).

The paper tries C of 10, 20 and 50 of 100 learners; the default is its best, one half. E = 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.planning import PrivateLayers
from archipel.core.parts.weighting import ByExamples, ByGradientNorm
from archipel.core.types import Local


@constructor
def hdafl(
    fraction: float = 0.5,
    private: str | tuple[str, ...] = "head",
    *,
    by_gradient_norm: bool = False,
    **local: Unpack[Local],
) -> Algorithm:
    """HDAFL: shared feature layers, a private classifier on every learner.

    fraction: share of the learners that takes part in a round.
    private: the layers that stay, by name; "head": the last one.
    by_gradient_norm: weigh by the norm of the gradient instead of by examples.
    """
    return replace(
        fedavg(fraction, **local),
        name="hdafl",
        weighting=ByGradientNorm() if by_gradient_norm else ByExamples(),
        planners=(PrivateLayers(private),),
    )


@constructor
def lg_fedavg(fraction: float = 0.5, private: str | tuple[str, ...] = "features", **local: Unpack[Local]) -> Algorithm:
    """LG-FedAvg: private feature layers, one shared classifier.

    fraction: share of the learners that takes part in a round.
    private: the layers that stay, by name; "features": all but the last one.
    """
    return replace(fedavg(fraction, **local), name="lg_fedavg", planners=(PrivateLayers(private),))

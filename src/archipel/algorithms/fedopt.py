"""FedAdam, FedYogi, FedAdagrad: S. Reddi et al., Adaptive Federated Optimization, 2021 (RADFed's "FedAdapt").

Implemented: algorithm 2 of that paper, with delta = mean of the local models - w: m <- beta1 m + (1 - beta1) delta; v
as each file's class says; w <- w + eta m / (sqrt(v) + tau). beta1 = .9 and beta2 = .99 as RADFed section IV.E fixes
them; eta, tau and v_-1 are what it searches over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.server import Adagrad, Adam, Yogi
from archipel.core.types import Local


@constructor
def fedadam(
    eta: float = 0.01, tau: float = 1e-4, initial: float = 0.0, fraction: float = 1.0, **local: Unpack[Local]
) -> Algorithm:
    """FedAdam: the mean of the updates is a gradient for Adam at the controller.

    eta: server learning rate; tau: adaptivity, added to the root of v; initial: v before the first round.
    fraction: share C of the learners that takes part in a round.
    """
    server = Adam(eta, tau=tau, initial=initial)
    return replace(fedavg(fraction, **local), name="fedadam", server=server)


@constructor
def fedyogi(
    eta: float = 0.01, tau: float = 1e-4, initial: float = 0.0, fraction: float = 1.0, **local: Unpack[Local]
) -> Algorithm:
    """FedYogi: as FedAdam, with a second moment that grows in steps of bounded size.

    eta: server learning rate; tau: adaptivity, added to the root of v; initial: v before the first round.
    fraction: share C of the learners that takes part in a round.
    """
    server = Yogi(eta, tau=tau, initial=initial)
    return replace(fedavg(fraction, **local), name="fedyogi", server=server)


@constructor
def fedadagrad(
    eta: float = 0.01, tau: float = 1e-4, initial: float = 0.0, fraction: float = 1.0, **local: Unpack[Local]
) -> Algorithm:
    """FedAdagrad: as FedAdam, with a second moment that only grows.

    eta: server learning rate; tau: adaptivity, added to the root of v; initial: v before the first round.
    fraction: share C of the learners that takes part in a round.
    """
    server = Adagrad(eta, tau=tau, initial=initial)
    return replace(fedavg(fraction, **local), name="fedadagrad", server=server)

"""RADFed: Y. Xue, D. Klabjan and Y. Luo, Aggregation Delayed Federated Learning.

Implemented: Algorithm 1 (RADFed) and Algorithm 2 (RADFed+): importance sampling (lines 8 and 11), the proximal term
(ClientUpdate line 1), momentum as w <- alpha mean + (1 - alpha) w (line 14), adaptive server updates (lines 15 to
17). Defaults: C = .1, S = 15, gamma = .9 (Table II), E = 1.

Read so (docs/decisions/0015 to 0018): v in line 17 stands under a root, as in Reddi et al.; the importance score is
per example (Alg. 2) or, as an option, per mini-batch (section III.B); learners are drawn without replacement; one
that has not been scored yet stands at the mean of the others, or all are measured at the initial model first, as in the
authors' code; where too few learners are there, the slots that have travelled most rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Unpack

from archipel.algorithms.constructor import constructor
from archipel.core.algorithm import Algorithm
from archipel.core.parts.planning import Proximal
from archipel.core.parts.protocol import Relay
from archipel.core.parts.selection import ByImportance
from archipel.core.parts.server import Adam, Replace
from archipel.core.parts.weighting import Equally
from archipel.core.types import Local, Plan


@constructor
def radfed(fraction: float = 0.1, hops: int = 15, **local: Unpack[Local]) -> Algorithm:
    """RADFed: models travel through several learners before one plain mean.

    fraction: share C of the learners, as many models travel; hops: redistributing rounds S before the mean.
    """
    return Algorithm("radfed", protocol=Relay(fraction, hops), weighting=Equally(), plan=Plan(**local))


@constructor
def radfed_i(
    fraction: float = 0.1,
    hops: int = 15,
    gamma: float = 0.9,
    score: Literal["sample", "batch"] = "sample",
    first: Literal["mean", "measured"] = "mean",
    **local: Unpack[Local],
) -> Algorithm:
    """RADFedi: learners with large gradients are visited more often.

    fraction: share C of the learners, as many models travel; hops: redistributing rounds S before the mean.
    gamma: weight of a new score beside the old one; score: gradient norms of single examples or of mini-batches.
    first: learners that have no score yet stand at the mean of the others, or all are measured before the first round.
    """
    return replace(radfed(fraction, hops, **local), name="radfed_i", selection=ByImportance(gamma, score, first))


@constructor
def radfed_p(fraction: float = 0.1, hops: int = 15, rho: float = 0.01, **local: Unpack[Local]) -> Algorithm:
    """RADFedp: with FedProx's term at the learners, anchored at the model that came, not at the community's.

    fraction: share C of the learners, as many models travel; hops: redistributing rounds S before the mean.
    rho: weight of the proximal term.
    """
    return replace(radfed(fraction, hops, **local), name="radfed_p", planners=(Proximal(rho),))


@constructor
def radfed_m(fraction: float = 0.1, hops: int = 15, alpha: float = 0.6, **local: Unpack[Local]) -> Algorithm:
    """RADFedm: the new model keeps a part 1 - alpha of the old one.

    fraction: share C of the learners, as many models travel; hops: redistributing rounds S before the mean.
    alpha: share of the mean in the new model.
    """
    return replace(radfed(fraction, hops, **local), name="radfed_m", server=Replace(alpha))


@constructor
def radfed_a(
    fraction: float = 0.1,
    hops: int = 15,
    eta: float = 0.01,
    tau: float = 1e-4,
    initial: float = 0.0,
    **local: Unpack[Local],
) -> Algorithm:
    """RADFeda: the mean of the models that travelled is a gradient for Adam at the controller.

    fraction: share C of the learners, as many models travel; hops: redistributing rounds S before the mean.
    eta: server learning rate; tau: adaptivity, added to the root of v; initial: v before the first round.
    """
    return replace(radfed(fraction, hops, **local), name="radfed_a", server=Adam(eta, tau=tau, initial=initial))

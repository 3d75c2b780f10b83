"""FedAsync: C. Xie et al., Asynchronous Federated Optimization, 2019.

Implemented: w <- (1 - a_t) w + a_t w_k with a_t = alpha s(t - tau), s constant, polynomial or hinge, and the proximal
term rho. Defaults: poly with a = .5 and rho = .005 as Metis section VI runs it; hinge with a = 10, b = 4 as RADFed
section IV.E does; alpha is what RADFed searches over (.3, .6, .9).

Read so: staleness counts the versions between the model a task carried and its commit, 0 for a fresh one, as in Fed2A
formula 4; Xie's t counts the commit itself, which is one more: `counts_own_commit` (docs/decisions/0007).
"""

from __future__ import annotations

from typing import Literal, Unpack

from archipel.algorithms.constructor import constructor
from archipel.core.algorithm import Algorithm
from archipel.core.parts.merge import Mix
from archipel.core.parts.planning import Proximal
from archipel.core.parts.protocol import Stream
from archipel.core.parts.weighting import ByFreshness
from archipel.core.types import Local, Plan


@constructor
def fedasync(
    alpha: float = 0.6,
    curve: Literal["constant", "poly", "hinge"] = "poly",
    a: float | None = None,
    b: float = 4.0,
    rho: float = 0.005,
    concurrency: int | None = None,
    counts_own_commit: bool = False,
    **local: Unpack[Local],
) -> Algorithm:
    """FedAsync: every update is mixed into the model as it comes, the staler the less.

    alpha: mixing coefficient of a fresh update.
    curve: how it falls with staleness.
    a: exponent of poly, .5 unless given, or slope of hinge, 10 unless given; b: staleness that hinge forgives.
    rho: weight of the proximal term.
    concurrency: learners at work at a time, which bounds the staleness; None: all.
    counts_own_commit: staleness is one more, as Xie et al. count it: 1 for a fresh update.
    """
    if a is None:
        a = 10.0 if curve == "hinge" else 0.5
    return Algorithm(
        "fedasync",
        protocol=Stream(concurrency=concurrency),
        weighting=ByFreshness(curve, a, b, counts_own_commit),
        merge=Mix(alpha),
        planners=(Proximal(rho),),
        plan=Plan(**local),
    )

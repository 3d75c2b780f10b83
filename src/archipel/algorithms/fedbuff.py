"""FedBuff: J. Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022.

Implemented: algorithm 1: every K = 10 updates w <- w + eta (1 / K) sum of s(tau_k) (y_k - w'_k), w'_k being the model
that learner k received; s(tau) = (1 + tau)^-1/2, tau the versions since then; momentum at the controller as an option.
Not implemented: secure aggregation of the buffer.

Read so (docs/decisions/0064): a learner whose update waits in the buffer is not given another task before the commit;
with `concurrency` below the number of learners others take its place at once, as in the paper.
"""

from __future__ import annotations

from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.core.algorithm import Algorithm
from archipel.core.parts.changes import MeanChange
from archipel.core.parts.protocol import Stream
from archipel.core.parts.server import Momentum, Replace
from archipel.core.parts.weighting import ByFreshness
from archipel.core.types import Local, Plan


@constructor
def fedbuff(
    buffer: int = 10,
    a: float = 0.5,
    eta: float = 1.0,
    beta: float = 0.0,
    concurrency: int | None = None,
    **local: Unpack[Local],
) -> Algorithm:
    """FedBuff: asynchronous; the mean change of every `buffer` updates moves the model.

    buffer: updates of a commit, K.
    a: exponent by which an update counts less with its staleness.
    eta: server learning rate; beta: momentum at the controller.
    concurrency: learners at work at a time; None: all.
    """
    return Algorithm(
        "fedbuff",
        protocol=Stream(buffer, concurrency=concurrency),
        weighting=ByFreshness("poly", a),
        merge=MeanChange(),
        server=Momentum(eta, beta) if beta else Replace(eta),
        plan=Plan(**local),
    )

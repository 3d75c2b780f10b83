"""Oort: F. Lai et al., Efficient Federated Learning via Guided Participant Selection, OSDI 2021.

Implemented: the statistical utility U_k = n_k sqrt(mean squared loss) (eq. 1) with its temporal uncertainty sqrt(.1
log(R) / L_k); exploration of a share that begins at .9 and falls by .98 a round to .2; exploitation by drawing in
proportion to the utility among those within 95 % of the last one that would be taken (algorithm 1).

Read so (docs/decisions/0065): losses are those of the received model over all training examples, where the paper takes
those seen in training. Not implemented: the penalty for slow learners and the pacer, because the controller has no
clock; clipping and noise of utilities. Learners not seen yet are drawn uniformly, where the paper prefers fast ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.utility_selection import ByUtility
from archipel.core.types import Local


@constructor
def oort(
    explore: float = 0.9,
    decay: float = 0.98,
    least: float = 0.2,
    cutoff: float = 0.95,
    fraction: float = 0.1,
    **local: Unpack[Local],
) -> Algorithm:
    """Oort: learners with many examples of high loss take part more often.

    explore: share of a round's places for learners not seen yet, in the first round.
    decay: factor of that share in every round; least: the smallest that it becomes.
    cutoff: who comes within this share of the last learner's utility may take part in its place.
    fraction: share C of the learners that takes part in a round.
    """
    selection = ByUtility(explore, decay, least, cutoff)
    return replace(fedavg(fraction, **local), name="oort", selection=selection)

"""TiFL: Z. Chai et al., TiFL: A Tier-based Federated Learning System, HPDC 2020.

Implemented: a round's learners come from one tier, drawn anew each round (section 4.2); chances of tiers given, or
adapted to how well the model does there, with credits that bound how often a tier is chosen (algorithm 2).

Read so (docs/decisions/0065): tiers are the fleet's groups, where the paper measures response times, and a tier's
chance is in proportion to the mean of its learners' last training losses, where the paper takes test accuracies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.utility_selection import ByTier
from archipel.core.types import Local


@constructor
def tifl(
    chances: Mapping[str, float] | None = None,
    credits: int | None = None,
    fraction: float = 0.1,
    **local: Unpack[Local],
) -> Algorithm:
    """TiFL: each round's learners come from one group, so that fast ones do not wait for slow ones.

    chances: of each group, {"fast": 0.7, "slow": 0.3}; None: in proportion to its learners' training loss.
    credits: rounds that a group may be chosen as long as others have some left; None: any number.
    fraction: share C of the learners that takes part in a round.
    """
    return replace(fedavg(fraction, **local), name="tifl", selection=ByTier(chances, credits))

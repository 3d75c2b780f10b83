"""Power-of-choice: Y. J. Cho et al., Client Selection in Federated Learning, 2020.

Implemented: pi_rpow-d: d candidates are drawn without replacement with chances in proportion to their examples; of them
the m with the highest loss train. The loss of a learner is the one it last reported, of the model that it received
then; who has never reported comes first.

Read so (docs/decisions/0065): pi_pow-d, which asks the candidates for their loss of the current model before each
round, is not there. Learners count the same, as in the paper, whose draw has their examples in it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.utility_selection import ByLoss
from archipel.core.types import Local


@constructor
def power_of_choice(candidates: int = 10, fraction: float = 0.1, **local: Unpack[Local]) -> Algorithm:
    """Power-of-choice: learners with the highest loss among some that are drawn take part in a round.

    candidates: learners drawn, d.
    fraction: share C of the learners that takes part in a round.
    """
    plain = fedavg(fraction, equally=True, **local)
    return replace(plain, name="power_of_choice", selection=ByLoss(candidates))

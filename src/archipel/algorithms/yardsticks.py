"""Baselines that federated methods are compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from archipel.algorithms.constructor import constructor
from archipel.algorithms.fedavg import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts.planning import PrivateLayers
from archipel.core.types import Local


@constructor
def local_only(**local: Unpack[Local]) -> Algorithm:
    """Each learner trains alone and shares nothing: the result without a federation."""
    return replace(fedavg(**local), name="local_only", planners=(PrivateLayers("all"),))


@constructor
def centralised(**local: Unpack[Local]) -> Algorithm:
    """All data in one place, in simulation only: the result if data could be pooled."""
    return replace(fedavg(**local), name="centralised", pooled=True)

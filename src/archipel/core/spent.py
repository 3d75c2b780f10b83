"""A learner's report on its account of differential privacy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spent:
    """The differential privacy that a learner's updates, this one included, have spent for any of its examples."""

    epsilon: float
    delta: float
    noise: float
    """In units of the clip."""
    rests: bool
    """Whether its budget is too small for another task."""

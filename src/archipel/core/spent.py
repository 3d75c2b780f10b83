"""What a learner tells of its account of differential privacy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spent:
    """What a learner's updates so far, this one included, reveal of any of its examples, by differential privacy."""

    epsilon: float
    delta: float
    noise: float
    """In units of the clip."""
    rests: bool
    """Its budget does not pay for another task."""

"""Who masks with whom: everybody with everybody, or in large cohorts a ring of random neighbours (Bell et al. 2020).

The order of the ring follows from all public keys of the round, so a learner finds its neighbours itself and a
controller cannot choose them for it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

EVERYBODY = 64
"""Up to so many learners all are neighbours."""


def degree(learners: int) -> int:
    """Return how many neighbours each learner has."""
    if learners <= EVERYBODY:
        return learners - 1
    return 2 * math.ceil(5 * math.log2(learners))


def neighbours(keys: Mapping[str, bytes]) -> dict[str, tuple[str, ...]]:
    """Return the neighbours of every learner, given everybody's public keys."""
    together = hashlib.sha256()
    for name in sorted(keys):
        together.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(keys[name]).digest())
    salt = together.digest()
    ring = sorted(keys, key=lambda name: hashlib.sha256(salt + name.encode()).digest())
    half, count = degree(len(ring)) // 2, len(ring)
    if count <= EVERYBODY:
        return {name: tuple(sorted(other for other in ring if other != name)) for name in ring}
    return {
        name: tuple(sorted(ring[(place + step) % count] for step in range(-half, half + 1) if step))
        for place, name in enumerate(ring)
    }

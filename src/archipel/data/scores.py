"""Measures of how much islands differ.

RADFed's C-score and the sizes of its Table I; earth mover's and Hellinger distances between learners' classes. The
training parts of all learners count, including those of held-out learners.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from archipel.core.checks import one_of
from archipel.data.array_types import FloatArray
from archipel.data.islands import Islands

DISTANCES = ("earth_mover", "hellinger")


@dataclass(frozen=True)
class SizeStatistics:
    """Numbers of training examples, as in RADFed's Table I."""

    min: int
    max: int
    mean: float
    stdev: float
    """Of a population (divided by n), as in the paper's figures."""

    def __str__(self) -> str:
        return f"{self.min:,} to {self.max:,} examples, mean {self.mean:,.0f}, stdev {self.stdev:,.0f}"


def size_statistics(islands: Islands) -> SizeStatistics:
    """Return the least, largest and mean number of examples of a learner, and the standard deviation."""
    sizes = np.array(islands.sizes())
    return SizeStatistics(int(sizes.min()), int(sizes.max()), float(sizes.mean()), float(sizes.std()))


def c_score(islands: Islands) -> float:
    """Compute RADFed's class non-IID score: the mean over learners of sum_c |r_c - R_c|, from 0 (equal) to below 2.

    r_c is the ratio of class c at the learner, R_c that of all learners' examples together.
    """
    table = islands.class_table().numpy()
    overall = table.sum(0) / table.sum()
    return float(np.abs(class_shares(islands) - overall).sum(1).mean())


def class_distances(islands: Islands, distance: str = "hellinger") -> FloatArray:
    """Compute distances between every two learners' class distributions, from 0 (equal) to 1 (no class shared).

    "hellinger" is sqrt(1 - sum_c sqrt(p_c q_c)). "earth_mover" is the share of examples that would have to change
    their class, if all classes are equally far from one another: half of sum_c |p_c - q_c|.
    """
    one_of("class_distances", "distance", distance, DISTANCES)
    shares = class_shares(islands)
    if distance == "hellinger":
        roots = np.sqrt(shares)
        # a sum of squared differences: 1 - sum sqrt(pq) loses small distances and is not exactly 0 on the diagonal
        return np.stack([np.sqrt(0.5 * ((roots - mine) ** 2).sum(1)) for mine in roots])
    return np.stack([0.5 * np.abs(shares - mine).sum(1) for mine in shares])


def class_shares(islands: Islands) -> FloatArray:
    """Return every learner's class distribution: [learners, classes]."""
    table = islands.class_table().numpy().astype(np.float64)
    shares: FloatArray = table / table.sum(1, keepdims=True)
    return shares

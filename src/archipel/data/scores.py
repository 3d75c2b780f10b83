"""How different the islands are, in numbers.

RADFed's C-score and the sizes of its Table I; earth mover's and Hellinger distances between learners' classes. All
learners count, held out or not, with their training parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from archipel.core.checks import one_of
from archipel.data.islands import Islands
from archipel.data.sizes import Shares

DISTANCES = ("earth_mover", "hellinger")


@dataclass(frozen=True)
class SizeStatistics:
    """Numbers of training examples, as in RADFed's Table I."""

    min: int
    max: int
    mean: float
    stdev: float
    """Of a population (divided by n): so the paper's own draws give the paper's own figures."""

    def __str__(self) -> str:
        return f"{self.min:,} to {self.max:,} examples, mean {self.mean:,.0f}, stdev {self.stdev:,.0f}"


def size_statistics(islands: Islands) -> SizeStatistics:
    """How many examples learners have: the fewest, the most, the mean and the standard deviation."""
    sizes = np.array(islands.sizes())
    return SizeStatistics(int(sizes.min()), int(sizes.max()), float(sizes.mean()), float(sizes.std()))


def c_score(islands: Islands) -> float:
    """RADFed's class non-IID score: the mean over learners of sum_c |r_c - R_c|; 0 when all are alike, below 2.

    r_c is the ratio of class c at the learner, R_c that of all learners' examples together.
    """
    table = islands.class_table().numpy()
    everybody = table.sum(0) / table.sum()
    return float(np.abs(class_shares(islands) - everybody).sum(1).mean())


def class_distances(islands: Islands, distance: str = "hellinger") -> Shares:
    """How far apart every two learners' class distributions are, from 0 (alike) to 1 (no class shared).

    "hellinger" is sqrt(1 - sum_c sqrt(p_c q_c)). "earth_mover" is the share of examples that would have to change
    their class, where all classes are equally far from one another: half of sum_c |p_c - q_c|.
    """
    one_of("class_distances", "distance", distance, DISTANCES)
    shares = class_shares(islands)
    if distance == "hellinger":
        roots = np.sqrt(shares)
        # summed as differences: 1 - sum sqrt(pq) would lose the small ones, and is not quite 0 for a learner itself
        return np.stack([np.sqrt(0.5 * ((roots - mine) ** 2).sum(1)) for mine in roots])
    return np.stack([0.5 * np.abs(shares - mine).sum(1) for mine in shares])


def class_shares(islands: Islands) -> Shares:
    """Every learner's class distribution: [learners, classes]."""
    table = islands.class_table().numpy().astype(np.float64)
    shares: Shares = table / table.sum(1, keepdims=True)
    return shares

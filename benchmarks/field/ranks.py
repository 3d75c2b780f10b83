"""Friedman's test and Nemenyi's critical difference (J. Demsar, Statistical Comparisons of Classifiers, JMLR 2006)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2, rankdata, studentized_range


@dataclass(frozen=True)
class Ranks:
    """What the methods' scores on the same problems come to."""

    mean: dict[str, float]
    """Mean rank of every method; 1 is the best."""
    problems: int
    statistic: float
    """Friedman's chi squared."""
    p: float
    """Chance of as large a statistic if all methods were alike."""
    difference: float
    """Two methods differ at 5 % if their mean ranks are farther apart than this."""

    def groups(self) -> list[tuple[str, ...]]:
        """Return the largest groups of methods that do not differ, the best first."""
        ordered = sorted(self.mean, key=self.mean.__getitem__)
        found: list[tuple[str, ...]] = []
        for start, first in enumerate(ordered):
            alike = tuple(one for one in ordered[start:] if self.mean[one] - self.mean[first] <= self.difference)
            if len(alike) > 1 and not any(set(alike) <= set(other) for other in found):
                found.append(alike)
        return found


def ranks_of(scores: Mapping[str, Sequence[float]]) -> Ranks:
    """Compare methods by their scores, higher is better, on the same problems; ties share a rank."""
    names = list(scores)
    table = np.array([scores[name] for name in names])  # [method, problem]
    count, problems = table.shape
    ranks = np.apply_along_axis(rankdata, 0, -table)
    mean = ranks.mean(axis=1)
    statistic = 12 * problems / (count * (count + 1)) * (float((mean**2).sum()) - count * (count + 1) ** 2 / 4)
    quantile = studentized_range.ppf(0.95, count, math.inf) / math.sqrt(2)
    difference = float(quantile * math.sqrt(count * (count + 1) / (6 * problems)))
    return Ranks(
        dict(zip(names, map(float, mean), strict=True)),
        problems,
        statistic,
        float(chi2.sf(statistic, count - 1)),
        difference,
    )

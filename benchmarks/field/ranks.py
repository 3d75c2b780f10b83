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


def friedman(mean: Sequence[float], problems: int) -> float:
    """Return Friedman's chi squared of methods with these mean ranks on so many problems."""
    count = len(mean)
    return 12 * problems / (count * (count + 1)) * (sum(rank**2 for rank in mean) - count * (count + 1) ** 2 / 4)


def critical_difference(methods: int, problems: int) -> float:
    """Return how far apart mean ranks have to be to differ at 5 % (Nemenyi)."""
    quantile = float(studentized_range.ppf(0.95, methods, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(methods * (methods + 1) / (6 * problems))


def ranks_of(scores: Mapping[str, Sequence[float]]) -> Ranks:
    """Compare methods by their scores, higher is better, on the same problems; ties share a rank."""
    names = list(scores)
    table = np.array([scores[name] for name in names])  # [method, problem]
    count, problems = table.shape
    mean = [float(rank) for rank in np.apply_along_axis(rankdata, 0, -table).mean(axis=1)]
    statistic = friedman(mean, problems)
    p = float(chi2.sf(statistic, count - 1))
    return Ranks(dict(zip(names, mean, strict=True)), problems, statistic, p, critical_difference(count, problems))

"""Matching of neurons between networks: BBP-MAP of FedMA section 2.2 (Yurochkin et al., PFNM, 2019).

Neurons of learner j are draws around shared ones, w_jl ~ N(theta_i, sigma^2), theta_i ~ N(0, sigma0^2), and the number
of shared ones follows a Beta-Bernoulli process with mass gamma. The most probable assignment of learner j, given those
of the others, is a linear assignment problem with the gains

    matched with i   |s G_i + s w|^2 / (s0 + s m_i + s) - |s G_i|^2 / (s0 + s m_i) + 2 log(m_i / (J - m_i))
    k-th new one     |s w|^2 / (s0 + s) - 2 log(k) + 2 log(gamma / J)

where s = 1 / sigma^2, s0 = 1 / sigma0^2, m_i counts the other learners that have shared neuron i, G_i is the sum of
their rows, and J is the number of learners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from archipel.core.parts.neurons import FloatTable


@dataclass(frozen=True)
class Prior:
    sigma: float
    """Standard deviation of a learner's neurons around the shared ones."""
    sigma0: float
    """Standard deviation of the shared neurons around zero."""
    gamma: float
    """Mass of the Beta process: a larger one makes more new neurons."""


def match(
    models: Sequence[FloatTable], width: int, prior: Prior, iterations: int, generator: np.random.Generator
) -> list[list[int]]:
    """Return, for each row of each model, the number of its shared neuron; there are at most `width`.

    Matching starts with the (first) largest model and adds the others in order. Then each is removed and matched again,
    `iterations` times in a random order, or until nothing changes. Shared neurons are numbered in the order of the
    largest model's rows, then of the others'.
    """
    order = sorted(range(len(models)), key=lambda j: -len(models[j]))
    places: dict[int, list[int]] = {order[0]: list(range(len(models[order[0]])))}
    for j in order[1:]:
        places[j] = _assign(models, places, j, width, prior)
    for _ in range(iterations if len(models) > 1 else 0):
        before = {j: list(placed) for j, placed in places.items()}
        for j in generator.permutation(len(models)).tolist():
            del places[j]
            _renumber(places, order)
            places[j] = _assign(models, places, j, width, prior)
        _renumber(places, order)
        if places == before:
            break
    return [places[j] for j in range(len(models))]


def gains(rows: FloatTable, sums: FloatTable, counts: FloatTable, room: int, learners: int, prior: Prior) -> FloatTable:
    """Return the gain of assigning each row to each shared neuron, and to each of `room` new ones."""
    s, s0 = prior.sigma**-2, prior.sigma0**-2
    own, theirs = (rows**2).sum(axis=1)[:, None], (sums**2).sum(axis=1)
    before = s0 + s * counts
    together = own + 2 * rows @ sums.T + theirs
    matched = s**2 * (together / (before + s) - theirs / before) + 2 * np.log(counts / (learners - counts))
    new = s**2 * own / (s0 + s) + 2 * np.log(prior.gamma / learners) - 2 * np.log(np.arange(1, room + 1))
    return np.hstack((matched, new))


def _assign(models: Sequence[FloatTable], places: dict[int, list[int]], j: int, width: int, prior: Prior) -> list[int]:
    """Match a model with the shared neurons that the others have."""
    rows, shared = models[j], 1 + max((max(placed, default=-1) for placed in places.values()), default=-1)
    sums, counts = np.zeros((shared, rows.shape[1])), np.zeros(shared)
    for k in sorted(places):  # sums must not depend on who was matched first
        sums[places[k]] += models[k]
        counts[places[k]] += 1
    from scipy.optimize import linear_sum_assignment  # slow to import, and only FedMA needs it

    room = min(len(rows), width - shared)
    _, chosen = linear_sum_assignment(gains(rows, sums, counts, room, len(models), prior), maximize=True)
    placed: list[int] = []
    for column in chosen.tolist():  # new ones are interchangeable: number them by row
        new = sum(place >= shared for place in placed)
        placed.append(column if column < shared else shared + new)
    return placed


def _renumber(places: dict[int, list[int]], order: Sequence[int]) -> None:
    """Renumber shared neurons in the order of their first use, without gaps."""
    seen = dict.fromkeys(i for j in order for i in places.get(j, ()))
    numbers = {old: new for new, old in enumerate(seen)}
    for j, placed in places.items():
        places[j] = [numbers[i] for i in placed]

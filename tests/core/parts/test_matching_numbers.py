"""BBP-MAP by hand numbers: what a match is worth, which neurons are the same, and how many there may be."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from archipel.core.parts.matching import Prior, gains, match
from archipel.core.parts.neurons import FloatTable


def draws() -> np.random.Generator:
    return np.random.default_rng(0)


def test_what_a_match_is_worth_by_hand() -> None:
    # sigma = .5, sigma0 = 1: s = 4, s0 = 1; two of three others have the first shared neuron, one the second
    rows, sums, counts = np.array([[1.0, 2.0]]), np.array([[2.0, 4.0], [0.0, 1.0]]), np.array([2.0, 1.0])
    found = gains(rows, sums, counts, room=2, learners=4, prior=Prior(0.5, 1.0, 3.0))
    first = 16 * (9 + 36) / (1 + 8 + 4) - 16 * (4 + 16) / (1 + 8) + 2 * math.log(2 / (4 - 2))
    second = 16 * (1 + 9) / (1 + 4 + 4) - 16 * 1 / (1 + 4) + 2 * math.log(1 / (4 - 1))
    new = 16 * 5 / (1 + 4) + 2 * math.log(3 / 4)
    assert found[0] == pytest.approx([first, second, new, new - 2 * math.log(2)])


def test_the_gain_is_the_growth_of_the_posterior() -> None:
    """Of |sum of s w|^2 / (s0 + s m): what the assignments' log posterior depends on, up to the counts' own terms."""
    rng = draws()
    models, prior = rng.normal(size=(3, 2, 4)), Prior(0.7, 1.3, 1.0)
    s, s0 = prior.sigma**-2, prior.sigma0**-2

    def posterior(members: list[FloatTable]) -> float:
        total = s * np.sum(members, axis=0)
        return float(total @ total / (s0 + s * len(members)))

    found = gains(models[2], models[0] + models[1], np.array([2.0, 2.0]), 0, 3, prior)
    for row, column in itertools.product(range(2), range(2)):
        others = [models[0][column], models[1][column]]
        grown = posterior([*others, models[2][row]]) - posterior(others)
        assert found[row, column] == pytest.approx(grown + 2 * math.log(2 / 1))


def test_a_permuted_copy_is_matched_back() -> None:
    rng = draws()
    rows = rng.normal(size=(7, 5))
    order = rng.permutation(7)
    first, second = match([rows, rows[order]], 10, Prior(1.0, 1.0, 1.0), 5, draws())
    assert first == list(range(7))
    assert second == order.tolist()


def test_three_permuted_and_noisy_copies_are_matched_back() -> None:
    rng = draws()
    rows = 3 * rng.normal(size=(12, 8))
    orders = [rng.permutation(12) for _ in range(3)]
    copies = [rows[order] + 0.05 * rng.normal(size=rows.shape) for order in orders]
    places = match(copies, 18, Prior(1.0, 1.0, 1.0), 5, draws())
    neurons = [dict(zip(placed, order.tolist(), strict=True)) for placed, order in zip(places, orders, strict=True)]
    assert neurons[0] == neurons[1] == neurons[2], "one shared neuron is one and the same neuron at all learners"


def test_neurons_that_are_like_no_other_are_new_as_long_as_there_is_room() -> None:
    first, second = 10 * np.eye(6)[:3], 10 * np.eye(6)[3:]
    prior = Prior(1.0, 1.0, 1.0)
    # |w|^2 = 100: a match with another direction is worth 200 / 3 - 50, a new neuron 50 - 2 log 2 - 2 log k
    assert match([first, second], 6, prior, 5, draws()) == [[0, 1, 2], [3, 4, 5]]
    one, other = match([first, second], 4, prior, 5, draws())
    assert sorted({*one, *other}) == [0, 1, 2, 3]
    one, other = match([first, second], 3, prior, 5, draws())
    assert sorted(one) == sorted(other) == [0, 1, 2]


def test_gamma_makes_as_many_new_neurons_as_the_published_code() -> None:
    """gamma = 7 and two learners: 2 log(3.5 / k) is above 0 up to k = 3, so small networks grow by three neurons."""
    rows = 1e-3 * draws().normal(size=(9, 5))
    for gamma, new in ((7.0, 3), (2.5, 1), (1.0, 0)):
        first, second = match([rows, rows], 20, Prior(1.0, 1.0, gamma), 5, draws())
        assert len({*first, *second}) == 9 + new


def test_learners_of_different_widths() -> None:
    rows = 5 * np.eye(6)
    small, large = match([rows[[4, 1]], rows], 6, Prior(1.0, 1.0, 1.0), 5, draws())
    assert (small, large) == ([4, 1], [0, 1, 2, 3, 4, 5]), "the largest begins"


def test_one_learner_keeps_its_order() -> None:
    assert match([np.eye(4)], 6, Prior(1.0, 1.0, 7.0), 5, draws()) == [[0, 1, 2, 3]]


def test_the_best_of_all_assignments_is_found() -> None:
    """Every assignment of four neurons to four shared ones, tried one by one."""
    rng = draws()
    one, other = rng.normal(size=(2, 4, 3))
    table = gains(other, one, np.ones(4), 0, 2, Prior(1.0, 1.0, 1.0))
    best = max(itertools.permutations(range(4)), key=lambda p: sum(table[row, p[row]] for row in range(4)))
    (_, found) = match([one, other], 4, Prior(1.0, 1.0, 1.0), 0, draws())
    assert found == list(best)

"""Accounts equal those of dp-accounting and Opacus, on a table of settings."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from archipel.privacy.accounting import Draws, epsilon, noise_for, rounds_for

SETTINGS = [
    (1.0, 10, 100, 100, 1e-5),
    (0.7, 10, 1000, 500, 1e-6),
    (2.0, 50, 100, 20, 1e-5),
]
"""Noise, learners drawn, learners, rounds, delta."""
table = pytest.mark.parametrize(("noise", "sampled", "among", "rounds", "delta"), SETTINGS)


@pytest.mark.slow
@table
def test_poisson_is_the_privacy_loss_distribution(
    noise: float, sampled: int, among: int, rounds: int, delta: float
) -> None:
    event = dp_accounting.PoissonSampledDpEvent(sampled / among, dp_accounting.GaussianDpEvent(noise))
    theirs = PLDAccountant().compose(event, rounds).get_epsilon(delta)
    mine = epsilon("poisson", noise, (Draws(sampled, among, rounds),), delta)
    assert theirs <= mine <= theirs * 1.002  # the losses are rounded up, more coarsely here


@pytest.mark.slow
@table
def test_fixed_rounds_are_drawn_without_replacement(
    noise: float, sampled: int, among: int, rounds: int, delta: float
) -> None:
    account = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(noise / 2)  # another learner in one's place: the sum moves by two clips
    account.compose(dp_accounting.SampledWithoutReplacementDpEvent(among, sampled, gaussian), rounds)
    theirs = account.get_epsilon(delta)
    assert theirs <= epsilon("fixed", noise, (Draws(sampled, among, rounds),), delta) * (1 + 1e-9) <= theirs * 1.02


@pytest.mark.slow
def test_opacus_agrees() -> None:
    from opacus.accountants import PRVAccountant  # imported late: it takes seconds

    for noise, sampled, among, rounds, delta in SETTINGS[::2]:
        account = PRVAccountant()
        account.history = [(noise, sampled / among, rounds)]
        theirs = account.get_epsilon(delta=delta)
        assert epsilon("poisson", noise, (Draws(sampled, among, rounds),), delta) == pytest.approx(theirs, abs=0.02)


@pytest.mark.parametrize(("noise", "times", "delta"), [(1.0, 1, 1e-5), (5.0, 20, 1e-6), (0.5, 3, 1e-4)])
def test_counted_learners_cost_what_a_gaussian_costs(noise: float, times: int, delta: float) -> None:
    """Balle and Wang, theorem 8: delta of the Gaussian mechanism at this epsilon."""
    spent, scale = epsilon("counted", noise, (Draws(1, 1, times),), delta), noise / math.sqrt(times)

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    found = phi(0.5 / scale - spent * scale) - math.exp(spent) * phi(-0.5 / scale - spent * scale)
    assert found == pytest.approx(delta, rel=1e-3)


def test_rounds_of_different_sizes_add_up() -> None:
    apart = epsilon("poisson", 3.0, (Draws(10, 100, 5), Draws(10, 80, 5)), 1e-5)
    assert (
        epsilon("poisson", 3.0, (Draws(10, 100, 10),), 1e-5)
        < apart
        < epsilon("poisson", 3.0, (Draws(10, 80, 10),), 1e-5)
    )
    assert epsilon("counted", 1.0, (), 1e-5) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "counted"])
def test_each_follows_from_the_others(sampling: Any) -> None:
    """The noise for a budget keeps to it and is the least; with it the budget pays for just these rounds."""
    sampled, among = (1, 1) if sampling == "counted" else (20, 100)
    draws = (Draws(sampled, among, 40),)
    noise = noise_for(sampling, 3.0, draws, 1e-5)
    assert epsilon(sampling, noise, draws, 1e-5) <= 3.0 < epsilon(sampling, noise / 1.01, draws, 1e-5)
    assert 40 <= rounds_for(sampling, 3.0, noise, sampled, among, 1e-5) <= 41
    assert rounds_for(sampling, 1e-3, noise, sampled, among, 1e-5) == 0

"""Accounting of differential privacy, by dp-accounting: the cost of releasing noised sums.

The cost of a release, and the definition of neighbouring runs, depend on how learners are drawn:

    poisson   each learner with the same probability            one learner more or less; privacy loss distribution
    fixed     m of n learners are drawn                         one learner replaced by another; Renyi divergence
    counted   no draw, or none that amplifies privacy           one learner's updates set to zero; Gaussian mechanism
    summed    as counted, with each learner adding a part of the noise; Renyi divergence of sums of discrete Gaussians

Noise is the standard deviation in units of the clip. Replacing a learner moves the sum by two clips, so `fixed` counts
half of it. All results are upper bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any, Literal, NamedTuple, TypeAlias

Sampling: TypeAlias = Literal["poisson", "fixed", "counted", "summed"]

INTERVAL = 1e-3
"""Privacy losses are rounded up to multiples of this."""
ORDERS = (1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 512)
"""Orders of the Renyi divergences for `fixed` and `summed`."""
STEPS = 9
"""Bisection steps in a search for the noise, within a factor of two: precision 0.2 %."""
LEAST_NOISE = 1 / 32
MOST_ROUNDS = 1 << 20


class Draws(NamedTuple):
    """A number of rounds of `sampled` learners among all; for `counted`, (1, 1, times) of one learner."""

    sampled: float
    among: int
    rounds: int


def epsilon(sampling: Sampling, noise: float, draws: tuple[Draws, ...], delta: float) -> float:
    """Return the epsilon of these rounds.

    >>> round(epsilon("counted", 1.0, (Draws(1, 1, 1),), 1e-5), 4)
    4.3772
    """
    if not any(one.rounds for one in draws):
        return 0.0
    return float(_EPSILON[sampling](noise, draws, delta))


def noise_for(sampling: Sampling, budget: float, draws: tuple[Draws, ...], delta: float) -> float:
    """Return the least noise, to 0.2 %, with which these rounds cost no more than the budget."""
    enough = 1.0
    while epsilon(sampling, enough, draws, delta) > budget:
        enough *= 2
    while enough > LEAST_NOISE and epsilon(sampling, enough / 2, draws, delta) <= budget:
        enough /= 2
    factor = 2.0
    for _ in range(STEPS):
        factor **= 0.5
        if epsilon(sampling, enough / factor, draws, delta) <= budget:
            enough /= factor
    return enough


def rounds_for(sampling: Sampling, budget: float, noise: float, sampled: float, among: int, delta: float) -> int:
    """Return how many rounds the budget allows, at most about a million."""

    def paid(rounds: int) -> bool:
        return epsilon(sampling, noise, (Draws(sampled, among, rounds),), delta) <= budget

    rounds, step = 0, 1
    while step < MOST_ROUNDS and paid(2 * step):
        step *= 2
    while step:
        if paid(rounds + step):
            rounds += step
        step //= 2
    return rounds


class NoisedSteps(NamedTuple):
    """A number of sums with this noise, each of which includes an example with this probability."""

    noise: float
    chance: float
    times: int


@lru_cache(maxsize=1 << 16)
def epsilon_of_steps(steps: tuple[NoisedSteps, ...], delta: float) -> float:
    """Return the epsilon of one example, for adding or removing it from these sums.

    >>> round(epsilon_of_steps((NoisedSteps(1.0, 1.0, 1),), 1e-5), 4)
    4.3772
    """
    made = [one for one in steps if one.times]
    if not made:
        return 0.0
    if all(one.chance == 1 for one in made):  # Gaussian mechanisms compose to one
        precision = sum(one.times / one.noise**2 for one in made)
        return float(library().get_epsilon_gaussian(precision**-0.5, delta))
    losses = [_sampled_loss(one.noise, one.chance).self_compose(one.times) for one in made]
    return float(reduce(lambda one, other: one.compose(other), losses).get_epsilon_for_delta(delta))


@lru_cache(maxsize=1 << 12)
def noise_for_steps(budget: float, chance: float, steps: int, delta: float) -> float:
    """Return the least noise, to 0.2 %, with which this many steps cost no more than the budget."""
    return noise_for(*_as_draws(chance, budget, steps), delta)


@lru_cache(maxsize=1 << 12)
def steps_for(budget: float, noise: float, chance: float, delta: float) -> int:
    """Return how many steps the budget allows, at most about a million."""
    sampling: Sampling = "counted" if chance == 1 else "poisson"
    return rounds_for(sampling, budget, noise, chance, 1, delta)


def _as_draws(chance: float, budget: float, steps: int) -> tuple[Sampling, float, tuple[Draws, ...]]:
    return ("counted" if chance == 1 else "poisson"), budget, (Draws(chance, 1, steps),)


def library() -> Any:
    """Return dp-accounting, imported late since that takes seconds."""
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise ImportError("Accounting for privacy needs dp-accounting: pip install 'archipel[privacy]'.") from error
    return dp_accounting


@lru_cache(maxsize=512)
def _poisson(noise: float, draws: tuple[Draws, ...], delta: float) -> Any:
    losses = [_sampled_loss(noise, one.sampled / one.among).self_compose(one.rounds) for one in draws]
    return reduce(lambda one, other: one.compose(other), losses).get_epsilon_for_delta(delta)


@lru_cache(maxsize=32)
def _sampled_loss(noise: float, chance: float) -> Any:
    distribution = library().pld.privacy_loss_distribution
    return distribution.from_gaussian_mechanism(noise, sampling_prob=chance, value_discretization_interval=INTERVAL)


@lru_cache(maxsize=512)
def _fixed(noise: float, draws: tuple[Draws, ...], delta: float) -> Any:
    accounting = library()
    gaussian = accounting.GaussianDpEvent(noise / 2)
    replace_one = accounting.NeighboringRelation.REPLACE_ONE
    account = accounting.rdp.RdpAccountant(ORDERS, replace_one)
    for one in draws:
        account.compose(accounting.SampledWithoutReplacementDpEvent(one.among, one.sampled, gaussian), one.rounds)
    return account.get_epsilon(delta)


def _counted(noise: float, draws: tuple[Draws, ...], delta: float) -> Any:
    times = sum(one.rounds for one in draws)
    return library().get_epsilon_gaussian(noise / times**0.5, delta)


def _summed(noise: float, draws: tuple[Draws, ...], delta: float) -> Any:
    """Account for discrete Gaussians of many steps, whose sums have a Gaussian's divergence (Kairouz, theorem 1)."""
    accounting = library()
    account = accounting.rdp.RdpAccountant(ORDERS)
    account.compose(accounting.GaussianDpEvent(noise), sum(one.rounds for one in draws))
    return account.get_epsilon(delta)


_EPSILON: dict[Sampling, Callable[[float, tuple[Draws, ...], float], Any]] = {
    "poisson": _poisson,
    "fixed": _fixed,
    "counted": _counted,
    "summed": _summed,
}

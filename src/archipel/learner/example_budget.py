"""A learner's privacy account for its examples, and the noise of its gradients.

    poisson    each step draws every example with a fixed probability    accounted by the privacy loss distribution
    shuffled   each example is in one batch of every pass                accounted as a Gaussian mechanism per pass

The account covers the steps of tasks whose updates have left the learner; a lost or cancelled task reveals nothing. The
probability of an example is a power of 2^(1/8) near batch / examples, so that learners of many sizes share computations
of accounts, which are slow; sums are divided by the expected size of a batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from archipel.core.algorithm import Algorithm
from archipel.core.checks import require
from archipel.core.layout import Layout
from archipel.core.parts.ending import Ending
from archipel.core.parts.local_noise import LocalNoise
from archipel.core.types import Plan, Spent
from archipel.learner.batches import batches, epochs_of, steps_after, steps_of_epoch
from archipel.privacy.accounting import NoisedSteps, epsilon_of_steps, noise_for_steps, steps_for
from archipel.privacy.noise import derived_key, new_key, uniform

PER_OCTAVE = 8
"""Number of probabilities between p and 2 p."""


@dataclass(frozen=True)
class BudgetTerms:
    """A study's settings for the budgets of all learners."""

    mechanism: LocalNoise
    plans: tuple[Plan, ...]
    budget: float
    """Epsilon, never exceeded by any learner."""
    tasks: int | None
    """Number of tasks that it has to last for, if the noise is computed from it."""

    @staticmethod
    def of(algorithm: Algorithm, layout: Layout, ending: Ending, most: float | None = None) -> BudgetTerms | None:
        """Derive them from a study; most: the site's limit of epsilon. None: the method adds no such noise."""
        mechanism = algorithm.local_noise
        if mechanism is None:
            return None
        given = [epsilon for epsilon in (mechanism.epsilon, ending.epsilon, most) if epsilon is not None]
        tasks = mechanism.tasks_of(algorithm, ending)
        return BudgetTerms(mechanism, algorithm.plans(layout), min(given, default=math.inf), tasks)


@dataclass
class ExampleAccount:
    """A learner's persistent, secret state."""

    key: str = field(default_factory=new_key, repr=False)
    """The key of noise and batches; it must stay secret."""
    spent: list[tuple[float, float, int]] = field(default_factory=list)
    """Steps of tasks whose updates have left, by noise and probability of an example."""

    def steps(self) -> tuple[NoisedSteps, ...]:
        return tuple(NoisedSteps(*one) for one in self.spent)


@dataclass(frozen=True)
class StepNoise:
    """The clipping and noise of one task's gradients."""

    key: str = field(repr=False)
    """The task's secret key."""
    noise: float
    """Standard deviation in units of the clip."""
    chance: float
    """Probability of an example in a batch; 1 for shuffled batches."""

    def batches(self, mechanism: LocalNoise, plan: Plan, key: int, examples: int, epoch: int) -> list[Tensor]:
        """Return the mini-batches of one pass, as positions among the learner's training examples."""
        if mechanism.batches == "shuffled":
            return batches(plan, key, examples, epoch)
        steps = range(steps_after(plan, examples, epoch), steps_after(plan, examples, epoch + 1))
        numbers = (uniform(self.key, f"batch {epoch} {step}", examples) for step in steps)
        return [torch.from_numpy(np.flatnonzero(one < self.chance)) for one in numbers]

    def expected(self, mechanism: LocalNoise, examples: int, batch: int) -> float:
        """Return the divisor of a batch's sum: the expected size, since the actual one is secret."""
        return self.chance * examples if mechanism.batches == "poisson" else batch

    def randomness(self, epoch: int) -> int:
        """Return the seed of other randomness of a pass, such as dropout."""
        return int(derived_key(self.key, f"randomness {epoch}")[:15], 16)


class ExampleBudget:
    """One learner's budget."""

    def __init__(self, terms: BudgetTerms, examples: int, account: ExampleAccount) -> None:
        self.terms = terms
        self.examples = examples
        self.account = account
        self._noise: float | None = terms.mechanism.noise

    @property
    def noise(self) -> float:
        """Standard deviation in units of the clip: the study's, or the least that keeps the budget."""
        if self._noise is None:
            terms = self.terms
            assert terms.tasks is not None
            plan = max(terms.plans, key=self._uses)
            steps = max(1, terms.tasks * self._uses(plan))
            self._noise = noise_for_steps(terms.budget, self.chance(plan), steps, terms.mechanism.delta)
        return self._noise

    def chance(self, plan: Plan) -> float:
        """Return the probability of an example in a step."""
        if self.terms.mechanism.batches == "shuffled" or self.examples <= plan.batch:
            return 1.0
        octaves: float = round(PER_OCTAVE * math.log2(self.examples / plan.batch)) / PER_OCTAVE
        return min(1.0, math.pow(2.0, -octaves))

    def of_task(self, plan: Plan, place: str) -> StepNoise:
        """Return the noise of a task's gradients; the same place gives the same noise."""
        return StepNoise(derived_key(self.account.key, f"task {place}"), self.noise, self.chance(plan))

    def refusal(self, plan: Plan) -> str | None:
        """Return why the budget does not allow a task, or None."""
        terms = self.terms
        if math.isinf(terms.budget) or self._after(plan, self._uses(plan)) <= terms.budget:
            return None
        return (
            f"the privacy budget of {terms.budget:g} does not pay for another task; epsilon {self.epsilon:.4g} is "
            f"spent at delta {terms.mechanism.delta:g}"
        )

    def charge(self, plan: Plan, epochs: int) -> Spent:
        """Add a task of this many epochs to the account, before its update leaves."""
        self.account.spent = self._with(plan, self._uses(plan, epochs))
        rests = all(self.refusal(known) is not None for known in self.terms.plans)
        return Spent(self.epsilon, self.terms.mechanism.delta, self.noise, rests)

    @property
    def epsilon(self) -> float:
        """Epsilon spent so far."""
        return epsilon_of_steps(self.account.steps(), self.terms.mechanism.delta)

    def tasks_paid(self, plan: Plan) -> int:
        """Return how many tasks of this plan the whole budget allows."""
        uses = self._uses(plan)
        return steps_for(self.terms.budget, self.noise, self.chance(plan), self.terms.mechanism.delta) // max(1, uses)

    def _uses(self, plan: Plan, epochs: int | None = None) -> int:
        """Return how often a task uses the mechanism: once a step or, with shuffled batches, once a pass."""
        steps = steps_after(plan, self.examples, epochs_of(plan, self.examples) if epochs is None else epochs)
        if self.terms.mechanism.batches == "shuffled":
            return -(-steps // steps_of_epoch(self.examples, plan.batch))
        return steps

    def _with(self, plan: Plan, uses: int) -> list[tuple[float, float, int]]:
        counts = {(noise, chance): count for noise, chance, count in self.account.spent}
        pair = (self.noise, self.chance(plan))
        counts[pair] = counts.get(pair, 0) + uses
        return [(*pair, count) for pair, count in sorted(counts.items()) if count]

    def _after(self, plan: Plan, uses: int) -> float:
        steps = replace(self.account, spent=self._with(plan, uses)).steps()
        return epsilon_of_steps(steps, self.terms.mechanism.delta)


def check_budget(budget: ExampleBudget, who: str) -> None:
    """Refuse a budget that is too small for one task."""
    terms = budget.terms
    reason = None if math.isinf(terms.budget) else budget.refusal(min(terms.plans, key=budget._uses))
    if reason is not None and not budget.account.spent:
        plan = min(terms.plans, key=budget._uses)
        require(
            False,
            f"LocalNoise: for {who}, with {budget.examples} examples, a task costs epsilon "
            f"{budget._after(plan, budget._uses(plan)):.3g} with noise={budget.noise:g}, and the budget is "
            f"{terms.budget:g}. Raise the noise or the budget, make tasks shorter, or leave noise out to have it "
            "computed.",
        )

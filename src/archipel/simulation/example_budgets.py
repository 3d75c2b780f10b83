"""The budgets of all learners of a simulation, made for those that take part."""

from __future__ import annotations

from typing import Any

from archipel.core.algorithm import Algorithm
from archipel.core.checks import require
from archipel.core.layout import Layout
from archipel.core.parts.ending import Ending
from archipel.core.parts.protocol import Rounds
from archipel.core.types import Plan, Spent
from archipel.data.array_types import IntArray
from archipel.learner.example_budget import BudgetTerms, ExampleAccount, ExampleBudget, StepNoise, check_budget
from archipel.privacy.noise import derived_key, new_key


class ExampleBudgets:
    """One budget a learner; their keys follow from one secret, which a checkpoint holds."""

    def __init__(self, terms: BudgetTerms, sizes: IntArray) -> None:
        """Check that the budgets pay for something; sizes: training examples of the learners that train."""
        self.terms = terms
        self.secret = new_key()
        self._made: dict[str, ExampleBudget] = {}
        self._check(sizes)

    @staticmethod
    def of_run(algorithm: Algorithm, layout: Layout, ending: Ending, sizes: IntArray) -> ExampleBudgets | None:
        """Return the budgets of learners with so many examples, where they add noise to their gradients."""
        terms = BudgetTerms.of(algorithm, layout, ending)
        if terms is None:
            return None
        budgets, protocol, rounds = ExampleBudgets(terms, sizes), algorithm.protocol, ending.rounds or ending.commits
        if isinstance(protocol, Rounds) and rounds is not None:
            budgets.check_rounds(sizes, protocol.fraction * rounds, rounds)
        return budgets

    def _check(self, sizes: IntArray) -> None:
        most, terms = int(sizes.max()), self.terms
        largest = ExampleBudget(terms, most, ExampleAccount())
        check_budget(largest, "the largest learner")
        terms.mechanism.warn_of_delta(most, "examples of a learner", stacklevel=6)  # the caller of `simulate`

    def check_rounds(self, sizes: IntArray, expected: float, rounds: int) -> None:
        """Refuse more rounds than a budget with a given noise pays for at any learner; expected: tasks of each."""
        mechanism = self.terms.mechanism
        if mechanism.epsilon is None or mechanism.noise is None:
            return
        largest = ExampleBudget(self.terms, int(sizes.max()), ExampleAccount())
        paid = min(largest.tasks_paid(plan) for plan in self.terms.plans)
        require(
            paid >= expected,
            f"LocalNoise: epsilon={mechanism.epsilon:g} with noise={mechanism.noise:g} pays for {paid} tasks of a "
            f"learner with {largest.examples} examples, and for fewer of smaller ones; {rounds} rounds give each about "
            f"{expected:g}. End after {int(rounds * paid / expected)} rounds, raise epsilon or noise, or leave noise "
            "out to have it computed.",
        )

    def of(self, learner: str, examples: int) -> ExampleBudget:
        """Return the budget of a learner."""
        if learner not in self._made:
            account = ExampleAccount(key=derived_key(self.secret, f"learner {learner}"))
            self._made[learner] = ExampleBudget(self.terms, examples, account)
        return self._made[learner]

    def noise(self, learner: str, examples: int, plan: Plan, task: int) -> StepNoise:
        """Return what a task's gradients are noised with."""
        return self.of(learner, examples).of_task(plan, str(task))

    def charge(self, learner: str, examples: int, plan: Plan, epochs: int) -> Spent:
        """Enter a task whose update arrives."""
        return self.of(learner, examples).charge(plan, epochs)

    def save(self) -> dict[str, Any]:
        """Return what a resumed run needs; it has to be kept secret."""
        spent = {name: budget.account.spent for name, budget in self._made.items() if budget.account.spent}
        return {"secret": self.secret, "spent": spent, "examples": {name: self._made[name].examples for name in spent}}

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        self.secret, self._made = saved["secret"], {}
        for name, spent in saved["spent"].items():
            self.of(name, saved["examples"][name]).account.spent = [*spent]

"""A learner's own budgets: of noise in its gradients and in its secure sums; accounts are in its own state folder."""

from __future__ import annotations

from dataclasses import replace

from archipel.core.types import Metrics, Plan
from archipel.federation.learner.local_state import Memory
from archipel.federation.learner.masked_updates import SumSettings
from archipel.federation.learner.policy import Refusal
from archipel.learner.example_budget import BudgetTerms, ExampleAccount, ExampleBudget, StepNoise


class ExamplePrivacy:
    """Gives every task its noise and enters it in the account, as the learner's own copy of the study says."""

    def __init__(
        self, terms: BudgetTerms | None, memory: Memory, examples: int, sums: SumSettings | None = None
    ) -> None:
        """terms: None where the study adds no noise to gradients; sums: None where it has no secure sums."""
        self._memory, self._sums = memory, sums
        self._budget: ExampleBudget | None = None
        if terms is not None:
            memory.examples = memory.examples or ExampleAccount()
            self._budget = ExampleBudget(terms, examples, memory.examples)

    def noise(self, plan: Plan, task: int) -> StepNoise | None:
        """Return what a task's gradients are noised with; refuse one that a budget does not pay for."""
        reason = None if self._sums is None else self._sums.refusal(self._memory.sums + 1)
        if reason is not None:
            raise Refusal(reason)
        if self._budget is None:
            return None
        reason = self._budget.refusal(plan)
        if reason is not None:
            raise Refusal(reason)
        # a task that is repeated after its answer was sent is a new one, whatever its number
        return self._budget.of_task(plan, f"{self._memory.federation} {task} {self._memory.trained}")

    def charged(self, metrics: Metrics, plan: Plan, epochs: int) -> Metrics:
        """Enter a task whose answer is about to be saved; return its metrics with the account."""
        return metrics if self._budget is None else replace(metrics, spent=self._budget.charge(plan, epochs))

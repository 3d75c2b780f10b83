"""Networks whose stacked step could be silently another one than that of a learner alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from archipel.core.types import Plan
from archipel.executors.choice import choose, executor_of
from archipel.executors.plain import Plain
from benchmarks.zoo_networks import Kind
from tests.simulation.test_recorded_steps import Own
from tests.simulation.test_zoo import apart, context_of, trained

SIZES, PLAN = (15, 20, 12, 7, 13), Plan(epochs=2, batch=10, rate=0.05)
"""Last batches are of 5, 10, 2, 7 and 3 examples."""


def by_length(x: Tensor, head: nn.Module) -> Tensor:
    scores: Tensor = head(x)
    return scores if len(x) > 6 else 2 * scores


def full_only(x: Tensor, head: nn.Module) -> Tensor:
    scores: Tensor = head(x - 0.1 * x.flip(0) if len(x) == 10 else x)
    return scores


def by_sign(x: Tensor, head: nn.Module) -> Tensor:
    scores: Tensor = head(x)
    return torch.where(scores.mean() > 0, scores, 2 * scores)


def by_largest(x: Tensor, head: nn.Module) -> Tensor:
    scores: Tensor = head(x / x.abs().amax().clamp(min=50))
    return scores


def own_dropout(x: Tensor, head: nn.Module, drop: nn.Module) -> Tensor:
    scores: Tensor = head(drop(x))
    return scores if len(x) > 6 else 2 * scores


class ScaledGradient(nn.Module):
    """Scales the gradient of a tensor on its way by a hook."""

    def __init__(self, after: bool = False) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(64, 16), nn.Linear(16, 10)
        if after:
            self.inner.weight.register_post_accumulate_grad_hook(halve)
        else:
            self.inner.weight.register_hook(lambda gradient: gradient * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.inner(x)))
        return scores


def halve(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


WHOLE: dict[str, Callable[[], nn.Module]] = {
    "by length": lambda: Own(by_length, head=nn.Linear(64, 10)),
    "full batches only": lambda: Own(full_only, head=nn.Linear(64, 10)),
    "by the sign of a mean": lambda: Own(by_sign, head=nn.Linear(64, 10)),
    "by the largest number": lambda: Own(by_largest, head=nn.Linear(64, 10)),
    "by length, dropout": lambda: Own(own_dropout, head=nn.Linear(64, 10), drop=nn.Dropout()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_what_depends_on_the_length_of_a_batch_is_not_padded(name: str) -> None:
    at_hand = context_of(Kind(WHOLE[name]), SIZES)
    start = at_hand.layout.vector(at_hand.module).clone()
    expected = trained(Plain(at_hand), at_hand, start, PLAN, SIZES)
    assert apart(trained(executor_of(at_hand, PLAN), at_hand, start, PLAN, SIZES), expected, start) < 1e-4


@pytest.mark.parametrize("after", [False, True])
def test_hooks_of_parameters_change_gradients_in_every_execution(after: bool) -> None:
    at_hand = context_of(Kind(lambda: ScaledGradient(after)), SIZES)
    start = at_hand.layout.vector(at_hand.module).clone()
    assert choose(at_hand, PLAN) == ("workers", "not stacked, because a parameter of it has a hook")
    expected = trained(Plain(at_hand), at_hand, start, PLAN, SIZES)
    found = trained(executor_of(at_hand, PLAN), at_hand, start, PLAN, SIZES)
    assert all(torch.equal(a.vector, b.vector) for a, b in zip(found, expected, strict=True))

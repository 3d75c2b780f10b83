"""torch's optimisers on the models of a stack: in one operation where torch has one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archipel.core.layout import Layout
from archipel.core.types import Plan
from archipel.executors.stacked_steps import Places, StackedTorch
from archipel.learner.learner import optimiser

LEARNERS, STEPS, NAME = 3, 4, "weight"


def stack(plan: Plan) -> tuple[StackedTorch, list[Tensor]]:
    """Return the optimiser of a stack, and gradients of its steps that lie in another order than its tensors."""
    torch.manual_seed(1)
    module = nn.Linear(5, 4, bias=False)
    layout = Layout.of(module, torch.randn(2, 5))
    start = layout.vector(module)
    models = Places(layout, LEARNERS, start)
    models.fill([start + number for number in range(LEARNERS)])
    gradients = [torch.randn(LEARNERS, 5, 4).transpose(1, 2) for _ in range(STEPS)]
    return StackedTorch(plan, models, None, None, [NAME], [{} for _ in range(LEARNERS)]), gradients


PLANS = {
    "Adam": Plan(optimiser="Adam", rate=0.1, options={"weight_decay": 0.1}),
    "AdamW": Plan(optimiser="AdamW", rate=0.1, options={"amsgrad": True}),
    "Adagrad": Plan(optimiser="Adagrad", rate=0.1, options={"lr_decay": 0.1}),
    "SGD": Plan(optimiser="SGD", rate=0.1, momentum=0.9, options={"dampening": 0.5, "maximize": True}),
    "RMSprop": Plan(optimiser="RMSprop", rate=0.1),
}


@pytest.mark.parametrize("name", PLANS)
def test_every_learner_comes_to_the_model_that_it_comes_to_alone(name: str) -> None:
    """Torch takes numbers as they lie in memory, so gradients that lie otherwise would change the wrong ones."""
    made, gradients = stack(PLANS[name])
    alone = [nn.Parameter(model.clone()) for model in made.models.tensors[NAME]]
    for number, parameter in enumerate(alone):
        steps = optimiser(PLANS[name], [parameter])
        for gradient in gradients:
            parameter.grad = gradient[number].clone()
            steps.step()
    for gradient in gradients[:2]:
        made.apply([NAME], [gradient])
    made.narrow(2)  # those with most steps go on
    for gradient in gradients[2:]:
        made.apply([NAME], [gradient[:2]])
    for mine, expected in zip(made.models.tensors[NAME][:2], alone[:2], strict=True):
        torch.testing.assert_close(mine, expected.detach())


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [("Adam", {}, True), ("Adam", {"fused": False}, False), ("Adam", {"foreach": True}, None), ("RMSprop", {}, None)],
)
def test_the_plan_says_how_it_is_computed(name: str, options: dict[str, Any], expected: bool | None) -> None:
    made, _ = stack(Plan(optimiser=name, rate=0.1, options=options))
    assert made._optimiser.param_groups[0].get("fused") is expected

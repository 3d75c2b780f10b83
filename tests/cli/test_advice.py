"""What `archipel doctor study.toml` advises is about the reason why a network is not stacked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from archipel.cli.study_executors import advice_on
from archipel.core.types import Plan
from archipel.executors.stackable import why_not_stacked
from tests.simulation.engine_cases import work


class HalfPrecision(nn.Module):
    """Computes under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs: Tensor = self.head(torch.relu(self.first(x)))
        return outputs.float()


def hooked() -> nn.Module:
    first = nn.Linear(8, 16)
    first.weight.register_hook(lambda gradient: gradient * 2)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(16, 3))


@pytest.mark.parametrize(
    ("network", "plan", "reason", "advice"),
    [
        (HalfPrecision(), Plan(), "computes in 16 bits", "leave out torch.autocast"),
        (hooked(), Plan(), "a parameter of it has a hook", "leave out the hook"),
        (nn.Linear(8, 3), Plan(optimiser="Adafactor"), "is not elementwise", "use SGD, Adam"),
    ],
    ids=["autocast", "hook", "optimiser"],
)
def test_it_names_the_cause_and_what_to_change(network: nn.Module, plan: Plan, reason: str, advice: str) -> None:
    drawn = torch.Generator().manual_seed(0)
    found = why_not_stacked(work(network, torch.randn(60, 8, generator=drawn), torch.arange(60) % 3), plan)
    assert found is not None
    assert reason in found
    assert advice in advice_on(found)

"""Networks that can be stacked."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from archipel import models
from archipel.core.types import Plan
from archipel.executors import stacked_networks as network
from archipel.executors.choice import executor_of
from archipel.executors.plain import Plain
from archipel.learner.learner import Loss, TrainingContext
from tests.simulation.engine_cases import (
    PLAN,
    SIZES,
    agree,
    cross_entropy,
    jobs,
    learners,
    work,
)

# ---------------------------------------------------------------------------------------------------- networks


class OwnForward(nn.Module):
    """An MLP that writes its own forward pass: a skip, functions instead of modules, a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)
        self.scale = nn.Parameter(torch.ones(12))
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.head(x + torch.tanh(self.inner(x)) * self.scale)
        return hidden


class Words(nn.Module):
    """The mean of embedded words."""

    def __init__(self, **how: float | bool) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6, **how)  # type: ignore[arg-type]
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.words(x).mean(dim=1))
        return outputs


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def tokens(examples: int) -> Tensor:
    return torch.randint(0, 20, (examples, 9), generator=torch.Generator().manual_seed(1))


def every_activation() -> nn.Module:
    between = [layer for kind in network.ELEMENTWISE for layer in (nn.Linear(12, 12), kind())]
    return nn.Sequential(*between, nn.Linear(12, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "logistic regression": (lambda: models.logistic_regression(12, 3), lambda n: noise(n, 12)),
    "mlp 64-64": (lambda: models.mlp(12, 3), lambda n: noise(n, 12)),
    "mlp on images": (lambda: models.mlp(12, 3), lambda n: noise(n, 1, 3, 4)),
    "small_mlp": (lambda: models.small_mlp(64, 3), lambda n: noise(n, 64)),
    "mnist_mlp": (lambda: models.mnist_mlp(), lambda n: noise(n, 1, 28, 28)),
    "one layer that is the module": (lambda: nn.Linear(12, 3), lambda n: noise(n, 12)),
    "without biases": (
        lambda: nn.Sequential(nn.Linear(12, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False)),
        lambda n: noise(n, 12),
    ),
    "sequences in sequences": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(12, 8), nn.ReLU()), nn.Sequential(nn.Linear(8, 3))),
        lambda n: noise(n, 12),
    ),
    "every activation": (every_activation, lambda n: noise(n, 12)),
    "own forward": (OwnForward, lambda n: noise(n, 12)),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)),
        lambda n: noise(n, 12),
    ),
    "embedding": (Words, tokens),
    "embedding in a sequence": (
        lambda: nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(36, 3)),
        tokens,
    ),
    "linear on 3-D inputs": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Flatten(), nn.Linear(30, 3)),
        lambda n: noise(n, 5, 4),
    ),
    "several linear on 3-D inputs": (
        lambda: nn.Sequential(
            nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(10, 3)
        ),
        lambda n: noise(n, 5, 4),
    ),
    "an activation first": (
        lambda: nn.Sequential(nn.Sigmoid(), nn.Linear(12, 8), nn.Identity(), nn.Tanh(), nn.Linear(8, 3)),
        lambda n: noise(n, 12),
    ),
    "two activations in a row": (
        lambda: nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Identity(), nn.ReLU(), nn.Linear(8, 3)),
        lambda n: noise(n, 12),
    ),
}


def case(network: str = "mlp 64-64", examples: int = 200, loss: Loss = cross_entropy) -> TrainingContext:
    make, inputs = NETWORKS[network]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = make()
    labels = torch.randint(0, 3, (examples,), generator=torch.Generator().manual_seed(2))
    labels[0] = 2
    return work(module, inputs(examples), labels, loss)


def as_chosen_and_plain(work: TrainingContext, plan: Plan = PLAN) -> None:
    """Whatever way is chosen for this work, it agrees with plain PyTorch."""
    who = learners(work.x, SIZES)
    mine, theirs = jobs(work, who, [plan] * len(who)), jobs(work, who, [plan] * len(who))
    way = executor_of(work, plan)
    way.submit(mine)
    way.wait()
    Plain(work).submit(theirs)
    for a, b in zip(mine, theirs, strict=True):
        agree(a, b)

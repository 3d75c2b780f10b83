"""What is trained natively, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel.core.types import Plan
from archipel.executors import native
from archipel.executors.choice import choose, executor_of
from archipel.executors.native import linear_layers
from archipel.executors.plain import Plain
from archipel.learner.learner import TrainingContext
from tests.simulation.engine_cases import (
    PLAN,
    agree,
    islands,
    jobs,
    learners,
    named,
    small_islands,
    work,
)
from tests.simulation.perceptrons import case, perceptron
from tests.ways import needs_library

pytestmark = needs_library


# ------------------------------------------------------------------------------------------ what is not trained so


class OwnForward(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return outputs / 2


class OwnLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).abs()


def tied() -> nn.Module:
    module = perceptron(12, 12, 12, 3)
    module[2].weight = module[0].weight
    return module


def called_twice() -> nn.Module:
    again = nn.Linear(12, 12)
    return nn.Sequential(again, nn.ReLU(), again, nn.ReLU(), nn.Linear(12, 3))


def hooked() -> nn.Module:
    module = perceptron(12, 8, 3)
    module[0].register_forward_hook(lambda _, __, output: output * 2)
    return module


def frozen_by_hand() -> nn.Module:
    module = perceptron(12, 8, 3)
    next(module.parameters()).requires_grad_(False)
    return module


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "tanh": lambda: nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)),
    "sigmoid": lambda: nn.Sequential(nn.Linear(12, 8), nn.Sigmoid(), nn.Linear(8, 3)),
    "leaky": lambda: nn.Sequential(nn.Linear(12, 8), nn.LeakyReLU(), nn.Linear(8, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    "layer norm": lambda: nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)),
    "rectified inputs": lambda: nn.Sequential(nn.ReLU(), nn.Linear(12, 3)),
    "rectified scores": lambda: nn.Sequential(nn.Linear(12, 3), nn.ReLU()),
    "rectified twice": lambda: nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.ReLU(), nn.Linear(8, 3)),
    "a forward of its own": lambda: OwnForward(nn.Linear(12, 3)),
    "a layer with a forward of its own": lambda: nn.Sequential(OwnLinear(12, 8), nn.ReLU(), nn.Linear(8, 3)),
    "tied weights": tied,
    "one layer called twice": called_twice,
    "a hook": hooked,
    "a layer frozen by hand": frozen_by_hand,
}


def not_natively(at_hand: TrainingContext, plan: Plan = PLAN) -> None:
    assert choose(at_hand, plan)[0] != "native"
    with pytest.raises(ValueError, match=r"cannot be (trained natively|stacked): .* Use execution="):
        executor_of(at_hand, plan, "native")


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_networks(name: str) -> None:
    at_hand = work(OTHERS[name](), case(12, 3).x, case(12, 3).y)
    not_natively(at_hand)
    # and the way that is chosen instead is right
    who = learners(at_hand.x, (34, 16))
    mine, theirs = jobs(at_hand, who, [PLAN] * 2), jobs(at_hand, who, [PLAN] * 2)
    way = executor_of(at_hand, PLAN)
    way.submit(mine)
    way.wait()
    Plain(at_hand).submit(theirs)
    for a, b in zip(mine, theirs, strict=True):
        agree(a, b)


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, optimiser="Adam"),
        replace(PLAN, options={"maximize": True}),
        replace(PLAN, momentum=0.9, options={"dampening": 0.5}),
    ],
    ids=named,
)
def test_other_optimisers(plan: Plan) -> None:
    not_natively(case(12, 17, 7), plan)


def test_other_losses() -> None:
    at_hand = case(12, 17, 7)
    targets = nn.functional.one_hot(at_hand.y, 7).float()
    not_natively(replace(at_hand, loss=nn.functional.mse_loss, y=targets, classes=None))
    not_natively(replace(at_hand, y=targets, classes=None))  # cross entropy with probabilities
    not_natively(replace(at_hand, loss=nn.functional.nll_loss))
    not_natively(replace(at_hand, loss=nn.CrossEntropyLoss(label_smoothing=0.1)))


def test_other_data() -> None:
    at_hand = case(12, 17, 7)
    strange = at_hand.y.clone()
    strange[7] = -100
    beyond = at_hand.y.clone()
    beyond[7] = 7
    others = {
        "an example that cross entropy leaves out": replace(at_hand, y=strange),
        "a class there is no score of": replace(at_hand, y=beyond),
        "fewer classes than scores": replace(at_hand, y=at_hand.y % 5, classes=5),
        "labels that have no order in memory": replace(at_hand, y=at_hand.y.repeat_interleave(2)[::2]),
        "small labels": replace(at_hand, y=at_hand.y.int()),
        "inputs in double precision": replace(at_hand, x=at_hand.x.double()),
        "inputs in columns": replace(at_hand, x=at_hand.x.T.contiguous().T),
        "images that nothing flattens": replace(at_hand, x=at_hand.x[:, None]),
        "elsewhere": replace(at_hand, x=at_hand.x.to("meta")),
    }
    for name, other in others.items():
        assert linear_layers(other) is None, name
    not_natively(others["fewer classes than scores"])
    not_natively(others["inputs in columns"])
    not_natively(others["an example that cross entropy leaves out"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_another_device() -> None:
    at_hand = case(12, 17, 7)
    not_natively(replace(at_hand, module=at_hand.module.cuda(), x=at_hand.x.cuda(), y=at_hand.y.cuda()))


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)


@pytest.mark.usefixtures("no_library")
def test_without_the_library() -> None:
    at_hand = case(12, 17, 7)
    assert choose(at_hand, PLAN)[0] == "stacked"
    not_natively(at_hand)
    assert ap.simulate(ap.fedavg(batch=8), small_islands(), ending=ap.Ending(rounds=1)).execution == "stacked"
    with pytest.raises(ValueError, match="only if a C compiler was available when Archipel was installed"):
        ap.simulate(ap.fedavg(batch=8), small_islands(), ending=ap.Ending(rounds=1), execution="native")


def test_histograms_are_left_to_pytorch() -> None:
    """The library makes none, and a run that asks for AUC gets it all the same."""
    mine, theirs = (
        ap.simulate(
            ap.fedavg(batch=16),
            islands(4),
            ending=ap.Ending(rounds=2),
            evaluation=ap.Evaluation(metric="auc"),
            execution=way,
        )
        for way in ("native", "plain")
    )
    assert mine.execution == "native"
    assert mine.score == pytest.approx(theirs.score, abs=1e-3)

"""Which executor is chosen for which network, and that it agrees with plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel import models
from archipel.executors.choice import choose, executor_of
from archipel.executors.plain import Plain
from archipel.executors.stacked import Stacked
from tests.simulation.engine_cases import (
    PLAN,
    cross_entropy,
    images,
    jobs,
    learners,
    named,
    small_islands,
    work,
)
from tests.simulation.stackable import OwnForward, Words, as_chosen_and_plain, case, noise, tokens
from tests.ways import CHOSEN

# ------------------------------------------------------------------------------------------- what is chosen, and why


class DropsInItsForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(nn.functional.dropout(self.inner(x), 0.5, self.training))
        return outputs


class Residual(nn.Sequential):
    """A sequence that is more than its parts."""

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return x + change


def frozen_by_hand() -> nn.Module:
    module = models.mlp(12, 3)
    next(module.parameters()).requires_grad_(False)
    return module


FLAT, IMAGE, PICTURE, CHARACTERS = (2, 12), (2, 1, 28, 28), (2, 3, 32, 32), (2, 10)

DECISIONS: list[tuple[str, Callable[[], nn.Module], tuple[int, ...], str]] = [
    ("logistic_regression", lambda: models.logistic_regression(12, 3), FLAT, CHOSEN),
    ("mlp", lambda: models.mlp(12, 3), FLAT, CHOSEN),
    ("small_mlp", lambda: models.small_mlp(12, 3), FLAT, CHOSEN),
    ("mnist_mlp", models.mnist_mlp, IMAGE, CHOSEN),
    ("own forward", OwnForward, FLAT, "stacked"),
    ("an mlp of 3 million", lambda: models.mlp(12, 3, hidden=(1700, 1700)), FLAT, "workers"),
    ("small_cnn", models.small_cnn, IMAGE, "stacked"),
    ("femnist_cnn", lambda: models.femnist_cnn(hidden=64), IMAGE, "workers"),
    ("hdafl_cnn", models.hdafl_cnn, IMAGE, "stacked"),
    ("fed2a_cnn_fmnist", models.fed2a_cnn_fmnist, IMAGE, "workers"),
    ("fed2a_cnn_germants", models.fed2a_cnn_germants, PICTURE, "workers"),
    ("cifar10_2cnn", models.cifar10_2cnn, PICTURE, "workers"),
    ("fed2a_cnn_cifar10", models.fed2a_cnn_cifar10, PICTURE, "workers"),
    ("small_vgg", models.small_vgg, PICTURE, "workers"),
    ("vgg9", models.vgg9, PICTURE, "workers"),
    ("vgg9 with dropout", lambda: models.vgg9(dropout=0.1), PICTURE, "workers"),
    ("packet_cnn", lambda: models.packet_cnn(35), CHARACTERS, "stacked"),
    ("small_resnet", models.small_resnet, PICTURE, "workers"),
    ("resnet_cifar", lambda: models.resnet_cifar(14, 10), PICTURE, "workers"),
    ("resnet50_cifar", models.resnet50_cifar, PICTURE, "workers"),
    ("small_lstm", models.small_lstm, CHARACTERS, "workers"),
    ("shakespeare_lstm", models.shakespeare_lstm, CHARACTERS, "workers"),
    ("a module of dropout", lambda: nn.Sequential(nn.Linear(12, 3), nn.Dropout(0.5)), FLAT, "stacked"),
    ("dropout in the forward pass", DropsInItsForward, FLAT, "stacked"),
    ("batch norm", lambda: nn.Sequential(nn.Linear(12, 3), nn.BatchNorm1d(3)), FLAT, "stacked"),
    ("a layer frozen by hand", frozen_by_hand, FLAT, "stacked"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "shape", "way"), [row[1:] for row in DECISIONS], ids=[row[0] for row in DECISIONS])
def test_the_way_is_chosen_from_the_network(make: Any, shape: Any, way: Any) -> None:
    module = make()
    x = torch.zeros(shape, dtype=torch.int64) if "LSTM" in repr(module) else torch.zeros(shape)
    at_hand = work(module, x, torch.tensor([0, module(x).shape[1] - 1]))
    assert choose(at_hand, PLAN)[0] == way
    assert executor_of(at_hand, PLAN).name == way


def test_every_network_of_the_package_is_in_the_table() -> None:
    own = set(models.__all__) - {"from_hf"}  # which has the network of the checkpoint that it reads
    assert own <= {row[0] for row in DECISIONS}


@pytest.mark.parametrize(
    ("plan", "way"),
    [
        (PLAN, CHOSEN),
        (replace(PLAN, momentum=0.9, options={"nesterov": True, "weight_decay": 0.1}), CHOSEN),
        (replace(PLAN, optimiser="Adam"), "stacked"),
        (replace(PLAN, optimiser="RMSprop", momentum=0.9), "stacked"),
        (replace(PLAN, options={"maximize": True}), "stacked"),
        (replace(PLAN, momentum=0.9, options={"dampening": 0.5}), "stacked"),
        (replace(PLAN, optimiser="Adafactor"), "workers"),
    ],
    ids=lambda value: value if isinstance(value, str) else named(value),
)
def test_the_way_is_chosen_from_the_plan(plan: Any, way: Any) -> None:
    assert choose(case(), plan)[0] == way


@pytest.mark.parametrize(
    ("loss", "way"),
    [
        (cross_entropy, CHOSEN),
        (nn.CrossEntropyLoss(), "stacked"),
        (lambda outputs, targets: cross_entropy(outputs, targets, label_smoothing=0.1), "stacked"),
        (lambda outputs, targets: cross_entropy(outputs, targets) ** 2, "stacked"),
        (lambda outputs, targets: cross_entropy(outputs, targets) * float(outputs.mean() > 0), "workers"),
    ],
    ids=["function", "module", "own", "no mean over examples", "reads a number"],
)
def test_the_way_is_chosen_from_the_loss(loss: Any, way: Any) -> None:
    assert choose(case(loss=loss), PLAN)[0] == way


def test_stacking_what_cannot_be_stacked_is_an_error() -> None:
    at_hand = work(models.small_lstm(20), tokens(4), torch.arange(4))
    with pytest.raises(ValueError, match=r"with SGD cannot be stacked: .*lstm.* Use execution='workers'\."):
        executor_of(at_hand, PLAN, "stacked")
    with pytest.raises(ValueError, match=r"Sequential with Adafactor cannot be stacked"):
        executor_of(case(), replace(PLAN, optimiser="Adafactor"), "stacked")
    with pytest.raises(
        ValueError, match=r"one of plain, workers, stacked, native, got 'stack'. Did you mean 'stacked'\?"
    ):
        executor_of(case(), PLAN, "stack")  # type: ignore[arg-type]


def test_a_subclass_with_its_own_forward_is_not_taken_for_its_parts() -> None:
    module = nn.Sequential(nn.Linear(12, 8), Residual(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 3))
    as_chosen_and_plain(work(module, noise(200, 12), case().y))


def test_one_layer_called_twice() -> None:
    again = nn.Linear(12, 12)
    module = nn.Sequential(again, nn.Tanh(), again, nn.Linear(12, 3))
    as_chosen_and_plain(work(module, noise(200, 12), case().y))


def test_layers_that_share_a_weight() -> None:
    first, second = nn.Linear(12, 12), nn.Linear(12, 12)
    second.weight = first.weight
    module = nn.Sequential(first, nn.Tanh(), second, nn.Linear(12, 3))
    as_chosen_and_plain(work(module, noise(200, 12), case().y))


@pytest.mark.parametrize("how", [{"padding_idx": 0}, {"max_norm": 0.5}, {"scale_grad_by_freq": True}], ids=str)
def test_embeddings_with_rules_of_their_own(how: Any) -> None:
    """A row that fills up and must not train, rows of bounded length, gradients by frequency."""
    torch.manual_seed(0)
    as_chosen_and_plain(work(Words(**how), tokens(200), case().y), replace(PLAN, rate=0.5))


@pytest.mark.parametrize(
    "plan", [replace(PLAN, options={"nesterov": True}), replace(PLAN, options={"weight_decay": -1.0})], ids=named
)
def test_what_the_optimiser_refuses_is_refused_the_other_ways_too(plan: Any) -> None:
    at_hand = case()
    who = learners(at_hand.x, (8,))
    for way in ("plain", "stacked", CHOSEN):
        with pytest.raises(ValueError, match=r"(?i)nesterov|weight_decay"):
            executor_of(at_hand, plan, way).submit(jobs(at_hand, who, [plan]))  # type: ignore[arg-type]


def test_a_plan_that_trains_no_layer() -> None:
    at_hand = case()
    who = learners(at_hand.x, (8, 16))
    plan = replace(PLAN, trains=())
    for way in (Plain(at_hand), Stacked(at_hand)):
        made = jobs(at_hand, who, [plan, plan])
        before = [job.vector.clone() for job in made]
        way.submit(made)
        assert all(torch.equal(job.vector, begin) for job, begin in zip(made, before, strict=True))
        assert [job.epochs for job in made] == [2, 2]


# --------------------------------------------------------------------------------------------- whole simulations


class Halves(nn.Module):
    """Puts out one half in training, so that the mode shows in the result."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(x)
        return outputs / 2 if self.training else outputs


def test_a_network_trains_in_training_mode_though_it_is_scored_in_between() -> None:
    data = small_islands()
    ways: tuple[Any, ...] = (None, "plain")
    chosen, plain = (
        ap.simulate(ap.fedavg(batch=8), data, model=Halves, ending=ap.Ending(rounds=2), execution=way) for way in ways
    )
    torch.testing.assert_close(chosen.model, plain.model, atol=1e-4, rtol=1e-3)


def test_the_way_is_told_with_the_run() -> None:
    data = small_islands()
    ending = ap.Ending(rounds=1)
    assert ap.simulate(ap.fedavg(batch=8), data, ending=ending).execution == CHOSEN
    assert ap.simulate(ap.fedavg(batch=8), data, ending=ending, execution="stacked").execution == "stacked"
    assert ap.simulate(ap.fedavg(batch=8, optimiser="Adam"), data, ending=ending).execution == "stacked"
    assert ap.simulate(ap.fedavg(batch=8), data, ending=ending, execution="plain").execution == "plain"
    seen = ap.simulate(ap.fedavg(batch=8), images(data), model=lambda: models.small_cnn(1, 8), ending=ending)
    assert "executed stacked" in seen.summary()

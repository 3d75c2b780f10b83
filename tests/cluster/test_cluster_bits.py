"""Simulations on a Ray cluster give the bits of one machine: every algorithm, and everything that travels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel.core.algorithm import Algorithm
from archipel.simulation import simulate
from archipel.simulation.checkpoint import Checkpoint
from tests.cluster.conftest import Machines
from tests.cluster.runs import local, ready, same, wait_for_actors, whole

pytestmark = pytest.mark.slow


def perceptron() -> nn.Module:
    """What every algorithm takes: a body, something to normalise, and a head."""
    return nn.Sequential(nn.Linear(64, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, 10))


@pytest.mark.parametrize("name", ap.algorithms.__all__)
def test_every_algorithm(machines: Machines, name: str) -> None:
    make: Callable[[], Algorithm] = getattr(ap, name)
    settings: dict[str, Any] = {"model": NETWORKS.get(name, perceptron), "ending": ap.Ending(rounds=2)}
    simulator = ready(make(), "auto", **settings)
    wait_for_actors(simulator, 2)
    same(whole(simulator), local(make(), **settings))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "fedbn": lambda: nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10)),
    "fedma": lambda: nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10)),
}


def pictures() -> Any:
    digits = ap.data.digits()
    made = ap.data.from_arrays(digits.x.reshape(-1, 1, 8, 8).numpy(), digits.y.numpy())
    return made.split(learners=6, sizes="powerlaw", classes=3).augmented(pad=1)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )


class HalfPrecision(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.bfloat16()).float()


def frozen_base() -> nn.Module:
    base = HalfPrecision(64, 16, dtype=torch.bfloat16).requires_grad_(False)
    return nn.Sequential(base, nn.ReLU(), nn.Linear(16, 10))


HOSTILE = ap.Fleet(
    ap.Group("away at times", 4, drop_rate=0.2, up=0.3, down=0.1, varies=0.5), ap.Group("hostile", 2, attack="noise(1)")
)
TRAVELS: dict[str, tuple[Callable[[], Algorithm], dict[str, Any]]] = {
    "native execution": (lambda: ap.fedavg(fraction=0.5), {"execution": None}),
    "stacks with momentum": (lambda: ap.fedavg(momentum=0.9, epochs=2), {"execution": "stacked"}),
    "convolutions of workers": (ap.fedadam, {"model": convolutions, "execution": "workers"}),
    "an optimiser's memory": (lambda: ap.async_dvw(optimiser="Adam", rate=0.01, momentum=0.0), {}),
    "frozen weights in bfloat16": (ap.fedavg, {"model": frozen_base}),
    "augmentation": (lambda: ap.fedbuff(buffer=2), {"data": pictures, "model": convolutions}),
    "phases and an objective": (
        lambda: replace(
            ap.fedntd(fraction=1.0, epochs=1), planners=(ap.PrivateLayers("head"), ap.HeadFirst("head", 1))
        ),
        {"model": perceptron, "ending": ap.Ending(rounds=3)},
    ),
    "attackers, and learners that come and go": (ap.fedasync, {"fleet": HOSTILE, "ending": ap.Ending(commits=20)}),
    "kept vectors, fine-tuned": (
        lambda: replace(ap.apfl(adaptive=True), personal=ap.FineTuned(1), objective=ap.ModelContrast()),
        {"model": perceptron, "ending": ap.Ending(rounds=3)},
    ),
    "secure sums": (lambda: replace(ap.fedavg(), privacy=ap.SecureSum()), {}),
    "noise": (lambda: replace(ap.fedavg(), weighting=ap.Equally(), privacy=ap.CentralNoise(noise=1.0, clip=1.0)), {}),
}


@pytest.mark.parametrize("name", TRAVELS)
def test_everything_travels(machines: Machines, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "new_key", lambda: "0" * 64)  # else every run has noise of its own
    make, settings = TRAVELS[name]
    simulator = ready(make(), "auto", **settings)
    wait_for_actors(simulator, 2)
    same(whole(simulator), local(make(), **settings))


def test_scores_of_a_large_network_are_computed_on_the_cluster(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archipel.simulation.cluster.opening.is_small", lambda context: False)
    simulator = ready(ap.async_dvw(), "auto")
    wait_for_actors(simulator, 2)
    run = whole(simulator)
    monkeypatch.undo()
    same(run, local(ap.async_dvw()))


@pytest.mark.parametrize(("method", "before", "after"), [(ap.async_dvw, 2, 1), (ap.fedper, 1, 2)])
def test_a_checkpoint_goes_on_with_another_number_of_nodes(
    ray_cluster: Machines, method: Callable[[], Algorithm], before: int, after: int, tmp_path: Path
) -> None:
    ray_cluster.keep(before)
    settings: dict[str, Any] = {"model": perceptron, "ending": ap.Ending(rounds=4)}
    begun = ready(method(), "auto", **settings)
    wait_for_actors(begun, before)
    begun.run(events=15)
    Checkpoint(tmp_path).save(begun)
    begun.close()
    ray_cluster.keep(after)
    resumed = ready(method(), "auto", **settings)
    Checkpoint(tmp_path).load(resumed)
    wait_for_actors(resumed, after)
    same(whole(resumed), local(method(), **settings))

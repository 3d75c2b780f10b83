"""Algorithms, learners and runs that are cut off by the tests of crashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from archipel import algorithms
from archipel.algorithms import async_dvw, async_fedavg, ditto, fedavg, fedbuff, radfed_i, sync_dvw
from archipel.core.algorithm import Algorithm
from archipel.core.parts import (
    Adam,
    ByExamples,
    CentralNoise,
    Community,
    ControlVariates,
    Ending,
    LatinSquare,
    MedianStaleness,
    ModelContrast,
    NormClipped,
    Plateau,
    Poisson,
    PrivateLayers,
    Relay,
    Stream,
)
from archipel.data import Islands, digits, from_arrays
from archipel.models import mlp
from archipel.simulation.checkpoint import Checkpoint
from archipel.simulation.fleet import Fleet, Group
from archipel.simulation.simulate import prepare
from archipel.simulation.simulator import Simulator
from tests.core.replay import Log, logged

Make = Callable[[], Algorithm]

SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"fraction": 0.5, "hops": 2} for name in algorithms.__all__ if name.startswith("radfed")},
    "async_dvw": {"at_most": 4, "recall_after": 1},
    "apfl": {"fraction": 0.5, "adaptive": True},
    "async_fedavg": {"epochs": 1},
    "ditto": {"fraction": 0.5},
    "divide_and_conquer": {"prepass": 2, "epochs": 2, "tuning_epochs": 1, "rate": 0.1},
    "fed2a": {"buffer": 3, "max_wait": 0.2, "period": 2, "last": 1},
    "fedbabu": {"fraction": 0.5, "tuning_epochs": 1},
    "fedbuff": {"buffer": 3, "beta": 0.3},
    "fedcm": {"epochs": 1, "fraction": 0.5},
    "feddyn": {"epochs": 1, "fraction": 0.5},
    "fedntd": {"epochs": 1, "fraction": 0.5},
    "fedma": {"epochs": 1, "gamma": 20.0},
    "fedrep": {"head_epochs": 1, "fraction": 0.5},
    "hdafl": {"by_gradient_norm": True},
    "moon": {"fraction": 0.5, "epochs": 1},
    "oort": {"fraction": 0.5},
    "per_fedavg": {"fraction": 0.5, "epochs": 1, "hessian": "differences"},
    "pfedme": {"fraction": 0.5, "epochs": 1, "inner_steps": 2},
    "plu": {"buffer": 3, "period": 2, "last": 1},
    "power_of_choice": {"fraction": 0.5, "candidates": 4},
    "rce": {"buffer": 3},
    "scaffold": {"fraction": 0.5},
    "sync_dvw": {"epochs": 1, "evaluators": 3},
    "tifl": {"fraction": 0.5, "credits": 2},
    "tvw": {"buffer": 3},
}

ALGORITHMS: dict[str, Make] = {
    name: partial(getattr(algorithms, name), batch=8, **SETTINGS.get(name, {}))
    for name in algorithms.__all__
    if name != "centralised"  # one learner with everybody's data, and the rounds of fedavg
} | {
    "a deadline": partial(fedavg, batch=8, deadline=0.1),
    "a rate that falls, and evaluators by class": lambda: replace(
        sync_dvw(batch=8, epochs=1, evaluators=2, choice="representative"), planners=(Plateau(patience=1, window=1),)
    ),
    "all data after the validation phase": partial(async_dvw, batch=8, epochs=1, all_data_after=6),
    "a relay in turn": lambda: replace(radfed_i(0.5, 2, batch=8), selection=LatinSquare()),
    "importance measured first": partial(radfed_i, 0.5, 2, first="measured", batch=8),
    "a relay with opinions, private heads and Adam": lambda: replace(
        sync_dvw(batch=8, epochs=1),
        name="mixture",
        protocol=Relay(0.5, 2),
        planners=(PrivateLayers("head"),),
        server=Adam(),
    ),
    "control variates in a stream": lambda: replace(fedbuff(3, batch=8), planners=(ControlVariates(),)),
    "a clipped community": lambda: replace(async_fedavg(batch=8, epochs=1), merge=NormClipped(Community(), 1.0)),
    "noise on drawn learners, with an adaptive clip": lambda: replace(
        fedavg(0.5, equally=True, batch=8), selection=Poisson(), privacy=CentralNoise(noise=1.0)
    ),
    "own models in a stream that reports by epochs": lambda: replace(
        ditto(batch=8, personal_epochs=2),
        name="stream",
        protocol=Stream(2),
        recall=MedianStaleness(1),
        objective=ModelContrast(),
        weighting=ByExamples(),
    ),
    "a community that forgets": lambda: replace(async_fedavg(batch=8, epochs=1), merge=Community(forget=True)),
}

UNSTACKED = (
    *("apfl", "ditto", "fedlc", "fedntd", "fedrep", "moon", "per_fedavg", "pfedme"),
    "own models in a stream that reports by epochs",
)
"""Methods whose tasks are trained learner by learner: they have phases, a descent or an objective."""


@cache
def islands() -> Islands:
    source = digits()
    few = torch.from_numpy(np.random.default_rng(0).permutation(len(source.x))[:120])
    return from_arrays(source.x[few], source.y[few], "few digits").split(6, sizes="skewed", stimuli=2)


def normalised() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 10))


def network() -> nn.Module:
    return mlp(64, 10, hidden=(8,))


def fleet(lost: float = 0.0, up: float | None = None) -> Fleet:
    """Three fast and three slow learners; by choice they lose tasks and leave for a while."""
    slow: dict[str, Any] = {"train_seconds": 0.05, "evaluate_seconds": 0.01, "latency": 0.01}
    return Fleet(
        Group("fast", 3, drop_rate=lost, up=up, down=0.1), Group("slow", 3, drop_rate=lost, up=up, down=0.1, **slow)
    )


def simulator(algorithm: Algorithm, lost: float = 0.0, data: Islands | None = None, **settings: Any) -> Simulator:
    usual: dict[str, Any] = {
        "model": network,
        "fleet": fleet(lost),
        "ending": Ending(rounds=4, commits=10),
        "validation": 0.2,
    }
    with mock.patch("archipel.simulation.simulate.new_key", return_value="5a" * 32):  # the same noise in all runs
        return prepare(algorithm, data or islands(), **(usual | settings))


def settings_of(name: str, lost: float) -> dict[str, Any]:
    model = normalised if name == "fedbn" else network
    return {"fleet": fleet(lost, up=0.5 if "forgets" in name else None), "model": model}


@cache
def log_of(name: str, lost: float) -> Log:
    return logged(simulator(ALGORITHMS[name](), **settings_of(name, lost)))


both = pytest.mark.parametrize("lost", [0.0, 0.2], ids=["nothing lost", "a fifth lost"])
every = pytest.mark.parametrize("name", ALGORITHMS)


def resumed(make: Make, saves: Path, at: int, **settings: Any) -> Simulator:
    """Resume a new simulator from a checkpoint and run it to the end."""
    again = simulator(make(), **settings)
    Checkpoint(saves / str(at)).load(again)
    assert again.handled == at
    again.run()
    return again

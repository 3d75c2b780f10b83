"""The methods of the papers on adapters of a frozen transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import archipel as ap
from archipel.core.algorithm import Algorithm
from tests.transformers.small_transformers import LLAMA, needs_peft, spoken

pytestmark = [needs_peft, pytest.mark.slow]

LOCAL: Any = {"rate": 0.02, "batch": 4, "optimiser": "AdamW", "momentum": 0.0, "epochs": 1}

METHODS: dict[str, Callable[[], Algorithm]] = {
    "fedavg": lambda: ap.fedavg(**LOCAL),
    "fedprox": lambda: ap.fedprox(mu=0.1, **LOCAL),
    "fedadam": lambda: ap.fedadam(**LOCAL),
    "sync_dvw": lambda: ap.sync_dvw(metric="token_accuracy", **LOCAL),
    "async_dvw": lambda: ap.async_dvw(metric="perplexity", adaptive=False, **LOCAL),
    "fed2a": lambda: ap.fed2a(buffer=2, deep="layers.1", **LOCAL),
    "hdafl, private adapters": lambda: ap.hdafl(fraction=1.0, private="layers.1", **LOCAL),
    "divide_and_conquer": lambda: ap.divide_and_conquer(prepass=1, tuning_epochs=1, **LOCAL),
    "radfed": lambda: ap.radfed(fraction=0.7, hops=2, **LOCAL),
    "fedbuff": lambda: ap.fedbuff(buffer=2, **LOCAL),
}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return ap.models.from_hf(LLAMA, "causal-lm", lora={"r": 2, "target_modules": "all-linear"})


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_adapters(name: str) -> None:
    data = spoken().natural(test=0.3, stimuli=4)
    run = ap.simulate(METHODS[name](), data, model=network, validation=0.2, ending=ap.Ending(rounds=4))
    losses = [scores.metrics["loss"] for _, scores in run.scores]
    assert losses[-1] < losses[0]
    assert run.layout.frozen is not None
    assert all("lora" in layer for layer in run.layout.names)
    private = {layer for kept in run.private.values() for layer in kept}
    assert all("layers.1." in layer for layer in private)
    assert bool(private) == name.startswith("hdafl")

"""Adapters on frozen transformers, on a fake cluster: classes of installed packages, frozen weights, several ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import archipel as ap
from archipel.models import from_hf
from tests.cluster.fake_ray import FakeRay, installed
from tests.cluster.runs import local, ready, same, whole
from tests.transformers.small_transformers import LLAMA, needs_peft, spoken

pytestmark = [needs_peft, pytest.mark.slow]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return from_hf(LLAMA, lora={"ranks": [1, 3], "target_modules": ["q_proj"], "lora_alpha": 6})


def method() -> ap.Algorithm:
    ranks = ap.LoraRanks({"small": 1, "large": 3})
    return replace(ap.fedavg(batch=4, rate=0.01, optimiser="AdamW"), merge=ap.StackedLora(), planners=(ranks,))


def test_adapters_train_on_frozen_weights_that_were_put_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {
        "data": lambda: spoken(sites=None).split(learners=3, stimuli=0),
        "fleet": ap.Fleet(ap.Group("small", 2), ap.Group("large", 1)),
        "model": network,
        "ending": ap.Ending(rounds=2),
    }
    ray = installed(monkeypatch, FakeRay(0))
    same(whole(ready(method(), "auto", **settings)), local(method(), **settings))
    (blueprint,) = (one for one in ray.puts if hasattr(one, "context"))
    assert "transformers.models.llama.modeling_llama" in blueprint.code
    assert len(blueprint.frozen_shapes) == len(ray.actors[0].thing.blueprint.frozen_shapes) > 10
    frozen = sum(parameter.numel() for parameter in network().parameters() if not parameter.requires_grad)
    assert len(blueprint.context) < 4 * frozen, "frozen weights are not pickled"

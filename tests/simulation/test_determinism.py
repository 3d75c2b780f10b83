"""The same seed gives the same bits, in this process and in another; and a run leaves no trace outside itself."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import archipel as ap
from archipel.models import small_cnn, small_mlp
from tests.simulation.engine_cases import images, islands, small_islands
from tests.ways import CHOSEN, NATIVE

ALGORITHMS = {
    "sync": ap.fedavg(fraction=0.5, epochs=2, batch=16),
    "async adaptive": ap.async_dvw(batch=8, at_most=4, recall_after=2),
    "relay": ap.radfed_i(fraction=0.5, hops=2, batch=16),
}
WAYS = ("stacked", "plain", NATIVE)


def model() -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return small_mlp()


def run(name: str, way: str, **settings: Any) -> ap.Run:
    usual: dict[str, Any] = {
        "model": model(),
        "fleet": ap.Fleet(ap.Group("fast", 3, drop_rate=0.1), ap.Group("slow", 3, train_seconds=0.1, up=5.0, down=1.0)),
        "ending": ap.Ending(rounds=3),
        "execution": way,
    }
    data = islands(6, sizes=(40, 30, 25, 20, 15, 10), classes=3)
    return ap.simulate(ALGORITHMS[name], data, **(usual | settings))


@cache
def first(name: str, way: str) -> ap.Run:
    return run(name, way)


def all_fingerprints() -> dict[str, str]:
    return {
        f"{name} {way}": first(name, way).fingerprint() for name in ALGORITHMS for way in {"stacked", "plain", CHOSEN}
    }


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_twice_in_a_row(name: str, way: Any) -> None:
    one, two = first(name, way), run(name, way)
    assert one.fingerprint() == two.fingerprint()
    assert torch.equal(one.model, two.model)
    # NaN is not equal to itself, but it reads the same
    assert repr(one.records) == repr(two.records)
    assert one.seconds == two.seconds


@pytest.mark.slow
def test_in_a_new_process() -> None:
    program = (
        "import json, torch; torch.set_num_threads(1); "
        "from tests.simulation.test_determinism import all_fingerprints; print(json.dumps(all_fingerprints()))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
        # another hash seed: nothing may hang on the order of a set
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == all_fingerprints()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_another_seed_is_another_run(name: str, way: Any) -> None:
    # from the same model: the seed is of more than the first weights
    assert run(name, way, seed=1).fingerprint() != first(name, way).fingerprint()


def test_the_seed_draws_the_first_model_too() -> None:
    settings: dict[str, Any] = {"ending": ap.Ending(rounds=1), "evaluation": ap.Evaluation(metric="loss")}
    losses = {
        ap.simulate(ap.fedavg(batch=16), small_islands(2), seed=seed, **settings).scores[0][1].metrics["loss"]
        for seed in (0, 0, 1, 2)
    }
    assert len(losses) == 3


def test_what_ran_before_does_not_matter() -> None:
    alone = first("sync", "stacked").fingerprint()
    torch.manual_seed(99)
    torch.rand(10)
    np.random.seed(99)
    run("relay", "stacked")
    assert run("sync", "stacked").fingerprint() == alone


def traces() -> dict[str, int]:
    """What a run might leave behind in the process; numbers for generators' states."""
    return {
        "torch": hash(torch.get_rng_state().numpy().tobytes()),
        "numpy": hash(repr(np.random.get_state(legacy=False))),
        "random": hash(random.getstate()),
        "threads": torch.get_num_threads(),
    }


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_global_generators_are_untouched(name: str, way: Any) -> None:
    before = traces()
    run(name, way, shadow=True)
    assert traces() == before


@pytest.mark.slow
def test_global_generators_are_untouched_by_workers() -> None:
    data = images(small_islands(6))
    before = traces()
    for _ in range(3):
        ended = ap.simulate(
            ap.fedavg(batch=8, epochs=2),
            data,
            model=lambda: small_cnn(1, 8),
            ending=ap.Ending(rounds=2),
            execution="workers",
        )
    assert ended.execution == "workers"
    assert traces() == before


def test_global_generators_are_untouched_by_dropout() -> None:
    def with_dropout() -> torch.nn.Module:
        return torch.nn.Sequential(small_mlp(64, 20), torch.nn.Dropout(0.5), torch.nn.Linear(20, 10))

    before = traces()
    runs = [
        ap.simulate(ap.fedavg(batch=8), small_islands(4), model=with_dropout, ending=ap.Ending(rounds=2), seed=seed)
        for seed in (0, 0, 1)
    ]
    assert traces() == before
    assert runs[0].execution == "stacked"
    assert runs[0].fingerprint() == runs[1].fingerprint() != runs[2].fingerprint()


def test_a_module_that_is_passed_is_left_as_it_was() -> None:
    mine = model().eval()
    before = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    assert run("sync", "stacked", model=mine).fingerprint() == first("sync", "stacked").fingerprint()
    assert all(torch.equal(before[name], tensor) for name, tensor in mine.state_dict().items())
    assert not mine.training


@pytest.mark.parametrize("way", WAYS)
def test_the_data_are_left_as_they_were(way: Any) -> None:
    data = small_islands(4)
    x, y = data.x.clone(), data.y.clone()
    parts = [(island.train.clone(), island.test.clone()) for island in data.learners]
    ap.simulate(ap.async_dvw(batch=8, at_most=2), data, ending=ap.Ending(rounds=2), execution=way)
    assert torch.equal(data.x, x)
    assert torch.equal(data.y, y)
    for island, (train, test) in zip(data.learners, parts, strict=True):
        assert torch.equal(island.train, train)
        assert torch.equal(island.test, test)


def test_the_device_is_the_cpu_by_default() -> None:
    assert run("sync", "stacked", device="cpu").fingerprint() == first("sync", "stacked").fingerprint()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_order_of_learners_does_not_matter(way: Any) -> None:
    """Learners are known by name: the same islands in another order make the same run."""
    data = islands(4, sizes=(60, 50, 40, 30))
    turned = ap.data.Islands(
        data.x, data.y, tuple(reversed(data.learners)), data.test, data.stimuli, data.classes, data.name
    )
    settings = {"fleet": ap.Fleet(fast=2, slow=2), "ending": ap.Ending(rounds=3), "execution": way}
    first, second = (ap.simulate(ap.async_fedavg(batch=16, epochs=1), d, **settings) for d in (data, turned))
    assert first.fingerprint() == second.fingerprint()

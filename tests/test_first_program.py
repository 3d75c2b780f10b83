"""The first program, and every method on easy data: the smoke before the experiments."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import archipel as ap
from archipel.core.types import Local
from tests.ways import CHOSEN

README = (Path(__file__).parent.parent / "README.md").read_text()
FIRST_PROGRAM = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


FIRST_LINE = (
    r"async_dvw: accuracy (0\.\d{4}) over the last fifth of 20 local rounds \(last version 0\.\d{4}, best 0\.\d{4}\)$"
)


@pytest.mark.slow
def test_the_first_program_prints_a_summary() -> None:
    told = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", FIRST_PROGRAM], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    assert told.stderr == ""
    lines = told.stdout.splitlines()
    assert len(lines) == 4
    score = re.match(FIRST_LINE, lines[0])
    assert score is not None, lines[0]
    assert float(score[1]) > 0.3, "ten classes: chance is 0.1"
    assert "200 commits, 20 local rounds" in lines[1]
    assert f"ended because 20 local rounds made; executed {CHOSEN}; model " in lines[3]


def test_the_first_program_is_short() -> None:
    assert "ap.simulate(" in FIRST_PROGRAM
    assert "print(run.summary())" in FIRST_PROGRAM
    assert len(FIRST_PROGRAM.splitlines()) <= 10


def test_everything_the_first_program_names_is_documented() -> None:
    for thing in (ap.simulate, ap.async_dvw, ap.data.digits, ap.data.Source.split, ap.Fleet, ap.Run.summary):
        assert thing.__doc__, thing


# --------------------------------------------------------------------------------------------------- every method

LOCAL: Local = {"epochs": 4, "batch": 16, "rate": 0.1}
EASY: dict[str, Callable[[], ap.Algorithm]] = {
    "apfl": lambda: ap.apfl(**LOCAL),
    "async_dvw": lambda: ap.async_dvw(batch=16, rate=0.1, at_most=4),
    "async_fedavg": lambda: ap.async_fedavg(batch=16),
    "centralised": lambda: ap.centralised(**LOCAL),
    "ditto": lambda: ap.ditto(**LOCAL),
    "divide_and_conquer": lambda: ap.divide_and_conquer(prepass=2, tuning_epochs=2, decay=1.0, **LOCAL),
    "fed2a": lambda: ap.fed2a(**LOCAL),
    "fedadagrad": lambda: ap.fedadagrad(eta=0.1, **LOCAL),
    "fedadam": lambda: ap.fedadam(eta=0.03, **LOCAL),
    "fedasync": lambda: ap.fedasync(**LOCAL),
    "fedavg": lambda: ap.fedavg(**LOCAL),
    "fedavgm": lambda: ap.fedavgm(0.5, **LOCAL),
    "fedbabu": lambda: ap.fedbabu(fraction=1.0, tuning_epochs=0, **LOCAL),
    "fedbn": lambda: ap.fedbn(**LOCAL),
    "fedbuff": lambda: ap.fedbuff(3, **LOCAL),
    "fedcm": lambda: ap.fedcm(0.5, fraction=0.5, **LOCAL),
    "feddyn": lambda: ap.feddyn(fraction=0.5, **LOCAL),
    "fedlc": lambda: ap.fedlc(**LOCAL),
    "fedma": lambda: ap.fedma(**LOCAL),
    "fednova": lambda: ap.fednova(**LOCAL),
    "fedntd": lambda: ap.fedntd(**LOCAL),
    "fedper": lambda: ap.fedper(**LOCAL),
    "fedprox": lambda: ap.fedprox(**LOCAL),
    "fedrep": lambda: ap.fedrep(head_epochs=2, fraction=1.0, **LOCAL),
    "fedyogi": lambda: ap.fedyogi(eta=0.03, **LOCAL),
    "hdafl": lambda: ap.hdafl(**LOCAL),
    "lg_fedavg": lambda: ap.lg_fedavg(**LOCAL),
    "local_only": lambda: ap.local_only(**LOCAL),
    "moon": lambda: ap.moon(**LOCAL),
    "oort": lambda: ap.oort(fraction=0.5, **LOCAL),
    "per_fedavg": lambda: ap.per_fedavg(fraction=1.0, **LOCAL),
    "pfedme": lambda: ap.pfedme(**LOCAL),
    "plu": lambda: ap.plu(**LOCAL),
    "power_of_choice": lambda: ap.power_of_choice(fraction=0.5, **LOCAL),
    "qfedavg": lambda: ap.qfedavg(**LOCAL),
    "radfed": lambda: ap.radfed(fraction=0.5, hops=3, **LOCAL),
    "radfed_a": lambda: ap.radfed_a(fraction=0.5, hops=2, eta=0.03, **LOCAL),
    "radfed_i": lambda: ap.radfed_i(fraction=0.5, hops=3, **LOCAL),
    "radfed_m": lambda: ap.radfed_m(fraction=0.5, hops=2, **LOCAL),
    "radfed_p": lambda: ap.radfed_p(fraction=0.5, hops=3, **LOCAL),
    "rce": lambda: ap.rce(**LOCAL),
    "scaffold": lambda: ap.scaffold(fraction=0.5, **LOCAL),
    "sync_dvw": lambda: ap.sync_dvw(batch=16),
    "tifl": lambda: ap.tifl(fraction=0.5, **LOCAL),
    "tvw": lambda: ap.tvw(**LOCAL),
}


def normalised() -> nn.Module:
    layers = (nn.Flatten(), nn.Linear(64, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 10))
    return nn.Sequential(*layers)


def model_of(name: str) -> Callable[[], nn.Module] | None:
    """The default network, unless a method needs another one."""
    return normalised if name == "fedbn" else None


@cache
def easy() -> ap.data.Islands:
    return ap.data.digits().split(learners=6, sizes=(120,) * 6)


def test_every_method_is_tried() -> None:
    assert sorted(EASY) == sorted(ap.algorithms.__all__)


@pytest.mark.slow
@pytest.mark.parametrize("name", EASY)
def test_every_method_beats_chance_on_easy_data(name: str) -> None:
    algorithm = EASY[name]()
    run = ap.simulate(
        algorithm, easy(), model=model_of(name), fleet=ap.Fleet(fast=3, slow=3), ending=ap.Ending(rounds=6)
    )
    assert algorithm.name.startswith(name)
    assert not run.refusals
    assert run.scores[0][1].metrics["accuracy"] < 0.25, "the model should not know the digits to begin with"
    assert run.score > 0.3, "ten classes: chance is 0.1"
    assert run.summary().startswith(f"{algorithm.name}: accuracy {run.final_score:.4f} over the last fifth of ")


@pytest.mark.slow
@pytest.mark.parametrize("name", EASY)
def test_every_method_runs_as_its_constructor_makes_it(name: str) -> None:
    """With the defaults, whatever they are good for: a few commits that move the model."""
    algorithm = getattr(ap, name)()
    run = ap.simulate(algorithm, easy(), model=model_of(name), ending=ap.Ending(rounds=1))
    assert run.commits
    assert not run.refusals
    assert run.model.isfinite().all()
    assert name == "local_only" or any(commit.layers for _, commit in run.commits)
    names = {name: getattr(ap, name) for name in ap.__all__}
    assert eval(repr(algorithm), names) == algorithm, "an algorithm's repr rebuilds it"

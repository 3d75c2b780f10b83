"""The zoo's benchmark measures what it claims, and reports it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from archipel.executors.arithmetic import SMALL, multiplications
from archipel.learner.learner import TrainingContext
from benchmarks import zoo
from benchmarks.zoo_networks import BATCH, EXAMPLES, LEARNERS, ZOO, Kind


@pytest.mark.slow
def test_the_command_measures_and_keeps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "zoo.json"
    monkeypatch.setattr(sys, "argv", ["zoo", "MLP, ReLU", "--repeats", "2", "--seconds", "0.001", "--out", str(out)])
    zoo.main()
    (found,) = json.loads(out.read_text())["zoo"]
    assert found["network"] == "MLP, ReLU"
    assert len(found["turns"]) == len(found["ratios"]) == 2
    for turn, ratio in zip(found["turns"], found["ratios"], strict=True):
        assert ratio == turn["archipel"] / max(turn["bare, 1 threads"], turn["bare, 2 threads"])
    assert "MLP, ReLU" in capsys.readouterr().out


@pytest.mark.slow
def test_the_loop_and_archipel_train_as_much() -> None:
    """A round of either is one epoch of every learner."""
    kind = ZOO["MLP, ReLU"]
    x, y = kind.examples(LEARNERS * EXAMPLES)
    ours = zoo.simulation(kind, x, y)
    learners = [site.learner for site in ours.sites.values()]
    assert [len(learner.train) for learner in learners] == [EXAMPLES] * LEARNERS
    assert (ours.controller.algorithm.plan.batch, ours.controller.algorithm.plan.epochs) == (BATCH, 1)
    loop = zoo.BareLoop(kind, x, y)
    before = [tensor.clone() for tensor in loop.model]
    updates = loop.updates()
    for _ in range(LEARNERS + 1):
        next(updates)
    assert all(not torch.equal(a, b) for a, b in zip(before, loop.model, strict=True))
    ours.close()


def _small(kind: Kind) -> bool:
    module = kind.make()
    x, y = kind.examples(2)
    layout: object = None
    return multiplications(TrainingContext(module, layout, kind.loss, x, y, None)) <= SMALL  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ZOO)
def test_a_network_has_the_goal_of_its_size(name: str) -> None:
    recurrent = name.startswith(("LSTM", "GRU"))
    assert (ZOO[name].goal == "large") == (recurrent or not _small(ZOO[name]))

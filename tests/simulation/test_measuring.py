"""Learners that report on the initial model before anybody is chosen: what it costs, and that nothing is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import archipel as ap
from archipel.core.records import Handed, Returned
from tests.simulation.engine_cases import small_islands
from tests.ways import NATIVE

MEASURED = ap.radfed_i(0.5, 2, first="measured", batch=8)


def run(algorithm: ap.Algorithm = MEASURED, **how: Any) -> ap.Run:
    return ap.simulate(algorithm, small_islands(4), ending=ap.Ending(rounds=4), **how)


def test_all_are_measured_before_the_first_choice_and_send_nothing_back() -> None:
    found = run(fleet=ap.Fleet(ap.Group("all", 4, train_seconds=1.0)))
    first = [(stamped.time, stamped.record) for stamped in found.records if isinstance(stamped.record, Returned)][:4]
    assert [record.learner for _, record in first] == ["00", "01", "02", "03"]
    assert {(record.layers, record.steps, record.epochs) for _, record in first} == {((), 0, 0.0)}
    assert {time for time, _ in first} == {5.0}, "one pass over 40 examples in batches of 8, for the norms"
    handed = [time for time, _ in found.of(Handed)]
    assert handed[:4] == [0.0] * 4
    assert min(handed[4:]) == 5.0
    size = 4 * found.layout.size
    # all receive the initial model to measure it, so that the first hop needs no transfer and the second two at most
    assert 4 * size <= found.commits[0][1].traffic["train down bytes"] <= (4 + 2) * size
    assert found.commits[0][1].traffic["train up bytes"] == 4 * size
    assert found.rounds == 4, "measuring is no local round"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["workers", "stacked", NATIVE])
def test_every_execution_measures_alike(way: str) -> None:
    plain, other = run(execution="plain"), run(execution=way)
    assert [commit.paths for _, commit in plain.commits] == [commit.paths for _, commit in other.commits]
    assert torch.allclose(plain.model, other.model, atol=1e-5)


def test_a_learner_whose_measurement_is_lost_stands_at_the_mean() -> None:
    found = run(fleet=ap.Fleet(ap.Group("all", 4, drop_rate=0.5)), seed=3)
    assert len(found.commits) == 2


def test_it_goes_with_rounds_too() -> None:
    rounds = replace(MEASURED, protocol=ap.Rounds(0.5))
    assert [len(commit.learners) for _, commit in run(rounds).commits] == [2] * 4

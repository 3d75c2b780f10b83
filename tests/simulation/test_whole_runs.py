"""Whole simulations mean the same whichever way they are executed; plain PyTorch is the reference."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import archipel as ap
from archipel.core.records import Committed, Handed, Membership, Refused, Returned
from archipel.models import mlp
from tests.simulation.engine_cases import islands
from tests.ways import NATIVE

pytestmark = pytest.mark.slow

ALGORITHMS = {
    "fedavg": ap.fedavg(fraction=0.5, epochs=2),
    "async_dvw": ap.async_dvw(batch=16, at_most=6),
    "async_dvw fixed": ap.async_dvw(adaptive=False, batch=16, epochs=2),
    "fed2a": ap.fed2a(buffer=2, period=3, last=1),
    "hdafl": ap.hdafl(fraction=0.5),
    "divide_and_conquer": ap.divide_and_conquer(prepass=2, epochs=3, tuning_epochs=2, rate=0.05),
    "radfed_i": ap.radfed_i(fraction=0.5, hops=3),
}


def events(run: ap.Run) -> list[object]:
    """Return the records of tasks, answers and commits, without numbers that may differ in the last digits."""
    kept: list[object] = []
    for stamped in run.records:
        record = stamped.record
        if isinstance(record, Handed | Membership | Refused):
            kept.append((stamped.time, record))
        elif isinstance(record, Returned):
            kept.append((stamped.time, replace(record, losses=())))
        elif isinstance(record, Committed):
            kept.append((stamped.time, replace(record, weights=())))
    return kept


@cache
def run(name: str, way: Any) -> ap.Run:
    data = islands(6, sizes=(160, 100, 60, 40, 25, 15), classes=3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = mlp(64, 10)
    settings: dict[str, Any] = {"fleet": ap.Fleet(fast=3, slow=3), "ending": ap.Ending(rounds=6), "model": model}
    return ap.simulate(ALGORITHMS[name], data, execution=way, **settings)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("way", ["stacked", NATIVE])
def test_whole_runs_agree(way: Any, name: str) -> None:
    mine, theirs = run(name, way), run(name, "plain")
    assert (mine.execution, theirs.execution) == (way, "plain")
    assert events(mine) == events(theirs)
    for (_, a), (_, b) in zip(mine.cycles, theirs.cycles, strict=True):
        assert a.losses == pytest.approx(b.losses, rel=1e-3, nan_ok=True)
    for (_, one), (_, other) in zip(mine.commits, theirs.commits, strict=True):
        torch.testing.assert_close(torch.tensor(one.weights), torch.tensor(other.weights), atol=0.02, rtol=1e-3)
    torch.testing.assert_close(mine.model, theirs.model, atol=1e-3, rtol=1e-3)
    assert mine.score == pytest.approx(theirs.score, abs=0.01)

"""Norms of updates in the records: by choice, and where updates are clipped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import archipel as ap
from archipel.core.parts import CentralNoise, Mean, NormClipped
from archipel.core.types import Event, Trained
from archipel.models import small_mlp
from archipel.simulation.simulate import finished, prepare
from archipel.simulation.simulator import Simulator
from tests.simulation.engine_cases import small_islands

SETTINGS: dict[str, Any] = {"model": small_mlp(), "ending": ap.Ending(rounds=2)}


class Distances:
    """Observes how far each model that comes back is from the version that it was trained from."""

    def __init__(self) -> None:
        self.found: dict[int, float] = {}

    def before(self, simulator: Simulator, event: Event) -> None:
        if isinstance(event, Trained):
            models = simulator.controller.models
            start = models.read(simulator.controller.state.out[event.task].model.name)
            self.found[event.task] = float((models.read(event.model).double() - start).norm())

    def after(self, *_: object) -> tuple[()]:
        return ()


def test_norms_are_measured_by_choice_and_change_nothing_else() -> None:
    data, observer = small_islands(4), Distances()
    simulator = prepare(ap.fedavg(batch=16), data, norms=True, **SETTINGS)
    simulator.observers = (observer,)  # type: ignore[assignment]
    simulator.begin()
    simulator.run()
    simulator.close()
    told, plain = finished(simulator), ap.simulate(ap.fedavg(batch=16), data, **SETTINGS)
    assert told.fingerprint() == plain.fingerprint()
    for (_, commit), (_, without) in zip(told.commits, plain.commits, strict=True):
        assert commit.norms == pytest.approx([observer.found[task] for task in commit.tasks], rel=1e-5)
        assert min(commit.norms) > 0
        assert replace(commit, norms=()) == without


def test_clipped_updates_have_norms_anyway() -> None:
    method = replace(ap.fedavg(batch=16), merge=NormClipped(Mean(), 1.0))
    run = ap.simulate(method, small_islands(4), **SETTINGS)
    for _, commit in run.commits:
        assert len(commit.norms) == 4
        assert 0 < sum(commit.clipped) <= 4  # two of four are above the lower median of a layer, at least


def test_norms_of_single_learners_are_refused_beside_privacy() -> None:
    method = replace(ap.fedavg(equally=True, batch=16), privacy=CentralNoise(noise=1.0, clip=1.0))
    with pytest.raises(ValueError, match=r"would reveal something about its learner\. Leave out norms, or privacy"):
        ap.simulate(method, small_islands(4), norms=True, **SETTINGS)

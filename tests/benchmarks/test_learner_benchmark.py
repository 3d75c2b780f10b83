"""The benchmark of one learner of a federation against one learner of the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from archipel.learner.learner import Job
from benchmarks.federation import learner
from tests.ways import CHOSEN


@pytest.mark.slow
def test_both_train_the_same_tasks() -> None:
    measured = learner.measure("MLP, ReLU", seconds=0.001, turns=1)
    assert (measured["learner"], measured["simulator"]) == (CHOSEN, CHOSEN)
    assert all(rate > 0 for rate in measured["turns"][0].values())
    assert learner.ratio(measured, "training") > 0


def test_its_learner_trains_as_many_steps_as_the_simulators(tmp_path: Path) -> None:
    simulator, data, algorithm = learner.simulation("MLP, tanh")
    alone = learner.Alone(simulator, data, algorithm, tmp_path)
    job = Job.begin(alone.island.learner, alone.island.work.layout, alone.model, alone.plan)
    assert torch.equal(alone.island.learner.train, next(iter(simulator.sites.items()))[1].learner.train)
    alone.do()
    assert alone.agent.memory.owed is not None
    assert alone.agent.memory.owed.steps == job.steps_at(1) == 10
    simulator.close()

"""A learner of a federation trains with the executor that suits its network, to the simulator's bits."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from archipel import models
from archipel.core.types import Plan
from archipel.executors import fork_pool, fork_scorer
from archipel.executors.choice import WAYS, Way, choose
from archipel.federation.learner.agent import Training
from archipel.federation.learner.local_trainer import LocalTrainer
from archipel.federation.learner.site_data import LocalSite
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.kernels.threads import threads as torch_threads
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.training import advance
from archipel.simulation.simulate import simulate
from archipel.study.build import build_algorithm, build_data, build_settings
from archipel.study.federate import one_run
from archipel.study.files import study_of
from archipel.study.local_site import take_part, try_out
from tests.federation.in_one_process import hold, study
from tests.security.lying_controller import Site
from tests.security.lying_controller import study as pooled_study
from tests.simulation.engine_cases import PLAN, images, jobs, learners, small_islands, work
from tests.ways import CHOSEN

FLAT = small_islands()
NETWORKS: dict[str, tuple[nn.Module, bool, Plan, str]] = {
    "ReLU": (models.mlp(64, 10, hidden=(8,)), False, PLAN, CHOSEN),
    "ReLU with momentum": (models.mlp(64, 10, hidden=(8,)), False, replace(PLAN, momentum=0.5), CHOSEN),
    "tanh": (nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)), False, PLAN, "stacked"),
    "Adam": (models.mlp(64, 10, hidden=(8,)), False, replace(PLAN, optimiser="Adam", rate=0.01), "stacked"),
    "layer norm": (nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 10)), False, PLAN, "stacked"),
    "convolutions": (models.small_cnn(size=8), True, PLAN, "stacked"),
    "RReLU": (nn.Sequential(nn.Linear(64, 10), nn.RReLU()), False, PLAN, "workers"),
}
"""By name: the network, whether it takes images, the plan, and how one learner alone trains it."""


def site(context: TrainingContext, plan: Plan, execution: Way | None = None) -> LocalSite:
    policy: Any = SimpleNamespace(plans=(plan,))
    (learner,) = learners(context.x, (40,))
    return LocalSite(context, learner, policy, execution=execution)


def case(name: str) -> tuple[TrainingContext, Plan, str]:
    module, pictures, plan, way = NETWORKS[name]
    data = images(FLAT) if pictures else FLAT
    return work(module, data.x, data.y), plan, way


@pytest.mark.parametrize("name", NETWORKS)
def test_a_learner_trains_by_the_executor_that_suits_its_network(name: str) -> None:
    context, plan, way = case(name)
    mine = site(context, plan)
    trainer, others = LocalTrainer(mine, threads=1), WAYS[cast(Way, way)](context)
    (job,), (other,) = (jobs(context, [mine.learner], [plan]) for _ in range(2))
    while not job.done:
        trainer.advance(job)
    with others.running():
        others.submit([other])
        others.wait(other)
    assert trainer.executor.name == way
    assert torch.equal(job.vector, other.vector)
    others.close()


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_the_simulators_choice(name: str) -> None:
    context, plan, way = case(name)
    assert choose(context, plan)[0] == way


def test_a_study_can_say_how() -> None:
    context, plan, _ = case("ReLU")
    assert LocalTrainer(site(context, plan, "plain"), threads=1).executor.name == "plain"


def test_examples_that_are_standardised_later_are_those_it_trains_on() -> None:
    context, plan, _ = case("ReLU")
    mine = site(context, plan)
    trainer = LocalTrainer(mine, threads=1)
    assert trainer.executor is trainer.executor
    mine.work = replace(context, x=context.x / 2)
    (job,), (other,) = (jobs(mine.work, [mine.learner], [plan]) for _ in range(2))
    trainer.advance(job)
    advance(mine.work, other, 1)
    torch.testing.assert_close(job.vector, other.vector)


def test_a_large_network_has_the_learners_threads_and_a_small_one_has_one() -> None:
    counted = []

    class Counts(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            counted.append(torch.get_num_threads())
            return super().forward(x)

    for width, expected in ((8, 1), (40_000, 2)):
        module = nn.Sequential(Counts(64, width), nn.RReLU(), nn.Linear(width, 10))
        mine = site(work(module, FLAT.x, FLAT.y), PLAN)
        trainer = LocalTrainer(mine, threads=2)
        trainer.executor  # noqa: B018
        counted.clear()
        start, plan = mine.work.layout.vector(module), replace(PLAN, steps=1)
        trainer.advance(Job.begin(mine.learner, mine.work.layout, start, plan))
        assert set(counted) == {expected}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_learner_never_forks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("a process that talks to a controller was forked")

    monkeypatch.setattr(fork_pool, "fork", refused)
    monkeypatch.setattr(fork_scorer, "fork", refused)
    context, plan, _ = case(name)
    mine = site(context, plan)
    with torch_threads(4):
        trainer = LocalTrainer(mine, threads=4)
        (job,) = jobs(context, [mine.learner], [replace(plan, reports=("validation",))])
        trainer.advance(job)
    assert job.epochs == 1


# ------------------------------------------------------------------------------------------------------- the agent


@pytest.fixture
def lone(tmp_path: Path) -> Site:
    return Site(pooled_study(algorithms={"name": "fedavg", "epochs": 3}), tmp_path / "learner")


def halfway(one: Site, **flags: bool) -> tuple[Job | None, Job]:
    """What a task comes to if it is told something after its first epoch; and the same job after one epoch."""
    agent, plan = one.agent, one.honest
    training = Training(pb.Train(task=1, plan=messages.encode_plan(plan, 7)), plan)
    carried, first = one._vector(), agent.trainer.advance

    def advance_and_tell(job: Job) -> None:
        first(job)
        vars(training).update(flags)

    agent.trainer.advance = advance_and_tell  # type: ignore[method-assign]
    done = agent._work_at(training, carried, None)
    other = Job.begin(agent.island.learner, one.layout, carried, plan, 7)
    first(other)
    return done, other


def test_a_task_that_is_asked_back_ends_after_its_epoch(lone: Site) -> None:
    done, other = halfway(lone, finishing=True)
    assert done is not None
    assert done.epochs == 1
    assert torch.equal(done.vector, other.vector)
    assert lone.agent.trainer.executor.name == CHOSEN


def test_a_task_that_is_cancelled_gives_nothing(lone: Site) -> None:
    done, _ = halfway(lone, cancelled=True)
    assert done is None


def test_a_dry_run_tells_how_the_learner_trains() -> None:
    island, narrowed = take_part(study_of(pooled_study()), "00")
    assert f"executor: {CHOSEN}" in try_out(narrowed, island)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "hdafl"])
def test_a_federation_uses_the_simulators_executor_to_its_bits(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = study(algorithms=method, ending={"commits": 3})
    del raw["simulation"]  # which says how
    with caplog.at_level(logging.INFO, "archipel.learner"):
        held = hold(raw, tmp_path)
    one = one_run(study_of(raw))
    islands = build_data(one).islands
    expected = simulate(build_algorithm(one), islands, **build_settings(one, islands))
    told = [vars(record) for record in caplog.records if record.getMessage() == "trains"]
    assert {line["execution"] for line in told} == {expected.execution}
    assert held.run is not None
    assert torch.equal(held.run.model, expected.model)

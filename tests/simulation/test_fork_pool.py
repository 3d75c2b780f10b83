"""Other processes do the same work to the same bits, and nothing depends on them but time."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch

from archipel.core.layout import Layout
from archipel.core.types import Cycle, Plan
from archipel.executors import fork_pool, stacked
from archipel.executors.interface import Executor
from archipel.executors.native import Native
from archipel.executors.plain import Plain
from archipel.executors.stacked import Stacked
from archipel.executors.workers import Workers
from archipel.kernels.threads import threads
from archipel.learner.learner import Job, TrainingContext
from tests.simulation.engine_cases import learners
from tests.ways import needs_library

SIZES = (40, 33, 40, 12, 25)
PLAN = Plan(epochs=3, batch=8, rate=0.1)


def small_context() -> TrainingContext:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(300, 6, generator=draw)
    y = (x.sum(dim=1) > 0).long() + (x[:, 0] > 0.5).long()
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    return TrainingContext(module, Layout.of(module, x[:2]), torch.nn.functional.cross_entropy, x, y, 3)


def begun(at_hand: TrainingContext, plan: Plan) -> list[Job]:
    start = at_hand.layout.vector(at_hand.module)
    who = learners(at_hand.x, SIZES, [5] * len(SIZES))
    return [Job.begin(one, at_hand.layout, start, plan, k) for k, one in enumerate(who)]


@pytest.fixture
def two_a_stack(monkeypatch: pytest.MonkeyPatch) -> TrainingContext:
    at_hand = small_context()
    monkeypatch.setattr(stacked, "WORTH_A_PROCESS", 2 * at_hand.layout.size * PLAN.batch)
    return at_hand


def told(jobs: list[Job]) -> list[Any]:
    return [
        (job.vector.tolist(), job.epochs, job.losses, {name: kept.tolist() for name, kept in job.memory.items()})
        for job in jobs
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, momentum=0.5),
        replace(PLAN, proximal=0.1, momentum=0.9, options={"weight_decay": 0.01}),
        replace(PLAN, reports=("losses",)),
        replace(PLAN, cycle=Cycle(at_most=4)),
        replace(PLAN, trains=("2",)),
    ],
    ids=["plain", "momentum", "proximal", "losses", "cycle", "frozen"],
)
@pytest.mark.parametrize("epochs", [None, 1])
def test_every_kind_of_job_comes_to_the_same_bits(two_a_stack: TrainingContext, plan: Plan, epochs: int | None) -> None:
    found = []
    for count in (1, 2, 4):
        way = Stacked(two_a_stack)
        way.pool.count = count
        jobs = begun(two_a_stack, plan)
        for _ in range(3 if epochs else 1):
            way.submit(jobs, epochs)
            way.wait()
        found.append(told(jobs))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("way", [Plain, Workers, Stacked, pytest.param(Native, marks=needs_library)])
def test_jobs_share_the_model_they_received_and_leave_it_as_it_was(
    two_a_stack: TrainingContext, way: type[Executor]
) -> None:
    jobs = begun(two_a_stack, replace(PLAN, proximal=0.1))
    received = jobs[0].vector
    assert all(job.vector is received and job.anchor is received for job in jobs)
    before, at_work = received.clone(), way(two_a_stack)  # type: ignore[call-arg]
    for _ in range(2):  # the second time they go on from models of their own, and still hold to the one they received
        at_work.submit(jobs, 1)
        at_work.wait()
    assert torch.equal(received, before)
    assert all(job.anchor is received and not torch.equal(job.vector, received) for job in jobs)


def test_a_process_that_dies_costs_nothing_but_time(two_a_stack: TrainingContext) -> None:
    alone, killed = Stacked(two_a_stack), Stacked(two_a_stack)
    alone.pool.count, killed.pool.count = 1, 2
    first, second = begun(two_a_stack, PLAN), begun(two_a_stack, PLAN)
    before = {process.pid for process in multiprocessing.active_children()}
    alone.submit(first, 1)
    killed.submit(second, 1)
    killed.wait()
    (child,) = [process for process in multiprocessing.active_children() if process.pid not in before]
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    alone.submit(first)
    killed.submit(second)
    killed.wait()
    assert told(first) == told(second)


def test_an_error_in_the_other_process_is_told_in_this_one(two_a_stack: TrainingContext) -> None:
    way = Stacked(two_a_stack)
    way.pool.count = 2
    jobs = begun(two_a_stack, PLAN)
    poor = min(jobs, key=lambda job: job.examples)  # the shortest: in the last stack, which is not this process's
    poor.learner.train = torch.tensor([10**6])
    way.submit(jobs)
    with pytest.raises(IndexError):
        way.wait()


def test_processes_go_when_nobody_needs_them(two_a_stack: TrainingContext) -> None:
    way = Stacked(two_a_stack)
    way.pool.count = 2
    before = {process.pid for process in multiprocessing.active_children()}
    way.submit(begun(two_a_stack, PLAN))
    mine = [process for process in multiprocessing.active_children() if process.pid not in before]
    assert len(mine) == 1
    del way
    for process in mine:
        process.join(timeout=120)
        assert not process.is_alive()


def test_models_are_copied_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a copy that torch's threads share they wait for the next one on the cores that the processes need."""
    at_hand, seen = small_context(), set()
    copied_by = fork_pool._SharedRows.rows

    def rows(self: Any, count: int, size: int) -> Any:
        seen.add(torch.get_num_threads())
        return copied_by(self, count, size)

    monkeypatch.setattr(fork_pool._SharedRows, "rows", rows)
    with threads(2), closing(Workers(at_hand)) as workers:
        workers.submit(begun(at_hand, PLAN))
        workers.wait()
        assert torch.get_num_threads() == 2
    assert seen == {1}

"""Other processes do the same work to the same bits, and nothing depends on them but time."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_cases import learners
from ways import needs_library

import archipel as ap
from archipel.core.types import Cycle, Plan
from archipel.learner.learner import Job, Work
from archipel.simulation import simulator
from archipel.simulation.executors import fork_pool as hands
from archipel.simulation.executors import stacked
from archipel.simulation.executors.choice import Execution, Plain, Workers
from archipel.simulation.executors.fork_pool import Errand
from archipel.simulation.executors.native import Native
from archipel.simulation.executors.stacked import Stacked
from archipel.simulation.simulate import finished, prepare

SIZES = (40, 33, 40, 12, 25)
PLAN = Plan(epochs=3, batch=8, rate=0.1)


def work() -> Work:
    from archipel.core.layout import Layout

    draw = torch.Generator().manual_seed(3)
    x = torch.randn(300, 6, generator=draw)
    y = (x.sum(dim=1) > 0).long() + (x[:, 0] > 0.5).long()
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    return Work(module, Layout.of(module, x[:2]), torch.nn.functional.cross_entropy, x, y, 3)


def begun(at_hand: Work, plan: Plan) -> list[Job]:
    start = at_hand.layout.vector(at_hand.module)
    who = learners(at_hand.x, SIZES, [5] * len(SIZES))
    return [Job.begin(one, at_hand.layout, start, replace(plan, key=k)) for k, one in enumerate(who)]


@pytest.fixture
def two_a_stack(monkeypatch: pytest.MonkeyPatch) -> Work:
    at_hand = work()
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
def test_every_kind_of_job_comes_to_the_same_bits(two_a_stack: Work, plan: Plan, epochs: int | None) -> None:
    found = []
    for count in (1, 2, 4):
        way = Stacked(two_a_stack)
        way.hands.count = count
        jobs = begun(two_a_stack, plan)
        for _ in range(3 if epochs else 1):
            way.advance(jobs, epochs)
            way.settle()
        found.append(told(jobs))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("way", [Plain, Workers, Stacked, pytest.param(Native, marks=needs_library)])
def test_jobs_share_the_model_they_received_and_leave_it_as_it_was(two_a_stack: Work, way: type[Execution]) -> None:
    jobs = begun(two_a_stack, replace(PLAN, proximal=0.1))
    received = jobs[0].vector
    assert all(job.vector is received and job.anchor is received for job in jobs)
    before, at_work = received.clone(), way(two_a_stack)
    for _ in range(2):  # the second time they go on from models of their own, and still hold to the one they received
        at_work.advance(jobs, 1)
        at_work.settle()
    assert torch.equal(received, before)
    assert all(job.anchor is received and not torch.equal(job.vector, received) for job in jobs)


def test_a_process_that_dies_costs_nothing_but_time(two_a_stack: Work) -> None:
    alone, killed = Stacked(two_a_stack), Stacked(two_a_stack)
    alone.hands.count, killed.hands.count = 1, 2
    first, second = begun(two_a_stack, PLAN), begun(two_a_stack, PLAN)
    before = {process.pid for process in multiprocessing.active_children()}
    alone.advance(first, 1)
    killed.advance(second, 1)
    killed.settle()
    (child,) = [process for process in multiprocessing.active_children() if process.pid not in before]
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    alone.advance(first)
    killed.advance(second)
    killed.settle()
    assert told(first) == told(second)


def test_an_error_in_the_other_process_is_told_in_this_one(two_a_stack: Work) -> None:
    way = Stacked(two_a_stack)
    way.hands.count = 2
    jobs = begun(two_a_stack, PLAN)
    poor = min(jobs, key=lambda job: job.examples)  # the shortest: in the last stack, which is not this process's
    poor.learner.train = torch.tensor([10**6])
    way.advance(jobs)
    with pytest.raises(IndexError):
        way.settle()


def test_processes_go_when_nobody_needs_them(two_a_stack: Work) -> None:
    way = Stacked(two_a_stack)
    way.hands.count = 2
    before = {process.pid for process in multiprocessing.active_children()}
    way.advance(begun(two_a_stack, PLAN))
    mine = [process for process in multiprocessing.active_children() if process.pid not in before]
    assert len(mine) == 1
    del way
    for process in mine:
        process.join(timeout=120)
        assert not process.is_alive()


# -------------------------------------------------------------------------------------------------------- errands


def _square(model: torch.Tensor, more: int = 0) -> float:
    number = float(model[0])
    if number == 13:
        raise ValueError("not thirteen")
    return number * number + more


def _who(model: torch.Tensor) -> int:
    return os.getpid()


def _long(model: torch.Tensor, text: str) -> str:
    return f"{int(model[0])}{text}" * 10


def _model(number: int) -> torch.Tensor:
    return torch.full((3,), float(number))


def test_answers_are_fetched_in_any_order() -> None:
    errand = Errand(_square)
    for number in range(5):
        errand.begin(number, _model(number), 1)
    assert [errand.result(number) for number in (4, 0, 2, 1, 3)] == [17, 1, 5, 2, 10]


def test_more_questions_than_there_is_room_for() -> None:
    errand, numbers = Errand(_square), range(20, 20 + 3 * hands.QUESTIONS)
    for number in numbers:
        errand.begin(number, _model(number))
    assert [errand.result(number) for number in numbers] == [number**2 for number in numbers]


def test_neither_side_waits_for_the_other_to_read() -> None:
    errand, text = Errand(_long), "." * (hands.BYTES_OUT // 2)
    for number in range(20):
        errand.begin(number, _model(number), text)
    assert [errand.result(number) for number in range(20)] == [f"{number}{text}" * 10 for number in range(20)]


def test_what_an_errand_fails_at_is_done_here() -> None:
    errand = Errand(_square)
    for number in (2, 13, 3):
        errand.begin(number, _model(number))
    assert errand.result(2) == 4
    with pytest.raises(ValueError, match="not thirteen"):
        errand.result(13)
    assert errand.result(3) == 9
    errand.begin(4, _model(4))
    assert errand.result(4) == 16


def test_an_errand_whose_process_dies_is_done_here() -> None:
    errand = Errand(_who)
    errand.begin(0, _model(0))
    there = errand.result(0)
    assert there != os.getpid()
    os.kill(there, signal.SIGKILL)
    errand.begin(1, _model(0))
    assert errand.result(1) == os.getpid()


@pytest.mark.slow
def test_opinions_from_another_process_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(worth: int) -> Any:
        monkeypatch.setattr(simulator, "WORTH_AN_ERRAND", worth)
        algorithm = ap.async_dvw(adaptive=False, batch=16)
        data = ap.data.digits().split(learners=5, seed=1)
        settings = {"fleet": ap.Fleet(fast=3, slow=2), "ending": ap.Ending(commits=20), "execution": "stacked"}
        simulated = prepare(algorithm, data, **settings)
        simulated.cores = 2
        simulated.begin()
        simulated.run()
        asked = bool(simulated.errand._connection)
        return finished(simulated), asked

    here, none = run(10**12)
    there, some = run(0)
    assert (none, some) == (False, True)
    assert torch.equal(here.model, there.model)
    assert here.records == there.records

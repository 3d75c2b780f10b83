"""The fleet and the virtual clock: speeds of learners and the times of a run, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import archipel as ap
from archipel.core.records import Returned
from archipel.executors.plain import Plain
from archipel.learner.learner import Job
from archipel.simulation.fleet import Fleet, Group
from archipel.simulation.simulate import finished
from tests.simulation.engine_cases import begun, islands, small_islands

NUMBERS = 64 * 32 + 32 + 32 * 10 + 10
"""Of small_mlp, which is 4 bytes each on the wire."""
BYTES = 4 * NUMBERS

# ------------------------------------------------------------------------------------------------ who is how fast


@pytest.mark.parametrize(
    ("fleet", "sizes", "groups"),
    [
        (Fleet(fast=2, slow=2), (40, 30, 20, 10), "fast slow fast slow"),
        (Fleet(fast=2, slow=2), (10, 20, 30, 40), "slow fast slow fast"),
        (Fleet(fast=1, slow=3), (40, 30, 20, 10), "fast slow slow slow"),
        (Fleet(fast=3, slow=1), (10, 40, 20, 30), "fast fast fast slow"),
        (Fleet(fast=2, slow=2), (7, 7, 7, 7), "fast slow fast slow"),
        (Fleet(Group("a", 1), Group("b", 2), Group("c", 1)), (4, 3, 2, 1), "a b c b"),
        (Fleet(Group("empty", 0), Group("all", 4)), (4, 3, 2, 1), "all all all all"),
    ],
)
def test_groups_alternate_by_descending_size(fleet: Any, sizes: Any, groups: Any) -> None:
    names = ["00", "01", "02", "03"]
    assigned = {name: fleet.groups[place] for name, place in zip(names, fleet.assign(sizes), strict=True)}
    assert " ".join(assigned[name].name for name in names) == groups


def test_the_short_form_is_metis_gpus_and_cpus() -> None:
    fast, slow = Fleet(fast=5, slow=5).groups
    assert (fast.count, fast.train_seconds, fast.evaluate_seconds) == (5, 0.01, 0.002)
    assert (slow.count, slow.train_seconds, slow.evaluate_seconds) == (5, 0.1, 0.02)
    assert eval(repr(Fleet(fast=5, slow=5))) == Fleet(fast=5, slow=5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fleet(), r"it has no learners; give Fleet\(fast=5, slow=5\)"),
        (lambda: Fleet(fast=0, slow=0), "it has no learners"),
        (lambda: Fleet(Group("fast", 2), fast=3), "two groups have the same name: fast, fast"),
        (lambda: Fleet(fast=-1), "Group 'fast': count should be at least 0, got -1"),
        (lambda: Group("a", 1, train_seconds=-1), "train_seconds should be at least 0, got -1"),
        (lambda: Group("a", 1, varies=-1), "varies should be at least 0, got -1"),
        (lambda: Group("a", 1, bandwidth=0), "bandwidth should be more than 0, got 0"),
        (lambda: Group("a", 1, drop_rate=1.0), "drop_rate should be at least 0 and below 1, got 1.0"),
        (lambda: Group("a", 1, up=0), "up should be more than 0, got 0"),
        (lambda: Group("a", 1, down=0), "down should be more than 0, got 0"),
        (lambda: Group("a", 1, latency=math.nan), "latency should be at least 0, got nan"),
        (
            lambda: Fleet(fast=2, slow=1).assign([5]),
            r"it has 3 learners \(2 fast, 1 slow\), the data have 1 islands; make them equal",
        ),
    ],
)
def test_a_wrong_fleet_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# ------------------------------------------------------------------------------------------------ times by hand


def times(run: ap.Run) -> list[float]:
    return [time for time, _ in run.commits]


def test_a_task_lasts_as_long_as_its_way_and_its_steps() -> None:
    group = Group("all", 2, train_seconds=0.1, bandwidth=1000, latency=0.25)
    run = ap.simulate(
        ap.fedavg(epochs=3, batch=16), small_islands(2, each=40), fleet=Fleet(group), ending=ap.Ending(rounds=2)
    )
    # 40 examples of 16 are 3 steps; the model goes down and comes back
    once = 2 * (0.25 + BYTES / 1000) + 3 * 3 * 0.1
    assert times(run) == pytest.approx([once, 2 * once], rel=1e-12)
    assert run.seconds == times(run)[-1]


def test_steps_instead_of_epochs_last_so_many_steps() -> None:
    run = ap.simulate(ap.fedavg(steps=7, batch=16), small_islands(2, each=40), ending=ap.Ending(rounds=1))
    assert times(run) == pytest.approx([7 * 0.01])


@pytest.mark.slow
def test_a_task_may_take_another_time_than_the_one_before() -> None:
    def lasted(seed: int) -> np.ndarray:
        group = Group("all", 2, varies=0.5)
        run = ap.simulate(
            ap.async_fedavg(steps=7, batch=16),
            small_islands(2, each=40),
            fleet=Fleet(group),
            ending=ap.Ending(commits=400),
            evaluation=ap.Evaluation(every=400),
            seed=seed,
        )
        return np.diff([0.0, *(time for time, record in run.cycles if record.learner == "00")])

    logarithms = np.log(lasted(seed=1) / (7 * 0.01))
    assert logarithms.mean() == pytest.approx(0, abs=0.12)
    assert logarithms.std() == pytest.approx(0.5, abs=0.1)
    assert lasted(seed=1) == pytest.approx(np.exp(logarithms) * 7 * 0.01)
    assert lasted(seed=2)[0] != lasted(seed=1)[0]


def test_a_synchronous_round_lasts_as_long_as_its_slowest_learner() -> None:
    data = islands(4, sizes=(100, 90, 50, 20))
    run = ap.simulate(ap.fedavg(batch=10), data, fleet=Fleet(fast=2, slow=2), ending=ap.Ending(rounds=3))
    # fast: 10 and 5 steps of 10 ms; slow: 9 and 2 of 100 ms
    assert times(run) == pytest.approx([0.9, 1.8, 2.7])
    back = {record.learner: time for time, record in run.cycles if time <= 0.9}
    assert back == pytest.approx({"00": 0.1, "01": 0.9, "02": 0.05, "03": 0.2})


def test_an_asynchronous_learner_waits_for_nobody() -> None:
    data = islands(4, sizes=(100, 90, 50, 20))
    run = ap.simulate(
        ap.async_fedavg(batch=10, epochs=1), data, fleet=Fleet(fast=2, slow=2), ending=ap.Ending(seconds=1.0)
    )
    assert run.seconds == 1.0
    assert run.reason == "time is up"
    back = {name: [time for time, record in run.cycles if record.learner == name] for name in ("00", "01", "02", "03")}
    assert back["00"] == pytest.approx([0.1 * n for n in range(1, len(back["00"]) + 1)])
    assert back["02"] == pytest.approx([0.05 * n for n in range(1, len(back["02"]) + 1)])
    assert back["01"] == pytest.approx([0.9])
    assert back["03"] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert len(back["00"]) >= 9
    assert len(back["02"]) >= 19


def dvw_by_hand(group: Group, train: int, validation: int, learners: int) -> float:
    """Seconds of a synchronous DVW round of learners that are all alike."""
    way = group.latency + BYTES / (group.bandwidth or math.inf)
    own = math.ceil(validation / 16) * group.evaluate_seconds
    training = way + math.ceil(train / 16) * group.train_seconds + own + way  # its own score travels with the update
    asking = way + own + group.latency  # the model goes down, a small answer comes back
    return training + (asking if learners > 1 else 0.0)


@pytest.mark.parametrize("group", [Group("all", 3), Group("all", 3, bandwidth=2000, latency=0.125)], ids=str)
def test_distributed_validation_costs_time_and_bytes(group: Any) -> None:
    simulator = begun(
        ap.sync_dvw(batch=16, epochs=1),
        small_islands(3, each=60),
        validation=0.3,
        fleet=Fleet(group),
        ending=ap.Ending(rounds=2),
    )
    parts = {(len(site.learner.train), len(site.learner.validation)) for site in simulator.sites.values()}
    simulator.run()
    run = finished(simulator)
    by_hand = max(dvw_by_hand(group, train, validation, 3) for train, validation in parts)
    assert len(parts) == 1, "the learners should be alike for this sum"
    assert times(run) == pytest.approx([by_hand, 2 * by_hand], rel=1e-12)
    assert run.traffic["evaluate down models"] == 2 * 3 * 2  # each of 3 updates at 2 others, twice
    assert run.traffic["evaluate down bytes"] == 12 * BYTES


def test_a_validation_cycle_looks_at_its_validation_part_after_every_epoch() -> None:
    group = Group("all", 2, train_seconds=0.1, evaluate_seconds=0.01, bandwidth=1000, latency=0.25)
    simulator = begun(
        ap.async_dvw(batch=8, at_most=3, tombstones=9),
        small_islands(2, each=60),
        validation=0.3,
        fleet=Fleet(group),
        ending=ap.Ending(commits=1),
    )
    simulator.run()
    (time, record), *_ = finished(simulator).cycles
    mine = simulator.sites[record.learner].learner
    steps, look = math.ceil(len(mine.train) / 8), 0.01 * math.ceil(len(mine.validation) / 8)
    way = 0.25 + BYTES / 1000
    assert (record.epochs, record.steps) == (3, 3 * steps)
    # at the received model, after each epoch, and once more for the score that travels with the update
    assert time == pytest.approx(way + 3 * steps * 0.1 + (1 + 3) * look + look + way, rel=1e-12)


def test_importance_costs_one_more_pass() -> None:
    data = small_islands(2, each=40)
    with_scores, without = (
        ap.simulate(algorithm, data, ending=ap.Ending(rounds=1))
        for algorithm in (ap.radfed_i(1.0, 1, batch=16), ap.radfed(1.0, 1, batch=16))
    )
    assert times(without) == pytest.approx([3 * 0.01])
    assert times(with_scores) == pytest.approx([2 * 3 * 0.01])


def test_a_task_called_back_finishes_its_epoch() -> None:
    """Metis Alg. 1 tests after the batches of an epoch; the job may have been carried on further, with the others."""
    simulator = begun(
        ap.async_dvw(batch=8, at_most=50, tombstones=50),
        small_islands(2),
        validation=0.3,
        fleet=Fleet(Group("fast", 1), Group("slow", 1, train_seconds=0.035)),
        execution="plain",
    )
    simulator.run(events=2)
    (flight,) = (f for f in simulator.flights.out.values() if f.train.learner == "01")
    while flight.job is None or (flight.ended, flight.job.epochs) != (1, 2):
        simulator.run(events=1)
    start, train = simulator.controller.models.read("v0"), flight.train
    by_hand = Job.begin(flight.job.learner, simulator.context.layout, start, train.plan, train.key)
    Plain(simulator.context).submit([by_hand], 2)
    looks = 0.002 * math.ceil(len(by_hand.learner.validation) / 8)
    assert flight.began < simulator.clock.now  # the second epoch is under way
    ends = flight.began + 0.035 * math.ceil(len(by_hand.learner.train) / 8) + looks
    simulator.flights.finish(flight.train.task)
    arrives = ends + looks  # the epoch with its validation loss, then its own score
    while flight.train.task in simulator.flights.out:
        simulator.run(events=1)
    returned = [(s.time, s.record) for s in simulator.records if isinstance(s.record, Returned)]
    time, record = next((time, record) for time, record in returned if record.losses and record.learner == "01")
    assert time == pytest.approx(arrives)
    assert (record.epochs, record.steps) == (2, by_hand.steps)
    assert record.losses == pytest.approx(by_hand.losses, abs=0)
    assert torch.equal(simulator.controller.models.read(f"t{flight.train.task}"), by_hand.vector)


def test_scoring_costs_no_time_and_its_bytes_are_counted_apart() -> None:
    data = small_islands(4, each=40)
    settings: dict[str, Any] = {"fleet": Fleet(Group("all", 4, bandwidth=1000, latency=0.5))}
    rarely, often = (
        ap.simulate(
            ap.fedavg(fraction=0.5, batch=16),
            data,
            ending=ap.Ending(rounds=3),
            evaluation=ap.Evaluation(every=every, at="learners"),
            **settings,
        )
        for every in (100, 1)
    )
    assert (len(rarely.scores), len(often.scores)) == (2, 4)  # before the first commit and after the last at least
    assert times(often) == times(rarely)
    assert often.seconds == rarely.seconds
    assert often.fingerprint() == rarely.fingerprint()
    moved, without = (dict(run.commits[-1][1].traffic) for run in (often, rarely))
    # two of four are given the version to train on anyway; to the two others it is sent to be scored
    assert moved.pop("score down models") == 3 * 2  # versions 0, 1 and 2 by the last commit
    assert moved.pop("score down bytes") == 3 * 2 * BYTES
    assert without.pop("score down models") == 2
    assert without.pop("score down bytes") == 2 * BYTES
    assert moved == without
    budget = sum(n for kind, n in moved.items() if kind.endswith("bytes"))
    again = ap.simulate(
        ap.fedavg(fraction=0.5, batch=16),
        data,
        ending=ap.Ending(bytes=budget),
        evaluation=ap.Evaluation(at="learners"),
        **settings,
    )
    assert len(again.commits) == 3, "scoring is not paid from the budget of bytes"
    assert again.reason == f"{budget:,} bytes moved"


def test_scores_by_the_clock() -> None:
    run = ap.simulate(
        ap.fedavg(batch=16),
        small_islands(2, each=40),
        fleet=Fleet(Group("all", 2, train_seconds=1.0)),
        ending=ap.Ending(seconds=10),
        evaluation=ap.Evaluation(every=None, seconds=4),
    )
    assert times(run) == [3, 6, 9]
    assert [(time, record.version) for time, record in run.scores] == [(0, 0), (4, 1), (8, 2), (10, 3)]

"""Learners that are lost, leave and come back; deadlines; tasks that are computed late."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch

import archipel as ap
from archipel.core.randomness import generator
from archipel.core.records import Committed, Handed, Membership, Record, Refused, Stamped
from archipel.core.types import Command, Evaluate, Evaluated, Event, Scored, Traffic, Trained
from archipel.executors.interface import Executor
from archipel.learner.learner import Job
from archipel.models import small_mlp
from archipel.simulation.clock import Goes, Returns
from archipel.simulation.fleet import Fleet, Group
from archipel.simulation.simulate import finished
from archipel.simulation.simulator import Simulator
from tests.simulation.engine_cases import begun, islands, small_islands
from tests.simulation.test_fleet import BYTES, times
from tests.watching import Watching

# ------------------------------------------------------------------------------------------------- what goes wrong


def test_lost_tasks_are_recorded_and_the_run_goes_on() -> None:
    run = ap.simulate(
        ap.fedavg(batch=16),
        small_islands(4),
        fleet=Fleet(Group("all", 4, drop_rate=0.2)),
        ending=ap.Ending(rounds=20),
    )
    assert run.reason == "20 local rounds made"
    lost = [record for _, record in run.refusals]
    assert {record.reason for record in lost} == {"lost"}
    assert 8 <= len(lost) <= 26  # 80 tasks at one in five: 16 expected, three deviations either way
    assert len(run.of(Handed)) == 80 == len(run.cycles) + len(lost)
    assert {len(record.learners) for _, record in run.commits} > {4}, "some rounds commit with fewer"
    assert len(lost) == sum(4 - len(record.learners) for _, record in run.commits) + 4 * (20 - len(run.commits))


def test_lost_opinions_do_not_hold_up_a_commit() -> None:
    run = ap.simulate(
        ap.sync_dvw(batch=16, epochs=1),
        small_islands(4),
        fleet=Fleet(Group("all", 4, drop_rate=0.2)),
        ending=ap.Ending(rounds=10),
    )
    assert run.reason == "10 local rounds made"
    assert len(run.cycles) + sum(record.reason == "lost" for _, record in run.refusals) == 40
    assert len(run.commits) == 10


class Heard(Watching):
    """Record when opinions on updates came, and what they were."""

    def __init__(self, simulator: Simulator) -> None:
        self.answers: list[tuple[float, Evaluated]] = []
        self.questions: dict[int, tuple[float, Evaluate]] = {}
        self.own: Scored | None = None
        """The last sender's own opinion of its update."""
        simulator.observers = (*simulator.observers, self)

    def before(self, simulator: Simulator, event: Event) -> None:
        if isinstance(event, Evaluated) and event.task >= 0:
            self.answers.append((simulator.clock.now, event))
        if isinstance(event, Trained):
            self.own = event.metrics.validation

    def after(self, simulator: Simulator, commands: Sequence[Command]) -> Iterable[Record]:
        for command in commands:
            if isinstance(command, Evaluate) and not command.record:
                self.questions[command.task] = simulator.clock.now, command
        return ()


def test_opinions_are_lost_each_by_a_draw_of_its_own() -> None:
    """A site's luck is drawn by task and name; an answer comes when the last opinion was due, lost or not."""
    careful, careless = Group("careful", 2), Group("careless", 3, drop_rate=0.5, evaluate_seconds=0.01)
    simulator = begun(
        ap.sync_dvw(batch=16, epochs=1, quorum=0.1),
        small_islands(5, each=60),
        validation=0.3,
        fleet=Fleet(careful, careless),
        ending=ap.Ending(rounds=12),
        evaluation=ap.Evaluation(at="learners"),
        seed=7,
    )
    heard = Heard(simulator)
    simulator.run()
    run = finished(simulator)
    assert {event.task for _, event in heard.answers} == set(heard.questions), "each is answered"
    assert len(heard.answers) == len(heard.questions) == len(run.cycles), "once, and all sites together"
    missing = []
    for time, event in heard.answers:
        began, question = heard.questions[event.task]
        groups = {site: simulator.sites[site].group for site in question.sites}
        lost = [generator(7, "loss", event.task, site).random() < group.drop_rate for site, group in groups.items()]
        assert [opinion is None for opinion in event.results] == lost
        batches = {site: math.ceil(len(simulator.sites[site].learner.validation) / 16) for site in question.sites}
        assert time == pytest.approx(began + max(batches[site] * groups[site].evaluate_seconds for site in groups))
        missing.append(sum(lost))
    assert set(missing) == {0, 1, 2, 3}, "of the three careless ones, independently"
    assert all(record.sites == 5 for _, record in run.scores), "scores for the records are never lost"


def three_to_ask() -> tuple[Simulator, Heard, float]:
    """00 has sent its update and 01 and 02 are asked for their opinions, which take a second and two for each batch."""
    stays: dict[str, Any] = {"up": 1e9, "down": 1e9}
    simulator = begun(
        ap.async_dvw(adaptive=False, batch=16, epochs=1, quorum=0.5),
        small_islands(3, each=60),
        validation=0.3,
        fleet=Fleet(
            Group("first", 1, **stays),
            Group("quick", 1, train_seconds=1e3, evaluate_seconds=1.0, **stays),
            Group("slow", 1, train_seconds=1e3, evaluate_seconds=2.0, **stays),
        ),
        ending=ap.Ending(commits=1),
    )
    heard = Heard(simulator)
    while not heard.questions:
        simulator.run(events=1)
    ((began, question),) = heard.questions.values()
    assert (question.sites, began) == (("01", "02"), simulator.clock.now)
    assert {len(simulator.sites[name].learner.validation) for name in question.sites} == {20}, "two batches of 16"
    return simulator, heard, began


BOTH, FIRST, SECOND, NONE = (True, True), (True, False), (False, True), (False, False)


@pytest.mark.parametrize(
    ("leave", "after", "came"),
    [
        ({}, 4.0, BOTH),
        ({"01": 1.0}, 4.0, SECOND),  # the other is waited for, as long as it takes
        ({"01": 3.0}, 4.0, BOTH),  # its opinion had come
        ({"02": 1.0}, 2.0, FIRST),  # it was the slowest: nobody waits for it any more
        ({"02": 3.0}, 3.0, FIRST),  # and the other had come
        ({"01": 1.0, "02": 1.5}, 1.5, NONE),
        ({"02": 1.0, "01": 1.5}, 1.5, NONE),
        ({"01": 3.0, "02": 3.5}, 3.5, FIRST),
        ({"00": 1.0}, 4.0, BOTH),  # its update stands
    ],
    ids=str,
)
def test_an_opinion_of_a_site_that_leaves_is_missing_and_the_others_are_waited_for(
    leave: Any, after: Any, came: Any
) -> None:
    simulator, heard, began = three_to_ask()
    for name, when in leave.items():
        simulator.clock.at(began + when, Goes(name))
    while not heard.answers:
        simulator.run(events=1)
    ((time, event),) = heard.answers
    assert time == pytest.approx(began + after, rel=1e-12)
    assert tuple(opinion is not None for opinion in event.results) == came
    assert event.traffic == Traffic(2 * BYTES, 0, 2), "both were shown the model"
    assert event.task not in simulator.evaluations.out
    commits = [(s.time, s.record) for s in simulator.records if isinstance(s.record, Committed)]
    if came == NONE:  # one opinion of three
        assert not commits
        assert Stamped(time, Refused(0, "00", "too little evidence to weigh it")) in simulator.records
    else:
        ((committed, record),) = commits
        assert (committed, record.learners) == (time, ("00",))
        counted = [opinion for opinion in (heard.own, *event.results) if opinion is not None]
        right = sum(opinion.confusion.trace() for opinion in counted)
        assert record.weights[0][0] == pytest.approx(right / sum(opinion.count for opinion in counted))
    simulator.run(events=5)  # what was planned for the opinions that were given up is no event any more
    assert len([answer for answer in heard.answers if answer[1].task == event.task]) == 1


def test_who_is_back_before_its_opinion_was_due_does_not_give_it_any_more() -> None:
    simulator, heard, began = three_to_ask()
    simulator.clock.at(began + 1.0, Goes("01"))
    simulator.clock.at(began + 1.5, Returns("01"))
    while not heard.answers:
        simulator.run(events=1)
    ((time, event),) = heard.answers
    assert time == pytest.approx(began + 4.0)
    assert [opinion is None for opinion in event.results] == [True, False]


@pytest.mark.parametrize("algorithm", [ap.fedavg(batch=16), ap.async_fedavg(batch=16), ap.radfed(0.5, 3, batch=16)])
def test_learners_that_go_away_come_back_and_are_given_work_again(algorithm: Any) -> None:
    run = ap.simulate(
        algorithm,
        small_islands(4),
        fleet=Fleet(Group("all", 4, train_seconds=0.1, up=2.0, down=1.0)),
        ending=ap.Ending(rounds=30),
    )
    assert run.reason.endswith("local rounds made")
    story: dict[str, list[tuple[float, bool]]] = {}
    for time, record in run.of(Membership):
        story.setdefault(record.learner, []).append((time, record.there))
    assert sorted(story) == ["00", "01", "02", "03"]
    assert any(len(seen) > 2 for seen in story.values()), "somebody should go and come back"
    for name, seen in story.items():
        assert [there for _, there in seen] == [place % 2 == 0 for place in range(len(seen))]
        away = [
            (gone, seen[place + 1][0] if place + 1 < len(seen) else math.inf)
            for place, (gone, there) in enumerate(seen)
            if not there
        ]
        given = [time for time, record in run.of(Handed) if record.learner == name]
        assert not any(gone < time < back for time in given for gone, back in away), "work for somebody who is away"
        if len(seen) > 2:
            assert any(time >= seen[2][0] for time in given), "no work after the return"
    left = [record for _, record in run.refusals if record.reason == "left"]
    assert left, "somebody should leave in the middle of a task"
    assert {record.reason for _, record in run.refusals} == {"left"}


def test_a_deadline_closes_a_round_in_time() -> None:
    data = islands(4, sizes=(64, 64, 64, 64))
    run = ap.simulate(ap.fedavg(batch=16, deadline=0.25), data, fleet=Fleet(fast=2, slow=2), ending=ap.Ending(rounds=3))
    # fast ones need 40 ms, slow ones 400
    assert times(run) == [0.25, 0.5, 0.75]
    assert all(record.learners == ("00", "02") for _, record in run.commits)
    assert [(record.learner, record.reason) for _, record in run.refusals] == [
        ("01", "cancelled"),
        ("03", "cancelled"),
    ] * 3


def test_a_deadline_that_nobody_needs_changes_nothing() -> None:
    data = islands(4, sizes=(64, 64, 64, 64))
    settings: dict[str, Any] = {"fleet": Fleet(fast=2, slow=2), "ending": ap.Ending(rounds=3)}
    with_deadline = ap.simulate(ap.fedavg(batch=16, deadline=1.0), data, **settings)
    without = ap.simulate(ap.fedavg(batch=16), data, **settings)
    assert times(with_deadline) == times(without) == pytest.approx([0.4, 0.8, 1.2])
    assert with_deadline.fingerprint() == without.fingerprint()


def test_a_buffer_is_committed_when_it_has_waited_long_enough() -> None:
    data = islands(4, sizes=(64, 64, 64, 64))
    run = ap.simulate(
        ap.tvw(buffer=3, max_wait=0.1, batch=16), data, fleet=Fleet(fast=2, slow=2), ending=ap.Ending(commits=2)
    )
    # two fast ones come after 40 ms and wait 100 ms for a third, which needs 400
    assert times(run) == pytest.approx([0.14, 0.28])
    assert [record.learners for _, record in run.commits] == [("00", "02"), ("00", "02")]


# ------------------------------------------------------------------------------------------------- building lazily


class Counted:
    """An executor that counts its calls and their jobs."""

    def __init__(self, inner: Executor, *, ahead: int = 0) -> None:
        self.inner, self.name, self.reason, self.ahead = inner, inner.name, inner.reason, ahead
        self.running, self.score, self.close, self.divide = inner.running, inner.score, inner.close, inner.divide
        self.drop = inner.drop
        self.calls: list[int] = []

    def submit(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        self.calls.append(len(jobs))
        self.inner.submit(jobs, epochs)

    def wait(self, job: Job | None = None) -> None:
        self.inner.wait(job)


@pytest.mark.slow
def test_tasks_that_are_out_are_built_together() -> None:
    simulator = begun(
        ap.async_fedavg(batch=16, epochs=1),
        small_islands(10),
        fleet=Fleet(fast=5, slow=5),
        ending=ap.Ending(rounds=20),
    )
    counted = Counted(simulator.executor)
    simulator.flights.executor = counted
    simulator.run()
    run = finished(simulator)
    tasks = len(run.of(Handed))
    assert tasks >= 200
    assert len(counted.calls) < tasks / 4
    assert counted.calls[0] == 10
    # what is built is what came back, and at most what is still out
    assert len(run.cycles) <= sum(counted.calls) <= tasks


def test_an_executor_that_gains_by_it_gets_tasks_as_they_are_handed_out() -> None:
    runs = []
    for ahead in (0, 100):
        simulator = begun(
            ap.async_fedavg(batch=16, epochs=1),
            small_islands(10),
            fleet=Fleet(fast=5, slow=5),
            ending=ap.Ending(rounds=5),
            execution="plain",
        )
        simulator.flights.executor = counted = Counted(simulator.executor, ahead=ahead)
        simulator.run()
        runs.append(finished(simulator))
    assert torch.equal(runs[0].model, runs[1].model)
    assert runs[0].records == runs[1].records
    assert counted.calls[0] == 10
    assert set(counted.calls[1:]) == {1}, "a task for each answer"
    assert sum(counted.calls) == len(runs[1].of(Handed))


@pytest.mark.slow
def test_adaptive_tasks_go_ahead_epoch_by_epoch_together() -> None:
    simulator = begun(
        ap.async_dvw(batch=8, at_most=10, tombstones=3),
        small_islands(10),
        validation=0.3,
        fleet=Fleet(fast=5, slow=5),
        ending=ap.Ending(rounds=6),
    )
    counted = Counted(simulator.executor)
    simulator.flights.executor = counted
    simulator.run()
    epochs = sum(record.epochs for _, record in finished(simulator).cycles)
    assert epochs > 100
    assert len(counted.calls) < epochs / 2


@pytest.mark.slow
@pytest.mark.slow
def test_building_together_or_alone_is_the_same() -> None:
    """Inputs of a task are fixed when it is handed out; when it is computed does not matter."""
    settings: dict[str, Any] = {
        "fleet": Fleet(fast=3, slow=3),
        "ending": ap.Ending(rounds=5),
        "model": small_mlp(),
        "execution": "plain",
    }
    together = ap.simulate(ap.async_fedavg(batch=16, epochs=1), small_islands(6), **settings)
    simulator = begun(ap.async_fedavg(batch=16, epochs=1), small_islands(6), **settings)
    start = simulator.flights._start
    simulator.flights._start = lambda flights: start(flights[:1])  # type: ignore[method-assign]
    simulator.run()
    alone = finished(simulator)
    assert alone.fingerprint() == together.fingerprint()
    assert alone.records == together.records


def test_the_same_learners_are_lost_and_away_whatever_the_method() -> None:
    """A draw is a function of its key: two methods with the same fleet and seed are compared under the same luck."""
    fleet = Fleet(Group("all", 4, train_seconds=0.1, up=2.0, down=1.0))
    seen = []
    for algorithm in (ap.fedavg(batch=16), ap.fedprox(batch=16, rate=0.01), ap.async_fedavg(batch=8)):
        run = ap.simulate(algorithm, small_islands(4), fleet=fleet, ending=ap.Ending(seconds=10))
        seen.append([(time, record) for time, record in run.of(Membership)])
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) > 6
    other = ap.simulate(ap.fedavg(batch=16), small_islands(4), fleet=fleet, ending=ap.Ending(seconds=10), seed=1)
    assert [(time, record) for time, record in other.of(Membership)] != seen[0]


def test_a_fleet_is_told_apart_by_group_names() -> None:
    data = small_islands(4)
    algorithm = ap.async_dvw(batch=8, loss={"gpu": 0, "cpu": 1}, tombstones={"gpu": 2, "cpu": 0}, at_most=5)
    fleet = Fleet(Group("gpu", 2), Group("cpu", 2))
    assert ap.simulate(algorithm, data, validation=0.3, fleet=fleet, ending=ap.Ending(rounds=1)).commits
    with pytest.raises(ValueError, match=r"no thresholds for learners of group 'fast'; groups given: cpu, gpu"):
        ap.simulate(algorithm, data, validation=0.3, fleet=Fleet(fast=4))


def test_speeds_do_not_change_what_a_synchronous_run_learns() -> None:
    data = small_islands(4)
    runs = [
        ap.simulate(ap.fedavg(batch=16), data, fleet=fleet, ending=ap.Ending(rounds=3))
        for fleet in (Fleet(fast=4), Fleet(fast=2, slow=2), Fleet(Group("a", 4, bandwidth=10.0, latency=3.0)))
    ]
    assert len({run.fingerprint() for run in runs}) == 1
    assert len({run.seconds for run in runs}) == 3
    assert torch.equal(runs[0].model, runs[1].model)

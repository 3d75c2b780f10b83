"""The fleet and the virtual clock: who is how fast, and what that makes of a run, by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import torch

import archipel as ap
from archipel.core.randomness import generator
from archipel.core.records import Committed, Handed, Membership, Record, Refused, Stamped
from archipel.core.types import Command, Evaluate, Evaluated, Event, Scored, Traffic, Trained
from archipel.learner.learner import Job
from archipel.models import small_mlp
from archipel.simulation.clock import Goes, Returns
from archipel.simulation.executors.interface import Executor
from archipel.simulation.executors.plain import Plain
from archipel.simulation.fleet import Fleet, Group
from archipel.simulation.simulate import finished
from archipel.simulation.simulator import Simulator
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
def test_groups_alternate_by_descending_size(fleet, sizes, groups):
    names = ["00", "01", "02", "03"]
    assigned = fleet.assign(names, sizes)
    assert " ".join(assigned[name].name for name in names) == groups


def test_the_short_form_is_metis_gpus_and_cpus():
    fast, slow = Fleet(fast=5, slow=5).groups
    assert (fast.count, fast.train_seconds, fast.evaluate_seconds) == (5, 0.01, 0.002)
    assert (slow.count, slow.train_seconds, slow.evaluate_seconds) == (5, 0.1, 0.02)
    assert eval(repr(Fleet(fast=5, slow=5))) == Fleet(fast=5, slow=5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fleet(), r"nobody is in it; give Fleet\(fast=5, slow=5\)"),
        (lambda: Fleet(fast=0, slow=0), "nobody is in it"),
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
            lambda: Fleet(fast=2, slow=1).assign(["00"], [5]),
            r"it has 3 learners \(2 fast, 1 slow\), the data have 1 islands; make them equal",
        ),
    ],
)
def test_a_wrong_fleet_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ------------------------------------------------------------------------------------------------ times by hand


def times(run: ap.Run) -> list[float]:
    return [time for time, _ in run.commits]


def test_a_task_lasts_as_long_as_its_way_and_its_steps():
    group = Group("all", 2, train_seconds=0.1, bandwidth=1000, latency=0.25)
    run = ap.simulate(
        ap.fedavg(epochs=3, batch=16), small_islands(2, each=40), fleet=Fleet(group), ending=ap.Ending(rounds=2)
    )
    # 40 examples of 16 are 3 steps; the model goes down and comes back
    once = 2 * (0.25 + BYTES / 1000) + 3 * 3 * 0.1
    assert times(run) == pytest.approx([once, 2 * once], rel=1e-12)
    assert run.seconds == times(run)[-1]


def test_steps_instead_of_epochs_last_so_many_steps():
    run = ap.simulate(ap.fedavg(steps=7, batch=16), small_islands(2, each=40), ending=ap.Ending(rounds=1))
    assert times(run) == pytest.approx([7 * 0.01])


@pytest.mark.slow
def test_a_task_may_take_another_time_than_the_one_before():
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


def test_a_synchronous_round_lasts_as_long_as_its_slowest_learner():
    data = islands(4, sizes=(100, 90, 50, 20))
    run = ap.simulate(ap.fedavg(batch=10), data, fleet=Fleet(fast=2, slow=2), ending=ap.Ending(rounds=3))
    # fast: 10 and 5 steps of 10 ms; slow: 9 and 2 of 100 ms
    assert times(run) == pytest.approx([0.9, 1.8, 2.7])
    back = {record.learner: time for time, record in run.cycles if time <= 0.9}
    assert back == pytest.approx({"00": 0.1, "01": 0.9, "02": 0.05, "03": 0.2})


def test_an_asynchronous_learner_waits_for_nobody():
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
def test_distributed_validation_costs_time_and_bytes(group):
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


def test_a_validation_cycle_looks_at_its_validation_part_after_every_epoch():
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


def test_importance_costs_one_more_pass():
    data = small_islands(2, each=40)
    with_scores, without = (
        ap.simulate(algorithm, data, ending=ap.Ending(rounds=1))
        for algorithm in (ap.radfed_i(1.0, 1, batch=16), ap.radfed(1.0, 1, batch=16))
    )
    assert times(without) == pytest.approx([3 * 0.01])
    assert times(with_scores) == pytest.approx([2 * 3 * 0.01])


def test_a_task_called_back_reports_the_last_epoch_that_has_ended():
    """Though the job had been carried on further, together with the others."""
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
    by_hand = Job.begin(
        flight.job.learner, simulator.context.layout, simulator.controller.models.read("v0"), flight.train.plan
    )
    Plain(simulator.context).submit([by_hand], 1)
    simulator.flights.finish(flight.train.task)
    arrives = simulator.clock.now + 0.002 * math.ceil(len(by_hand.learner.validation) / 8)  # its own score, no more
    while flight.train.task in simulator.flights.out:
        simulator.run(events=1)
    (time, record) = next(
        (s.time, s.record) for s in simulator.records if getattr(s.record, "losses", None) and s.record.learner == "01"
    )
    assert time == pytest.approx(arrives)
    assert (record.epochs, record.steps) == (1, by_hand.steps)
    assert record.losses == pytest.approx(by_hand.losses, abs=0)
    assert torch.equal(simulator.controller.models.read(f"t{flight.train.task}"), by_hand.vector)


def test_scoring_costs_no_time_and_its_bytes_are_counted_apart():
    data = small_islands(4, each=40)
    settings = {"fleet": Fleet(Group("all", 4, bandwidth=1000, latency=0.5))}
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


def test_scores_by_the_clock():
    run = ap.simulate(
        ap.fedavg(batch=16),
        small_islands(2, each=40),
        fleet=Fleet(Group("all", 2, train_seconds=1.0)),
        ending=ap.Ending(seconds=10),
        evaluation=ap.Evaluation(every=None, seconds=4),
    )
    assert times(run) == [3, 6, 9]
    assert [(time, record.version) for time, record in run.scores] == [(0, 0), (4, 1), (8, 2), (10, 3)]


# ------------------------------------------------------------------------------------------------- what goes wrong


def test_lost_tasks_are_recorded_and_the_run_goes_on():
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


def test_lost_opinions_do_not_hold_up_a_commit():
    run = ap.simulate(
        ap.sync_dvw(batch=16, epochs=1),
        small_islands(4),
        fleet=Fleet(Group("all", 4, drop_rate=0.2)),
        ending=ap.Ending(rounds=10),
    )
    assert run.reason == "10 local rounds made"
    assert len(run.cycles) + sum(record.reason == "lost" for _, record in run.refusals) == 40
    assert len(run.commits) == 10


class Heard:
    """Notes when the answers to questions about updates came, and what they were."""

    def __init__(self, simulator: Simulator) -> None:
        self.answers: list[tuple[float, Evaluated]] = []
        self.questions: dict[int, tuple[float, Evaluate]] = {}
        self.own: Scored | None = None
        """What the last learner that sent an update thinks of it itself."""
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


def test_opinions_are_lost_each_by_a_draw_of_its_own():
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
    stays = {"up": 1e9, "down": 1e9}
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
def test_an_opinion_of_a_site_that_leaves_is_missing_and_the_others_are_waited_for(leave, after, came):
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


def test_who_is_back_before_its_opinion_was_due_does_not_give_it_any_more():
    simulator, heard, began = three_to_ask()
    simulator.clock.at(began + 1.0, Goes("01"))
    simulator.clock.at(began + 1.5, Returns("01"))
    while not heard.answers:
        simulator.run(events=1)
    ((time, event),) = heard.answers
    assert time == pytest.approx(began + 4.0)
    assert [opinion is None for opinion in event.results] == [True, False]


@pytest.mark.parametrize("algorithm", [ap.fedavg(batch=16), ap.async_fedavg(batch=16), ap.radfed(0.5, 3, batch=16)])
def test_learners_that_go_away_come_back_and_are_given_work_again(algorithm):
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


def test_a_deadline_closes_a_round_in_time():
    data = islands(4, sizes=(64, 64, 64, 64))
    run = ap.simulate(ap.fedavg(batch=16, deadline=0.25), data, fleet=Fleet(fast=2, slow=2), ending=ap.Ending(rounds=3))
    # fast ones need 40 ms, slow ones 400
    assert times(run) == [0.25, 0.5, 0.75]
    assert all(record.learners == ("00", "02") for _, record in run.commits)
    assert [(record.learner, record.reason) for _, record in run.refusals] == [
        ("01", "cancelled"),
        ("03", "cancelled"),
    ] * 3


def test_a_deadline_that_nobody_needs_changes_nothing():
    data = islands(4, sizes=(64, 64, 64, 64))
    settings = {"fleet": Fleet(fast=2, slow=2), "ending": ap.Ending(rounds=3)}
    with_deadline = ap.simulate(ap.fedavg(batch=16, deadline=1.0), data, **settings)
    without = ap.simulate(ap.fedavg(batch=16), data, **settings)
    assert times(with_deadline) == times(without) == pytest.approx([0.4, 0.8, 1.2])
    assert with_deadline.fingerprint() == without.fingerprint()


def test_a_buffer_is_committed_when_it_has_waited_long_enough():
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

    def __init__(self, inner: Executor) -> None:
        self.inner, self.name = inner, inner.name
        self.running, self.score, self.close = inner.running, inner.score, inner.close
        self.calls: list[int] = []

    def submit(self, jobs: Sequence[Job], epochs: int | None = None) -> None:
        self.calls.append(len(jobs))
        self.inner.submit(jobs, epochs)

    def wait(self, job: Job | None = None) -> None:
        self.inner.wait(job)


def test_tasks_that_are_out_are_built_together():
    simulator = begun(
        ap.async_fedavg(batch=16, epochs=1),
        small_islands(10),
        fleet=Fleet(fast=5, slow=5),
        ending=ap.Ending(rounds=20),
    )
    simulator.flights.executor = counted = Counted(simulator.executor)
    simulator.run()
    run = finished(simulator)
    tasks = len(run.of(Handed))
    assert tasks >= 200
    assert len(counted.calls) < tasks / 4
    assert counted.calls[0] == 10
    # what is built is what came back, and at most what is still out
    assert len(run.cycles) <= sum(counted.calls) <= tasks


@pytest.mark.slow
def test_adaptive_tasks_go_ahead_epoch_by_epoch_together():
    simulator = begun(
        ap.async_dvw(batch=8, at_most=10, tombstones=3),
        small_islands(10),
        validation=0.3,
        fleet=Fleet(fast=5, slow=5),
        ending=ap.Ending(rounds=6),
    )
    simulator.flights.executor = counted = Counted(simulator.executor)
    simulator.run()
    epochs = sum(record.epochs for _, record in finished(simulator).cycles)
    assert epochs > 100
    assert len(counted.calls) < epochs / 2


@pytest.mark.slow
def test_building_together_or_alone_is_the_same():
    """Inputs of a task are fixed when it is handed out; when it is computed does not matter."""
    settings = {
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


def test_the_same_learners_are_lost_and_away_whatever_the_method():
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


def test_a_fleet_is_told_apart_by_group_names():
    data = small_islands(4)
    algorithm = ap.async_dvw(batch=8, loss={"gpu": 0, "cpu": 1}, tombstones={"gpu": 2, "cpu": 0}, at_most=5)
    fleet = Fleet(Group("gpu", 2), Group("cpu", 2))
    assert ap.simulate(algorithm, data, validation=0.3, fleet=fleet, ending=ap.Ending(rounds=1)).commits
    with pytest.raises(ValueError, match=r"no thresholds for learners of group 'fast'; groups given: cpu, gpu"):
        ap.simulate(algorithm, data, validation=0.3, fleet=Fleet(fast=4))


def test_speeds_do_not_change_what_a_synchronous_run_learns():
    data = small_islands(4)
    runs = [
        ap.simulate(ap.fedavg(batch=16), data, fleet=fleet, ending=ap.Ending(rounds=3))
        for fleet in (Fleet(fast=4), Fleet(fast=2, slow=2), Fleet(Group("a", 4, bandwidth=10.0, latency=3.0)))
    ]
    assert len({run.fingerprint() for run in runs}) == 1
    assert len({run.seconds for run in runs}) == 3
    assert torch.equal(runs[0].model, runs[1].model)

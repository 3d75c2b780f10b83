"""An interrupted simulator continues from its checkpoint to the same bits."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from archipel.algorithms import async_dvw, ditto, fed2a, fedavg, hdafl, radfed, sync_dvw
from archipel.core.parts import (
    Ending,
    Rounds,
)
from archipel.simulation.checkpoint import Checkpoint
from archipel.simulation.fleet import Fleet, Group
from archipel.simulation.simulate import finished, simulate
from archipel.simulation.simulator import Simulator
from tests.core.crash_cases import (
    ALGORITHMS,
    UNSTACKED,
    Make,
    every,
    fleet,
    islands,
    log_of,
    network,
    resumed,
    settings_of,
    simulator,
)
from tests.core.replay import difference
from tests.ways import NATIVE


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def checkpointed(make: Make, saves: Path, *points: int, **settings: Any) -> Simulator:
    """Run to the end, saving a checkpoint after every given number of events."""
    whole = simulator(make(), **settings)
    whole.begin()
    for point in points:
        whole.run(events=point - whole.handled)
        assert whole.stopped is None, f"the run is over after {whole.handled} events: save it earlier"
        Checkpoint(saves / str(point)).save(whole)
    whole.run()
    return whole


def assert_same(one: Simulator, other: Simulator) -> None:
    a, b = finished(one), finished(other)
    assert difference(list(a.records), list(b.records), "the records") is None
    assert (a.fingerprint(), a.seconds, a.reason) == (b.fingerprint(), b.seconds, b.reason)
    assert difference(one.controller.state, other.controller.state, "the state") is None
    assert (one.handled, one.clock.counter) == (other.handled, other.clock.counter)
    for name, site in one.sites.items():
        mine, theirs = site.learner.private, other.sites[name].learner.private
        assert difference(mine, theirs, f"the private layers of {name}") is None
        assert difference(site.learner.kept, other.sites[name].learner.kept, f"what {name} keeps") is None


@pytest.mark.slow
@every
def test_a_simulation_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    settings = settings_of(name, 0.2)
    log = log_of(name, 0.2)
    points = [len(log.events) // 3, 2 * len(log.events) // 3]
    whole = checkpointed(ALGORITHMS[name], tmp_path, *points, **settings)
    assert difference(log.state, whole.controller.state, "the state") is None, "saving changes nothing"
    for point in points:
        assert_same(whole, resumed(ALGORITHMS[name], tmp_path, point, **settings))


@pytest.mark.slow
@every
@pytest.mark.parametrize("execution", ["stacked", "plain"])
def test_a_simulation_goes_on_to_the_same_bits_executed_otherwise(execution: str, name: str, tmp_path: Path) -> None:
    if execution == "stacked" and name in UNSTACKED:
        execution = "workers"
    settings: dict[str, Any] = {**settings_of(name, 0.0), "execution": execution}
    point = len(log_of(name, 0.0).events) // 2
    whole = checkpointed(ALGORITHMS[name], tmp_path, point, **settings)
    assert_same(whole, resumed(ALGORITHMS[name], tmp_path, point, **settings))


@pytest.mark.slow
@pytest.mark.parametrize("make", [ALGORITHMS["fedavg"], ALGORITHMS["radfed"]], ids=["fedavg", "radfed"])
def test_with_a_shadow_run_beside_it(make: Make, tmp_path: Path) -> None:
    points = (10, 15, 16)
    whole = checkpointed(make, tmp_path, *points, shadow=True)
    assert finished(whole).shadows
    for point in points:
        assert_same(whole, resumed(make, tmp_path, point, shadow=True))


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["stacked", "plain", "workers", NATIVE])
def test_with_adaptive_tasks_in_mid_flight(execution: str, tmp_path: Path) -> None:
    make = partial(async_dvw, batch=8, at_most=5, recall_after=1, momentum=0.5)
    settings: dict[str, Any] = {"execution": execution}
    points = (20, 40, 60)
    whole = checkpointed(make, tmp_path, *points, **settings)
    half_done = 0
    for point in points:
        again = simulator(make(), **settings)
        Checkpoint(tmp_path / str(point)).load(again)
        half_done += sum(flight.job is not None and not flight.job.done for flight in again.flights.out.values())
        assert_same(whole, resumed(make, tmp_path, point, **settings))
    assert half_done, "no task was caught in mid-flight: choose other points"


@pytest.mark.parametrize("make", [partial(hdafl, batch=8), partial(ditto, batch=8)], ids=["hdafl", "ditto"])
def test_with_private_layers_or_models_on_the_learners(make: Make, tmp_path: Path) -> None:
    whole = checkpointed(make, tmp_path, 15)
    again = simulator(make())
    Checkpoint(tmp_path / "15").load(again)
    assert any(site.learner.private or site.learner.kept for site in again.sites.values())
    assert_same(whole, resumed(make, tmp_path, 15))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [partial(fed2a, buffer=3, batch=8), partial(radfed, 0.5, 2, batch=8), partial(sync_dvw, epochs=1, batch=8)],
    ids=["fed2a", "radfed", "sync_dvw"],
)
def test_with_learners_that_come_and_go(make: Make, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"fleet": fleet(0.1, up=0.2)}
    points = (15, 30)
    whole = checkpointed(make, tmp_path, *points, **settings)
    assert whole.availability.absences.total() > 0
    for point in points:
        assert_same(whole, resumed(make, tmp_path, point, **settings))


OUT: dict[str, Callable[[Any, Any], bool]] = {
    "several questions at once": lambda run, asked: len(asked) > 2,
    "one that was lost": lambda run, asked: any(
        one.missing and all(run.controller.state.members[name].active for name in one.sites) for one in asked
    ),
    "one whose site has left": lambda run, asked: any(
        not run.controller.state.members[name].active and due <= run.clock.now < max(one.due)
        for one in asked
        for name, due in zip(one.sites, one.due, strict=True)
    ),
    "and a score": lambda run, asked: len(asked) < len(run.evaluations.out),
}


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["stacked", NATIVE])
@pytest.mark.parametrize(
    "make",
    [
        partial(sync_dvw, epochs=1, batch=8, quorum=0.3),
        partial(async_dvw, adaptive=False, epochs=1, batch=8, quorum=0.3),
    ],
    ids=["sync_dvw", "async_dvw"],
)
def test_with_opinions_that_are_out(make: Make, execution: str, tmp_path: Path) -> None:
    """A checkpoint for each way in which they can be: what was asked comes to the same answers at the same time."""
    slow: dict[str, Any] = {"evaluate_seconds": 0.1, "latency": 0.02, "drop_rate": 0.2, "up": 0.7, "down": 0.1}
    slower: dict[str, Any] = slow | {"evaluate_seconds": 0.15}
    settings: dict[str, Any] = {
        "fleet": Fleet(Group("fast", 3, **slow), Group("slow", 3, **slower)),
        "execution": execution,
    }
    whole = simulator(make(), **settings)
    whole.begin()
    points: dict[str, int] = {}
    while whole.stopped is None:
        asked = [one for task, one in whole.evaluations.out.items() if task >= 0]
        now = [what for what, holds in OUT.items() if asked and what not in points and holds(whole, asked)]
        if now:
            Checkpoint(tmp_path / str(whole.handled)).save(whole)
            points |= dict.fromkeys(now, whole.handled)
        whole.run(events=1)
    at_rounds = isinstance(make().protocol, Rounds)  # there a version is scored when no opinion is out
    assert set(points) == set(OUT) - ({"and a score"} if at_rounds else set()), "choose another fleet"
    for point in set(points.values()):
        again = simulator(make(), **settings)
        Checkpoint(tmp_path / str(point)).load(again)
        assert any(task >= 0 for task in again.evaluations.out)
        assert_same(whole, resumed(make, tmp_path, point, **settings))


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["plain", "stacked"])
def test_with_dropout_and_an_optimiser_that_remembers(tmp_path: Path, execution: str) -> None:
    def drops() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 10))

    make = partial(async_dvw, batch=8, at_most=4, recall_after=1, optimiser="Adam", momentum=0.0, rate=0.01)
    whole = checkpointed(make, tmp_path, 20, 45, model=drops, execution=execution)
    for point in (20, 45):
        assert_same(whole, resumed(make, tmp_path, point, model=drops, execution=execution))


@pytest.mark.slow
def test_a_run_that_is_cut_off_again_and_again(tmp_path: Path) -> None:
    # a slow learner's task that is called back in the middle of an epoch finishes it first
    make = partial(async_dvw, batch=8, at_most=8, recall_after=1, evaluators=1, tombstones=8)
    settings: dict[str, Any] = {"ending": Ending(commits=10)}
    whole = simulator(make(), **settings)
    whole.begin()
    whole.run()
    saved = Checkpoint(tmp_path)
    piece = simulator(make(), **settings)
    piece.begin()
    called_back = 0
    while piece.stopped is None:
        saved.save(piece)
        piece = simulator(make(), **settings)
        saved.load(piece)
        called_back += sum(flight.finishing and not flight.arriving for flight in piece.flights.out.values())
        piece.run(events=1)
    assert called_back, "no task was called back in the middle of an epoch: choose other settings"
    assert_same(whole, piece)


def test_simulate_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"model": network, "fleet": fleet(0.2), "ending": Ending(rounds=3)}
    whole = simulate(fedavg(batch=8), islands(), **settings)

    class PulledThePlug(Exception):
        pass

    runs = iter(range(3))
    run = Simulator.run

    def pulled(self: Simulator, events: int | None = None) -> None:
        if next(runs, None) is None:
            raise PulledThePlug
        run(self, events)

    folder = tmp_path / "not there yet"
    with monkeypatch.context() as patched:
        patched.setattr(Simulator, "run", pulled)
        with pytest.raises(PulledThePlug):
            simulate(fedavg(batch=8), islands(), checkpoint=folder, checkpoint_every=5, **settings)
    again = simulate(fedavg(batch=8), islands(), checkpoint=folder, checkpoint_every=5, **settings)
    assert difference(list(whole.records), list(again.records), "the records") is None
    assert whole.fingerprint() == again.fingerprint()
    at_once = simulate(fedavg(batch=8), islands(), checkpoint=folder, **settings)
    assert at_once.fingerprint() == whole.fingerprint(), "a run that is over stays over"

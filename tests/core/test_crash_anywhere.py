"""Crash anywhere: whatever event comes next, a controller made from what was saved does what the old one would have.

`replay.py` holds the checkers. They are tried on parts that break the laws as well: a checker that finds nothing there
would prove nothing here.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from archipel import algorithms
from archipel.algorithms import async_dvw, async_fedavg, fed2a, fedavg, hdafl, radfed, sync_dvw
from archipel.core.algorithm import Algorithm
from archipel.core.parts import (
    Adam,
    Community,
    Ending,
    Equally,
    Evaluation,
    NormClipped,
    PrivateLayers,
    Relay,
    Rounds,
    Stream,
    Weighting,
)
from archipel.core.state import Update, View
from archipel.core.types import Cancel, Failed, Finish, Left, Progress, Scored
from archipel.data import Islands, digits, from_arrays
from archipel.models import mlp
from archipel.simulation.checkpoint import Checkpoint
from archipel.simulation.fleet import Fleet, Group
from archipel.simulation.simulate import finished, prepare, simulate
from archipel.simulation.simulator import Simulator
from archipel.storage import dataclass_codec as codec
from tests.core.replay import Log, crash, crash_at_every_event, difference, logged, other_arrivals
from tests.waiting import until
from tests.ways import NATIVE

Make = Callable[[], Algorithm]

SETTINGS: dict[str, dict[str, object]] = {
    "async_dvw": {"at_most": 4, "recall_after": 1},
    "async_fedavg": {"epochs": 1},
    "divide_and_conquer": {"prepass": 2, "epochs": 2, "tuning_epochs": 1, "rate": 0.1},
    "fed2a": {"buffer": 3, "max_wait": 0.2, "period": 2, "last": 1},
    "fedma": {"epochs": 1, "gamma": 20.0},
    "hdafl": {"by_gradient_norm": True},
    "plu": {"buffer": 3, "period": 2, "last": 1},
    "rce": {"buffer": 3},
    "sync_dvw": {"epochs": 1, "evaluators": 3},
    "tvw": {"buffer": 3},
} | {name: {"fraction": 0.5, "hops": 2} for name in algorithms.__all__ if name.startswith("radfed")}

ALGORITHMS: dict[str, Make] = {
    name: partial(getattr(algorithms, name), batch=8, **SETTINGS.get(name, {}))
    for name in algorithms.__all__
    if name != "centralised"  # one learner with everybody's data, and the rounds of fedavg
} | {
    "a deadline": partial(fedavg, batch=8, deadline=0.1),
    "a relay with opinions, private heads and Adam": lambda: replace(
        sync_dvw(batch=8, epochs=1),
        name="mixture",
        protocol=Relay(0.5, 2),
        planners=(PrivateLayers("head"),),
        server=Adam(),
    ),
    "a clipped community": lambda: replace(async_fedavg(batch=8, epochs=1), merge=NormClipped(Community(), 1.0)),
    "a community that forgets": lambda: replace(async_fedavg(batch=8, epochs=1), merge=Community(forget=True)),
}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec.os, "fsync", lambda _: None)


@cache
def islands() -> Islands:
    source = digits()
    few = torch.from_numpy(np.random.default_rng(0).permutation(len(source.x))[:120])
    return from_arrays(source.x[few], source.y[few], "few digits").split(6, sizes="skewed", stimuli=2)


def network() -> nn.Module:
    return mlp(64, 10, hidden=(8,))


def fleet(lost: float = 0.0, up: float | None = None) -> Fleet:
    """Three fast and three slow learners, which lose tasks and go away if asked to."""
    slow = {"train_seconds": 0.05, "evaluate_seconds": 0.01, "latency": 0.01}
    return Fleet(
        Group("fast", 3, drop_rate=lost, up=up, down=0.1), Group("slow", 3, drop_rate=lost, up=up, down=0.1, **slow)
    )


def simulator(algorithm: Algorithm, lost: float = 0.0, data: Islands | None = None, **settings: object) -> Simulator:
    usual = {"model": network, "fleet": fleet(lost), "ending": Ending(rounds=4, commits=10), "validation": 0.2}
    return prepare(algorithm, data or islands(), **(usual | settings))


def settings_of(name: str, lost: float) -> dict[str, object]:
    return {"fleet": fleet(lost, up=0.5 if "forgets" in name else None)}


@cache
def log_of(name: str, lost: float) -> Log:
    return logged(simulator(ALGORITHMS[name](), **settings_of(name, lost)))


both = pytest.mark.parametrize("lost", [0.0, 0.2], ids=["nothing lost", "a fifth lost"])
every = pytest.mark.parametrize("name", ALGORITHMS)


# ------------------------------------------------------------------------------------------------- the controller


@pytest.mark.slow
@both
@every
def test_a_controller_goes_on_from_wherever_it_was_cut_off(name: str, lost: float, tmp_path: Path) -> None:
    log = log_of(name, lost)
    assert log.state is not None
    assert log.state.version >= 2
    points = {0, len(log.events) - 1, *np.random.default_rng(1).integers(len(log.events), size=2).tolist()}
    assert crash(ALGORITHMS[name], log, points, tmp_path) is None


@pytest.mark.slow
@both
@every
def test_a_controller_that_is_cut_off_before_every_event(name: str, lost: float, tmp_path: Path) -> None:
    assert crash_at_every_event(ALGORITHMS[name], log_of(name, lost), tmp_path) is None


def test_the_logs_hold_what_may_go_wrong() -> None:
    def events(name: str, lost: float = 0.0) -> set[type]:
        return {type(event) for event, _ in log_of(name, lost).events}

    def commands(name: str) -> set[type]:
        return {type(command) for said in log_of(name, 0.0).commands for command in said}

    assert Failed in events("fedavg", 0.2)
    assert Progress in events("async_dvw")
    assert Left in events("a community that forgets")
    assert Cancel in commands("a deadline")
    assert Finish in commands("async_dvw")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, make in ALGORITHMS.items()
        if not isinstance(make().protocol, Stream) and not make().needs.validation and name != "a deadline"
    ],
)
def test_the_model_does_not_depend_on_who_answered_first(name: str) -> None:
    for seed in range(3):
        assert other_arrivals(ALGORITHMS[name], log_of(name, 0.2), np.random.default_rng(seed)) is None


# -------------------------------------------------------------------------- parts that break the laws must be caught


def test_what_differs_in_one_bit_differs() -> None:
    one = Scored(2, float("nan"), np.array([[1, 1], [0, 0]]))
    assert difference([one], [replace(one, confusion=one.confusion.copy())]) is None
    for other in (
        replace(one, count=3),
        replace(one, loss=0.0),
        replace(one, confusion=None),
        replace(one, confusion=np.array([[1, 0], [1, 0]])),
        replace(one, confusion=np.array([[1, 1], [0, 0]], dtype=np.int32)),
    ):
        assert difference([one], [other]) is not None
    assert difference(torch.tensor([0.0]), torch.tensor([-0.0])) is not None
    assert difference({"a": 1, "b": 2}, {"b": 2, "a": 1}) is not None
    assert difference((1, 2), [1, 2]) is not None


@dataclass(frozen=True)
class ByNumpysDice(Weighting):
    """Draws from numpy's global generator."""

    def weigh(self, view: View, update: Update) -> float:
        return float(np.random.random())


@dataclass(frozen=True)
class ByPythonsDice(Weighting):
    """Draws from Python's global generator."""

    def weigh(self, view: View, update: Update) -> float:
        return random.random()


@dataclass(frozen=True)
class ByTheClock(Weighting):
    """Weighs by the time of day."""

    def weigh(self, view: View, update: Update) -> float:
        return float(time.perf_counter_ns())


@dataclass(frozen=True)
class OnItself(Weighting):
    """Counts on itself how many it has weighed."""

    def weigh(self, view: View, update: Update) -> float:
        object.__setattr__(self, "count", getattr(self, "count", 0) + 1)
        return float(self.count)  # type: ignore[attr-defined]


WEIGHED: list[int] = []


@dataclass(frozen=True)
class InTheModule(Weighting):
    """Counts in a global of its module."""

    def weigh(self, view: View, update: Update) -> float:
        WEIGHED.append(update.task)
        return float(len(WEIGHED))


@dataclass
class Arrivals:
    came: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ByArrival(Weighting):
    """First come, first served: its memory is where it should be, but its sums depend on who came first."""

    def observe(self, view: View, update: Update) -> None:
        came = view.memory(Arrivals).came
        came[update.task] = len(came) + 1

    def weigh(self, view: View, update: Update) -> float:
        return 1.0 / view.memory(Arrivals).came[update.task]


@dataclass
class Counted:
    count: int = 0


@dataclass(frozen=True)
class InTheMemory(Weighting):
    """Counts where a part should: the counter-example to the counter-examples."""

    def weigh(self, view: View, update: Update) -> float:
        memory = view.memory(Counted)
        memory.count += 1
        return float(memory.count)


def with_weighting(weighting: Callable[[], Weighting]) -> tuple[Make, Log]:
    def make() -> Algorithm:
        return replace(fedavg(0.5, batch=8), weighting=weighting())

    return make, logged(simulator(make()))


@pytest.mark.slow
@pytest.mark.parametrize("weighting", [ByNumpysDice, ByPythonsDice, ByTheClock, OnItself, InTheModule])
def test_a_part_that_breaks_the_law_is_caught(weighting: Callable[[], Weighting], tmp_path: Path) -> None:
    make, log = with_weighting(weighting)
    middle = len(log.events) // 2
    found = crash(make, log, {middle}, tmp_path)
    assert found is not None
    assert ".weights" in found, "it says what differs"
    assert crash_at_every_event(make, log, tmp_path) is not None


def test_memory_on_itself_shows_only_after_a_crash(tmp_path: Path) -> None:
    make, log = with_weighting(OnItself)
    assert crash(make, log, (), tmp_path) is None
    assert "after a crash" in str(crash(make, log, {len(log.events) // 2}, tmp_path))


def test_sums_by_order_of_arrival_are_caught() -> None:
    make, log = with_weighting(ByArrival)
    found = other_arrivals(make, log, np.random.default_rng(0))
    assert found is not None
    assert ".weights" in found


def test_a_part_that_keeps_the_law_is_not_suspected(tmp_path: Path) -> None:
    make, log = with_weighting(InTheMemory)
    assert crash(make, log, {len(log.events) // 2}, tmp_path) is None
    assert crash_at_every_event(make, log, tmp_path) is None


@dataclass
class Hoard:
    seen: object = None


@dataclass(frozen=True)
class Hoarder(Weighting):
    """Remembers a set, which has no order and cannot be saved."""

    def weigh(self, view: View, update: Update) -> float:
        view.memory(Hoard).seen = {update.task}
        return 1.0


def test_a_part_that_remembers_what_cannot_be_saved_is_told_so_when_it_is_saved(tmp_path: Path) -> None:
    make, log = with_weighting(Hoarder)
    with pytest.raises(TypeError, match=r"memory\['weighting'\].seen holds a builtins.set, which cannot be saved"):
        crash(make, log, {len(log.events) - 1}, tmp_path)


# ------------------------------------------------------------------------------------- the simulator's own checkpoint


def resumed(make: Make, saves: Path, at: int, **settings: object) -> Simulator:
    """A new simulator that goes on from a checkpoint to the end."""
    again = simulator(make(), **settings)
    Checkpoint(saves / str(at)).load(again)
    assert again.handled == at
    again.run()
    return again


def checkpointed(make: Make, saves: Path, *points: int, **settings: object) -> Simulator:
    """A run that saves itself on its way, after so many events, and goes on to its end."""
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
    settings = {**settings_of(name, 0.0), "execution": execution}
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
    settings = {"execution": execution}
    points = (20, 40, 60)
    whole = checkpointed(make, tmp_path, *points, **settings)
    half_done = 0
    for point in points:
        again = simulator(make(), **settings)
        Checkpoint(tmp_path / str(point)).load(again)
        half_done += sum(flight.job is not None and not flight.job.done for flight in again.flights.out.values())
        assert_same(whole, resumed(make, tmp_path, point, **settings))
    assert half_done, "no task was caught in mid-flight: choose other points"


def test_with_private_layers_on_the_learners(tmp_path: Path) -> None:
    make = partial(hdafl, batch=8)
    whole = checkpointed(make, tmp_path, 15)
    again = simulator(make())
    Checkpoint(tmp_path / "15").load(again)
    assert any(site.learner.private for site in again.sites.values())
    assert_same(whole, resumed(make, tmp_path, 15))


@pytest.mark.parametrize(
    "make",
    [partial(fed2a, buffer=3, batch=8), partial(radfed, 0.5, 2, batch=8), partial(sync_dvw, epochs=1, batch=8)],
    ids=["fed2a", "radfed", "sync_dvw"],
)
def test_with_learners_that_come_and_go(make: Make, tmp_path: Path) -> None:
    settings = {"fleet": fleet(0.1, up=0.2)}
    points = (15, 30)
    whole = checkpointed(make, tmp_path, *points, **settings)
    assert any(site.absences for site in whole.sites.values())
    for point in points:
        assert_same(whole, resumed(make, tmp_path, point, **settings))


OUT = {
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
    slow = {"evaluate_seconds": 0.1, "latency": 0.02, "drop_rate": 0.2, "up": 0.7, "down": 0.1}
    slower = slow | {"evaluate_seconds": 0.15}
    settings = {"fleet": Fleet(Group("fast", 3, **slow), Group("slow", 3, **slower)), "execution": execution}
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
def test_with_dropout_and_an_optimiser_that_remembers(tmp_path: Path) -> None:
    def drops() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 10))

    make = partial(async_dvw, batch=8, at_most=4, recall_after=1, optimiser="Adam", momentum=0.0, rate=0.01)
    whole = checkpointed(make, tmp_path, 20, 45, model=drops)
    assert whole.executor.name == "plain"
    for point in (20, 45):
        assert_same(whole, resumed(make, tmp_path, point, model=drops))


@pytest.mark.slow
def test_a_run_that_is_cut_off_again_and_again(tmp_path: Path) -> None:
    # a slow learner's task that is one epoch ahead of the clock and then called back reports the epoch before
    make = partial(async_dvw, batch=8, at_most=8, recall_after=1, evaluators=1, tombstones=8)
    settings = {"ending": Ending(commits=10)}
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
        flights = [flight for flight in piece.flights.out.values() if flight.arriving and flight.job is not None]
        called_back += sum(flight.job.epochs > flight.ended for flight in flights)
        piece.run(events=1)
    assert called_back, "no task was called back while it was ahead: choose other settings"
    assert_same(whole, piece)


def test_simulate_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"model": network, "fleet": fleet(0.2), "ending": Ending(rounds=3)}
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


# ------------------------------------------------------------------------------------------ checkpoints that don't fit


def saved_run(folder: Path, **settings: object) -> Checkpoint:
    run = simulator(fedavg(batch=8), **settings)
    run.begin()
    run.run(events=15)
    checkpoint = Checkpoint(folder)
    checkpoint.save(run)
    return checkpoint


def other_data() -> Islands:
    data = islands()
    return replace(data, x=data.x + 1e-3)


def squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - nn.functional.one_hot(targets, 10)).pow(2).mean()


def smooth() -> nn.Module:
    """The network, with other activations."""
    layers = OrderedDict(mlp(64, 10, hidden=(8,)).named_children())
    return nn.Sequential(layers | {"relu1": nn.Tanh()})


OTHERS: dict[str, tuple[str, Callable[[], Simulator]]] = {
    "the rate": ("algorithm", lambda: simulator(fedavg(batch=8, rate=0.1))),
    "the weighting": ("algorithm", lambda: simulator(replace(fedavg(batch=8), weighting=Equally()))),
    "the ending": ("ending", lambda: simulator(fedavg(batch=8), ending=Ending(rounds=6))),
    "the evaluation": ("evaluation", lambda: simulator(fedavg(batch=8), evaluation=Evaluation(every=2))),
    "the seed": ("seed", lambda: simulator(fedavg(batch=8), seed=1)),
    "the layers": ("layers", lambda: simulator(fedavg(batch=8), model=lambda: mlp(64, 10, hidden=(9,)))),
    "the execution": ("execution", lambda: simulator(fedavg(batch=8), execution="plain")),
    "the fleet": ("data and fleet", lambda: simulator(fedavg(batch=8), lost=0.1)),
    "the data": ("data and fleet", lambda: simulator(fedavg(batch=8), data=other_data())),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_checkpoint_of_other_settings_is_refused_and_says_which(what: str, tmp_path: Path) -> None:
    checkpoint = saved_run(tmp_path)
    field, other = OTHERS[what]
    with pytest.raises(
        ValueError, match=rf"is of another run: its {field} is .*, this one's is .*Resume with the same"
    ):
        checkpoint.load(other())


NOT_IN_THE_ALGORITHM: dict[str, dict[str, object]] = {
    "the loss": {"loss": squares},
    "the activations": {"model": smooth},
    "the test set at home": {"data": lambda: replace(islands(), test=islands().test[:-1])},
    "the stimuli": {"data": lambda: replace(islands(), stimuli=islands().stimuli[:-1])},
    "a shadow run": {"shadow": True},
}


@pytest.mark.parametrize(
    "what",
    NOT_IN_THE_ALGORITHM,
)
def test_a_checkpoint_of_another_run_is_refused(what: str, tmp_path: Path) -> None:
    checkpoint = saved_run(tmp_path, execution="plain")
    settings = dict(NOT_IN_THE_ALGORITHM[what])
    if "data" in settings:
        settings["data"] = settings["data"]()  # type: ignore[operator]
    with pytest.raises(ValueError, match="is of another run"):
        checkpoint.load(simulator(fedavg(batch=8), execution="plain", **settings))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "cut short": lambda whole: whole[: len(whole) // 2],
    "cut by one byte": lambda whole: whole[:-1],
    "something else": lambda whole: b"PK" + whole[2:],
    "zeros behind it": lambda whole: whole + bytes(8),
}
NO_CHECKPOINT = r"checkpoint.safetensors is not a checkpoint of Archipel, or is damaged"


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint_is_refused(what: str, tmp_path: Path) -> None:
    checkpoint = saved_run(tmp_path)
    checkpoint.path.write_bytes(DAMAGE[what](checkpoint.path.read_bytes()))
    with pytest.raises(ValueError, match=NO_CHECKPOINT):
        checkpoint.load(simulator(fedavg(batch=8)))


@pytest.mark.slow
def test_one_wrong_bit_is_damage(tmp_path: Path) -> None:
    checkpoint = saved_run(tmp_path)
    whole = checkpoint.path.read_bytes()
    for place in np.linspace(0, len(whole) - 1, 30).astype(int):
        checkpoint.path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=NO_CHECKPOINT):
            checkpoint.load(simulator(fedavg(batch=8)))


def test_a_safetensors_file_of_something_else_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    safetensors.torch.save_file({"weight": torch.zeros(3)}, checkpoint.path)
    with pytest.raises(ValueError, match="is not a checkpoint of Archipel"):
        checkpoint.load(simulator(fedavg(batch=8)))


def test_a_checkpoint_of_a_newer_version_says_what_it_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "newer.safetensors"

    @dataclass
    class Novelty:
        value: int

    codec.Codec(SimpleNamespace(Novelty=Novelty)).save(path, Novelty(1))
    with pytest.raises(ValueError, match="holds a 'Novelty', which this version of Archipel does not know"):
        codec.Codec().load(path)


def test_a_save_that_was_cut_off_leaves_the_last_one_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = saved_run(tmp_path)
    before = checkpoint.path.read_bytes()
    run = simulator(fedavg(batch=8))
    checkpoint.load(run)
    run.run(events=5)

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(codec.os, "replace", full)
        with pytest.raises(OSError, match="no space"):
            checkpoint.save(run)
    assert checkpoint.path.read_bytes() == before
    checkpoint.load(simulator(fedavg(batch=8)))
    checkpoint.save(run)
    assert checkpoint.path.read_bytes() != before


# ------------------------------------------------------------------------------------------------ another process


def digest() -> str:
    """A hash of all that some runs said and came to."""
    found = hashlib.sha256()
    for name in ("sync_dvw", "async_dvw", "fed2a", "radfed_i", "hdafl"):
        log = log_of(name, 0.2)
        found.update(repr(log.commands).encode())
        for vector in log.vectors.values():
            found.update(vector.numpy().tobytes())
    return found.hexdigest()


@pytest.mark.slow
def test_another_process_that_hashes_otherwise_comes_to_the_same_bits() -> None:
    command = [sys.executable, "-c", "from tests.core.test_crash_anywhere import digest; print(digest())"]
    modules = os.pathsep.join(sys.path)  # this one among them
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "1", "PYTHONPATH": modules}
    other = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digest()


KILLED = """
import sys
import threading
import archipel as ap
from archipel.simulation.checkpoint import Checkpoint

if sys.argv[2:] == ["held"]:
    save, saved = Checkpoint.save, []

    def held(self, simulator):
        save(self, simulator)
        saved.append(simulator)
        if len(saved) == 3:  # to be killed by now
            threading.Event().wait(600)

    Checkpoint.save = held

run = ap.simulate(
    ap.async_dvw(batch=8, at_most=4, recall_after=3),
    ap.data.digits().split(learners=6, classes=3),
    fleet=ap.Fleet(fast=3, slow=3),
    ending=ap.Ending(rounds=12),
    checkpoint=sys.argv[1] if len(sys.argv) > 1 else None,
    checkpoint_every=25,
)
print(run.fingerprint(), len(run.records))
"""


@pytest.mark.slow
def test_a_process_that_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """`kill -9` at a moment nobody chose, then the same command again."""
    command = [sys.executable, "-c", KILLED]
    whole = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    victim = subprocess.Popen([*command, str(tmp_path), "held"], stdout=subprocess.DEVNULL)
    saved = tmp_path / "checkpoint.safetensors"
    until(lambda: saved.exists() or victim.poll() is not None, "a checkpoint")
    victim.kill()
    assert victim.wait() == -signal.SIGKILL, "it was to be killed before it had ended"
    resumed = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=True).stdout
    assert resumed == whole

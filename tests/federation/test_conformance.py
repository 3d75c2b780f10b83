"""The simulator and the federation are the same machine: the same events lead to the same model, to the bit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from archipel.core.records import Probed
from archipel.core.types import Train, Trained
from archipel.federation.controller import orders
from archipel.federation.storage.durable_controller import CODEC, DurableController, IncomingEvent, replay
from archipel.federation.storage.journal import Answer, Journal
from archipel.federation.storage.stored_models import Delivery, as_bytes
from archipel.runs.run import Run
from archipel.simulation.simulate import prepare, simulate
from archipel.simulation.vectors import MemoryModels
from archipel.study.build import build_algorithm, build_data, build_settings
from archipel.study.federate import Hosting, host, one_run
from archipel.study.files import study_of
from tests.federation.in_one_process import Held, hold, study

pytestmark = pytest.mark.slow

SYNCHRONOUS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox", "mu": 0.1},
    "fedavgm": {"name": "fedavgm", "beta": 0.5},
    "scaffold": {"name": "scaffold", "fraction": 0.7},
    "fedntd": {"name": "fedntd", "fraction": 0.7, "epochs": 1},
    "tifl": {"name": "tifl", "fraction": 0.7, "credits": 2},
    "fedadam": {"name": "fedadam"},
    "fednova": {"name": "fednova", "momentum": 0.5},
    "sync_dvw": {"name": "sync_dvw"},
    "divide_and_conquer": {"name": "divide_and_conquer", "prepass": 2},
    "fedma": {"name": "fedma", "epochs": 2},
    "fedbabu": {"name": "fedbabu", "fraction": 1.0, "tuning_epochs": 0},
    "ditto": {"name": "ditto", "weight": 0.5},
    "pfedme": {"name": "pfedme", "fraction": 1.0, "epochs": 1, "inner_steps": 2},
    "apfl": {"name": "apfl", "adaptive": True},
    "per_fedavg": {"name": "per_fedavg", "fraction": 1.0, "epochs": 1, "hessian": "differences"},
    "moon": {"name": "moon", "epochs": 1},
    "fedbabu, fine-tuned": {"name": "fedbabu", "fraction": 1.0, "tuning_epochs": 2},
    "fedrep with an objective": {
        "name": "fedrep",
        "fraction": 1.0,
        "head_epochs": 2,
        "objective": "NotTrueDistillation(0.5)",
    },
    "hdafl": {"name": "hdafl", "fraction": 1.0},
    "plu in rounds": {"name": "fedavg", "more_planners": ["PeriodicLayers(2, 1)"]},
    "qfedavg": {"name": "qfedavg"},
    "oort": {"name": "oort", "fraction": 0.7},
    "power_of_choice": {"name": "power_of_choice", "fraction": 0.7, "candidates": 4},
    "feddyn": {"name": "feddyn", "fraction": 0.7, "epochs": 1},
    "fedcm": {"name": "fedcm", "fraction": 0.7, "epochs": 1},
    "fedlc": {"name": "fedlc", "tau": 0.5},
    "private heads with control variates": {
        "name": "hdafl",
        "fraction": 1.0,
        "more_planners": ["ControlVariates()"],
    },
    "radfed": {"name": "radfed", "hops": 2, "fraction": 0.7},
    "radfed_i": {"name": "radfed_i", "hops": 2, "fraction": 0.7, "first": "measured"},
}
"""Methods whose runs do not depend on who is first, so that a federation does what the simulator does."""

ASYNCHRONOUS: dict[str, dict[str, Any]] = {
    "fedasync": {"name": "fedasync"},
    "fedbuff": {"name": "fedbuff", "buffer": 3},
    "async_fedavg": {"name": "async_fedavg"},
    "async_dvw": {"name": "async_dvw"},
    "fed2a": {"name": "fed2a"},
    "plu": {"name": "plu", "buffer": 2, "period": 2, "last": 1},
}


NETWORK = """
from torch import nn

def normalised():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
"""


def simulated(raw: dict[str, Any]) -> Run:
    one = one_run(study_of(raw))
    islands = build_data(one).islands
    settings: dict[str, Any] = {**build_settings(one, islands), "execution": "plain"}
    return simulate(build_algorithm(one), islands, **settings)


@pytest.mark.parametrize("method", SYNCHRONOUS)
def test_a_federation_comes_to_the_simulators_bits(method: str, tmp_path: Path) -> None:
    raw = study(algorithms=[SYNCHRONOUS[method]], ending={"rounds": 4})
    held = hold(raw, tmp_path)
    expected = simulated(raw)
    assert held.run is not None
    assert torch.equal(held.run.model, expected.model)
    assert [s.metrics for _, s in held.run.scores] == [s.metrics for _, s in expected.scores]
    assert held.run.traffic == expected.traffic
    assert [c.weights for _, c in held.run.commits] == [c.weights for _, c in expected.commits]
    for name, agent in held.agents.items():
        for layer, numbers in expected.private.get(name, {}).items():
            assert torch.equal(agent.memory.private[layer], numbers)
        if name in expected.personal:
            assert agent.last_model is not None
            assert torch.equal(agent.last_model, expected.personal[name])
    check_events(held, tmp_path)


def test_private_normalisation_comes_to_the_simulators_bits(tmp_path: Path) -> None:
    (tmp_path / "network.py").write_text(NETWORK)
    raw = study(folder=str(tmp_path), algorithms=["fedbn"], model="network.py:normalised", ending={"rounds": 3})
    held, expected = hold(raw, tmp_path), simulated(raw)
    assert held.run is not None
    assert torch.equal(held.run.model, expected.model)
    assert held.run.traffic == expected.traffic
    for name, agent in held.agents.items():
        assert set(agent.memory.private) == {"2", "2.buffers"}, "the normalisation"
        assert all(torch.equal(own, expected.private[name][layer]) for layer, own in agent.memory.private.items())


def test_models_and_shifts_that_are_fetched_are_those_that_are_enclosed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = study(algorithms=[SYNCHRONOUS["private heads with control variates"]], ending={"rounds": 3})
    monkeypatch.setattr(orders, "ENCLOSED", 0)
    held, expected = hold(raw, tmp_path), simulated(raw)
    assert held.run is not None
    assert torch.equal(held.run.model, expected.model)
    # a model that is evaluated while a task with it is out may be fetched for both
    assert held.run.traffic["train down bytes"] >= expected.traffic["train down bytes"]


@pytest.mark.parametrize("standardise", ["global", "local"])
def test_features_are_standardised_as_in_the_simulator(standardise: str, tmp_path: Path) -> None:
    raw = study(data={"standardise": standardise})
    held, expected = hold(raw, tmp_path), simulated(raw)
    assert held.run is not None
    assert torch.equal(held.run.model, expected.model)
    assert held.run.score == expected.score


@pytest.mark.parametrize("method", ASYNCHRONOUS)
def test_an_asynchronous_federations_events_on_a_simulators_controller(method: str, tmp_path: Path) -> None:
    check_events(hold(study(algorithms=[ASYNCHRONOUS[method]], ending={"rounds": 4}), tmp_path), tmp_path)


def check_events(held: Held, tmp_path: Path) -> None:
    """Check that a federation's events lead a simulator's controller, and a replay, to the same model."""
    told_again = replay(tmp_path / "state", held.hosting.layout, held.hosting.make)
    journal = Journal(tmp_path / "state" / "journal.sqlite")
    controller = held.hosting.make(MemoryModels(), None)  # type: ignore[arg-type]
    replayed = held.federation.durable.replay
    for line in journal.events():
        event, delivery = CODEC.value(line.event), CODEC.value(line.beside)["delivery"]
        if isinstance(event, Trained):
            controller.models.write(event.model, received(held.hosting, tmp_path, delivery, controller, event))
        controller.handle(event)
    journal.close()
    final = controller.models.read(controller.state.model.name)
    assert torch.equal(final, replayed.models.read(replayed.controller.state.model.name))
    assert torch.equal(final, told_again.models.read(told_again.controller.state.model.name))
    assert controller.state.version == replayed.controller.state.version > 0


def received(hosting: Any, folder: Path, delivery: Delivery, controller: Any, event: Trained) -> Any:
    """An update as a simulator would have put it into its store."""
    layout = hosting.layout
    vector = controller.models.read(controller.state.out[event.task].model.name).clone()
    if delivery.blob:
        numbers = (folder / "state" / "blobs" / delivery.blob).read_bytes()[delivery.start :]
        arrived = torch.frombuffer(bytearray(numbers), dtype=torch.float32)
        place = 0
        for layer in delivery.inside:
            start, stop = layout.layers[layer].start, layout.layers[layer].stop
            vector[start:stop] = arrived[place : place + stop - start]
            place += stop - start
    return vector


def opened(hosting: Hosting, folder: Path) -> DurableController:
    memories = hosting.algorithm.memories()
    return DurableController(folder, hosting.layout, hosting.make, snapshot_every=2, memories=memories)


@pytest.mark.parametrize("method", [*SYNCHRONOUS, *ASYNCHRONOUS])
def test_a_simulators_events_told_to_a_durable_controller(method: str, tmp_path: Path) -> None:
    """Also with partial uploads, private layers and whatever else the methods do with layers."""
    raw = study(algorithms=[{**SYNCHRONOUS, **ASYNCHRONOUS}[method]], ending={"rounds": 6})
    one = one_run(study_of(raw))
    islands = build_data(one).islands
    settings: dict[str, Any] = {**build_settings(one, islands), "execution": "plain"}
    simulator = prepare(build_algorithm(one), islands, **settings)
    hosting = host(study_of(raw))
    layout = hosting.layout
    durable = opened(hosting, tmp_path)

    class Scribe:
        """Gives the durable controller every event, and every now and then a new process."""

        def before(self, simulator: Any, event: Any) -> None:
            nonlocal durable
            entry = IncomingEvent(event)
            if isinstance(event, Trained):
                task = durable.out[event.task].command
                assert isinstance(task, Train)
                vector = simulator.controller.models.read(event.model)
                inside = layout.indices(event.layers)
                pieces = [vector[layout.layers[at].start : layout.layers[at].stop] for at in inside]
                digests = {
                    name: hashlib.sha256(as_bytes(piece)).hexdigest()
                    for name, piece in zip(event.layers, pieces, strict=True)
                }
                blob = durable.blobs.put([as_bytes(piece) for piece in pieces])
                answer = Answer(task.learner, event.task, event.task, "print")
                entry = IncomingEvent(event, answer, Delivery(blob, 0, inside, digests))
            durable.take([entry], [], simulator.clock.now)
            durable.handle()
            if durable.number % 7 == 0:
                durable.close()
                durable = opened(hosting, tmp_path)

        def after(self, simulator: Any, commands: Any) -> list[Any]:
            return []

    simulator.observers = (Scribe(),)  # type: ignore[assignment]
    simulator.begin()
    simulator.run()
    expected = simulator.controller
    assert durable.controller.state.version == expected.state.version > 0
    assert torch.equal(
        durable.replay.models.read(durable.controller.state.model.name), expected.models.read(expected.state.model.name)
    )
    told = sum(not isinstance(stamped.record, Probed) for stamped in simulator.records)  # the simulator's own
    assert len([*durable.records()]) == told
    durable.close()

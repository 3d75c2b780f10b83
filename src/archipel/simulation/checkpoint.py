"""A simulation in mid-run, on disk: whatever a resumed run needs to come to the same bits."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from archipel.core import records, state, types
from archipel.core.checks import require
from archipel.learner.learner import Job
from archipel.simulation import network as wire
from archipel.simulation import simulator as simulation
from archipel.simulation.simulator import Clock, Flight, Simulator
from archipel.storage.codec import Codec

CODEC = Codec(types, records, state, simulation, wire)


class Checkpoint:
    """One file in a folder; saving replaces it whole."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "checkpoint.safetensors"

    def exists(self) -> bool:
        return self.path.exists()

    def save(self, simulator: Simulator) -> None:
        controller = simulator.controller
        simulator.settle()
        _codec(simulator).save(
            self.path,
            {
                "of": _identity(simulator),
                "state": controller.state,
                "models": {name: controller.models.read(name) for name in controller.models.names()},
                "now": simulator.clock.now,
                "counter": simulator.clock.counter,
                "heap": simulator.clock.heap,
                "flights": {task: _flight(flight) for task, flight in simulator.flights.items()},
                "pending": simulator.pending,
                "asked": simulator.asked,
                "held": simulator.wire.held,
                "moved": simulator.wire.moved,
                "sites": {
                    name: {"private": site.learner.private, "away": site.away, "there": site.there}
                    for name, site in simulator.sites.items()
                },
                "records": simulator.records,
                "handled": simulator.handled,
                "stopped": simulator.stopped,
                "observers": [observer.save() for observer in simulator.observers],
            },
        )

    def load(self, simulator: Simulator) -> None:
        """Bring a simulator that was prepared with the same settings to where the saved one was."""
        saved = _codec(simulator).load(self.path)
        mine = _identity(simulator)
        for what, value in saved["of"].items():
            require(
                mine.get(what) == value,
                f"{self.path} is of another run: its {what} is {value}, this one's is {mine.get(what)}. "
                "Resume with the same settings, or give another folder.",
            )
        controller = simulator.controller
        controller.state = saved["state"]
        for name in controller.models.names():
            controller.models.drop(name)
        for name, vector in saved["models"].items():
            controller.models.write(name, vector)
        simulator.clock = Clock(saved["now"], saved["counter"], saved["heap"])
        for name, kept in saved["sites"].items():
            site = simulator.sites[name]
            site.learner.private, site.away, site.there = kept["private"], kept["away"], kept["there"]
        simulator.flights = {
            task: Flight(**{**flight, "job": _job(simulator, flight)}) for task, flight in saved["flights"].items()
        }
        simulator.pending = saved["pending"]
        simulator.asked = saved["asked"]
        simulator.wire.held = saved["held"]
        simulator.wire.moved = saved["moved"]
        simulator.records = saved["records"]
        simulator.handled = saved["handled"]
        simulator.stopped = saved["stopped"]
        for observer, memory in zip(simulator.observers, saved["observers"], strict=True):
            observer.load(memory)


def _codec(simulator: Simulator) -> Codec:
    return CODEC.also(*simulator.controller.algorithm.memories())


def _identity(simulator: Simulator) -> dict[str, Any]:
    """What has to be the same for a run to be resumed."""
    controller, work = simulator.controller, simulator.work
    examples = hashlib.sha256()
    for name in sorted(simulator.sites):
        site = simulator.sites[name]
        examples.update(f"{name} {site.group!r} {site.role}".encode())
        for part in (site.learner.train, site.learner.validation, site.learner.test):
            examples.update(part.numpy().tobytes())
    for tensor in (work.x, work.y, simulator.test, simulator.stimuli):
        examples.update(tensor.cpu().contiguous().numpy().tobytes())
    return {
        "algorithm": repr(controller.algorithm),
        "ending": repr(controller.ending),
        "evaluation": repr(controller.evaluation),
        "seed": controller.state.seed,
        "layers": ", ".join(f"{layer.name}:{layer.size}" for layer in work.layout.layers),
        "network": repr(work.module),
        "execution": simulator.execution.name,
        "loss": getattr(work.loss, "__qualname__", repr(work.loss)),
        "shadow or other observers": [type(observer).__name__ for observer in simulator.observers],
        "data and fleet": examples.hexdigest(),
    }


def _flight(flight: Flight) -> dict[str, Any]:
    job = flight.job
    return {
        "train": flight.train,
        "down": flight.down,
        "watched": flight.watched,
        "ended": flight.ended,
        "before": flight.before,
        "finishing": flight.finishing,
        "arriving": flight.arriving,
        "lost": flight.lost,
        "job": None
        if job is None
        else {
            "vector": job.vector,
            "anchor": job.anchor,
            "epochs": job.epochs,
            "losses": job.losses,
            "memory": job.memory,
            "validation": job.validation,
        },
    }


def _job(simulator: Simulator, flight: dict[str, Any]) -> Job | None:
    if flight["job"] is None:
        return None
    train = flight["train"]
    return Job(learner=simulator.sites[train.learner].learner, plan=train.plan, **flight["job"])

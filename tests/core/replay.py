"""Record the events that an engine sent to a controller, replay them on a fresh one, and find where the two differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from archipel.core import members, records, state, types
from archipel.core.algorithm import Algorithm
from archipel.core.controller import Controller
from archipel.core.records import Committed
from archipel.core.state import Models, State
from archipel.core.types import Command, Event, Failed, Keep, RolledBack, Summed, Train, Trained
from archipel.kernels import kernels
from archipel.simulation.simulator import Simulator
from archipel.simulation.vectors import MemoryModels
from archipel.storage.dataclass_codec import Codec

CODEC = Codec(types, records, members, state)

Settings = dict[str, Any]
"""The arguments of a controller beside its algorithm and its store."""


# ---------------------------------------------------------------------------------------------------- the same or not


def difference(a: object, b: object, where: str = "it") -> str | None:
    """The first place where two things differ to the last bit, or None; the order of dicts counts."""
    if isinstance(a, np.ndarray | Tensor) or isinstance(b, np.ndarray | Tensor):
        return _unless(type(a) is type(b) and _bits(a) == _bits(b), where, a, b)
    if isinstance(a, float) and isinstance(b, float):
        return _unless(a == b or (a != a and b != b), where, a, b)
    if type(a) is not type(b):
        return _unless(False, where, a, b)
    if dataclasses.is_dataclass(a):
        pairs = [(f".{f.name}", getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a)]
    elif isinstance(a, dict) and isinstance(b, dict):
        if list(a) != list(b):
            return f"{where} has the keys {list(a)} or {list(b)}"
        pairs = [(f"[{key!r}]", a[key], b[key]) for key in a]
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if len(a) != len(b):
            return f"{where} has the length {len(a)} or {len(b)}: {a} or {b}"
        pairs = [(f"[{i}]", x, y) for i, (x, y) in enumerate(zip(a, b, strict=True))]
    else:
        return _unless(a == b, where, a, b)
    return next((found for name, x, y in pairs if (found := difference(x, y, where + name)) is not None), None)


def _bits(array: Any) -> tuple[Any, ...]:
    array = array.numpy() if isinstance(array, Tensor) else array
    return array.dtype, array.shape, array.tobytes()


def _unless(same: bool, where: str, a: object, b: object) -> str | None:
    return None if same else f"{where} is {a!r} or {b!r}"


# --------------------------------------------------------------------------------------------------------- writing


@dataclass
class Log:
    """All events of a controller and its commands, and its final state."""

    settings: Settings
    events: list[tuple[Event, Tensor | None]] = field(default_factory=list)
    """Each with the vector that the engine had put into the store for it."""
    commands: list[list[Command]] = field(default_factory=list)
    state: State | None = None
    vectors: dict[str, Tensor] = field(default_factory=dict)

    def hear(self, event: Event, models: Models) -> None:
        """Called before the controller handles the event, which may change the vector in place."""
        name = event.model if isinstance(event, Trained | Summed | RolledBack) else ""
        vector = models.read(name).clone() if name else None
        self.events.append((event, vector))

    def end(self, controller: Controller) -> None:
        self.state = controller.state
        self.vectors = {name: controller.models.read(name).clone() for name in sorted(controller.models.names())}


class Clerk:
    """An observer of a simulator that writes a log."""

    def __init__(self, simulator: Simulator) -> None:
        controller = simulator.controller
        self.log = Log(
            {
                "layout": controller.layout,
                "ending": controller.ending,
                "evaluation": controller.evaluation,
                "learners": controller.learners,
                "seed": controller.state.seed,
                "secret": controller.state.secret,
                "initial": controller.models.read("v0").clone(),
            }
        )

    def before(self, simulator: Simulator, event: Event) -> None:
        self.log.hear(event, simulator.controller.models)

    def after(self, simulator: Simulator, commands: Sequence[Command]) -> Iterable[Any]:
        self.log.commands.append(list(commands))
        return ()

    def save(self) -> dict[str, Any]:
        return {}

    def load(self, saved: dict[str, Any]) -> None:
        raise AssertionError("a clerk is not resumed")


def logged(simulator: Simulator) -> Log:
    """Run a simulation to its end and record the events of its controller."""
    clerk = Clerk(simulator)
    simulator.observers = (*simulator.observers, clerk)
    simulator.begin()
    simulator.run()
    clerk.log.end(simulator.controller)
    return clerk.log


# ------------------------------------------------------------------------------------------------------- replaying


def fresh(algorithm: Algorithm, log: Log) -> Controller:
    """A controller as it was before the first event."""
    settings = dict(log.settings)
    return Controller(algorithm, settings.pop("layout"), MemoryModels(), kernels=kernels(), **settings)


def save(controller: Controller, path: Path) -> None:
    models = controller.models
    codec = CODEC.also(*controller.algorithm.memories())
    codec.save(path, {"state": controller.state, "models": {name: models.read(name) for name in models.names()}})


def load(algorithm: Algorithm, log: Log, path: Path) -> Controller:
    """A controller as in a new process: it has only the file and its algorithm."""
    saved = CODEC.also(*algorithm.memories()).load(path)
    models = MemoryModels()
    for name, vector in saved["models"].items():
        models.write(name, vector)
    settings = {**log.settings, "initial": None}
    return Controller(algorithm, settings.pop("layout"), models, kernels=kernels(), **settings, state=saved["state"])


def tell(controller: Controller, log: Log, place: int) -> str | None:
    """Replay one event of the log; return where the commands differ."""
    event, vector = log.events[place]
    if vector is not None:
        assert isinstance(event, Trained | Summed | RolledBack)
        controller.models.write(event.model, vector.clone())
    return difference(log.commands[place], controller.handle(event), f"the answer to event {place} ({event})")


def at_the_end(controller: Controller, log: Log) -> str | None:
    vectors = {name: controller.models.read(name) for name in sorted(controller.models.names())}
    return difference(log.state, controller.state, "the state") or difference(log.vectors, vectors, "the store")


def crash(algorithm: Callable[[], Algorithm], log: Log, points: Iterable[int], folder: Path) -> str | None:
    """Replay the log from the start and, after a crash before each of these events, from what was saved there.

    The algorithm is made anew each time: nothing is shared with the run that was cut off. None: no difference.
    """
    points = set(points)
    controller = fresh(algorithm(), log)
    for place in range(len(log.events)):
        if place in points:
            save(controller, folder / f"{place}.safetensors")
        if (found := tell(controller, log, place)) is not None:
            return f"replayed from the start, {found}"
    if (found := at_the_end(controller, log)) is not None:
        return f"replayed from the start, {found}"
    for point in sorted(points):
        controller = load(algorithm(), log, folder / f"{point}.safetensors")
        for place in range(point, len(log.events)):
            if (found := tell(controller, log, place)) is not None:
                return f"after a crash before event {point}, {found}"
        if (found := at_the_end(controller, log)) is not None:
            return f"after a crash before event {point}, {found}"
    return None


def crash_at_every_event(algorithm: Callable[[], Algorithm], log: Log, folder: Path) -> str | None:
    """Replay the log, a new controller for each event, from what the one before it had saved."""
    controller = fresh(algorithm(), log)
    path = folder / "last.safetensors"
    for place in range(len(log.events)):
        save(controller, path)
        controller = load(algorithm(), log, path)
        if (found := tell(controller, log, place)) is not None:
            return f"after a crash before each event, {found}"
    return at_the_end(controller, log)


def other_arrivals(algorithm: Callable[[], Algorithm], log: Log, random: np.random.Generator) -> str | None:
    """Replay the log with the answers of each round in another order: commits and model must be the same.

    For protocols with a barrier: between two hand-outs no answer leads to a command, whichever comes first.
    """
    order = list(range(len(log.events)))
    group: list[int] = []
    for place, commands in enumerate(log.commands):
        if isinstance(log.events[place][0], Trained | Failed):
            group.append(place)
        if any(isinstance(command, Train) for command in commands) or place == len(order) - 1:
            for position, other in zip(group, random.permutation(group), strict=True):
                order[position] = int(other)
            group = []
    assert order != sorted(order), "nothing was put in another order"
    controller = fresh(algorithm(), log)
    said: list[Command] = []
    for place in order:
        event, vector = log.events[place]
        if vector is not None:
            assert isinstance(event, Trained)
            controller.models.write(event.model, vector.clone())
        said += controller.handle(event)
    was = _commits(command for commands in log.commands for command in commands)
    vectors = {name: controller.models.read(name) for name in sorted(controller.models.names())}
    return difference(was, _commits(said), "the commits") or difference(log.vectors, vectors, "the store")


def _commits(commands: Iterable[Command]) -> list[Committed]:
    return [
        command.record for command in commands if isinstance(command, Keep) and isinstance(command.record, Committed)
    ]

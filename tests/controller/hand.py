"""A controller played by hand: put an update's vector into the store, answer a task, read what it says.

A game is a table of rows, an event and what follows from it, each command in a few words:

    "train 0 a v0"     learner a is given model v0 as task 0
    "ask 4 b t0"       b is asked what it thinks of model t0, as task 4
    "score home v1"    version 1 is to be scored at home; its score is answered by `tried("v1", ...)`
    "cancel 1", "finish 1", "wake 10 round 0", "stop 2 commits made"
    "v1 <- 0 1"        the updates of tasks 0 and 1 have become version 1
    "refused 3 lost"   task 3 was not applied, and the first word why
    "scored v1"        the score of version 1 is in the records

What is written down besides (handed, returned, joined, left) follows from these and is not repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from archipel.algorithm import Algorithm
from archipel.controller import Controller
from archipel.engines.memory import MemoryModels
from archipel.layout import Layout
from archipel.parts.ending import Ending
from archipel.parts.evaluation import Evaluation
from archipel.records import Committed, Record, Refused, Scores
from archipel.state import State, validate
from archipel.types import (
    HOME,
    Cancel,
    Command,
    Consistent,
    Evaluate,
    Evaluated,
    Event,
    Failed,
    Finish,
    Joined,
    Keep,
    Left,
    Metrics,
    Progress,
    Scored,
    Stop,
    Traffic,
    Train,
    Trained,
    Wake,
    Woke,
)

LAYOUT = Layout.of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
"""Two layers, "0" of six numbers and "1" of three."""
FIRST, SECOND = LAYOUT.slices((0,))[0], LAYOUT.slices((1,))[0]

R = TypeVar("R")


@dataclass(frozen=True)
class Answer:
    """A `Trained` whose vector is still in hand: one number for all of it, one for each layer, or the vector."""

    task: int
    value: float | tuple[float, ...] | Tensor
    steps: int = 1
    layers: tuple[str, ...] | None = None
    """None: those the plan asks for."""
    metrics: Metrics = Metrics()
    traffic: Traffic = Traffic()

    def vector(self) -> Tensor:
        if isinstance(self.value, Tensor):
            return self.value.clone()
        values = self.value if isinstance(self.value, tuple) else (self.value,) * len(LAYOUT.layers)
        return torch.cat([torch.full((layer.size,), v) for layer, v in zip(LAYOUT.layers, values, strict=True)])


@dataclass(frozen=True)
class Tried:
    """The answer to a score that was asked for: how tasks for scores are numbered is nobody's business."""

    model: str
    site: str
    result: Scored | Consistent | None
    """None: it failed."""
    traffic: Traffic = Traffic()


Play: TypeAlias = Event | Answer | Tried


# ------------------------------------------------------------------------------------------------- events in few words


def joined(learner: str, examples: int | None = 10, **known: Any) -> Joined:
    return Joined(learner, examples, **known)


def trained(task: int, value: float | tuple[float, ...] | Tensor = 1.0, **more: Any) -> Answer:
    return Answer(task, value, **more)


def failed(task: int, reason: str = "lost", **more: Any) -> Failed:
    return Failed(task, reason, **more)


def evaluated(task: int, right: int = 1, wrong: int = 0, **more: Any) -> Evaluated:
    return Evaluated(task, scored(right, wrong), **more)


def tried(model: str, right: int = 1, wrong: int = 0, at: str = HOME, **more: Any) -> Tried:
    return Tried(model, at, scored(right, wrong), **more)


def scored(right: int, wrong: int = 0) -> Scored:
    """So many examples of two classes that the model got right and wrong."""
    return Scored(right + wrong, float(wrong), np.array([[right, wrong], [0, 0]]))


woke, left, progress = Woke, Left, Progress


# -------------------------------------------------------------------------------------------------------- the player


class Hand:
    """The engine of a table: it does what the row says and nothing else."""

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        learners: int = 2,
        ending: Ending | None = None,
        evaluation: Evaluation | None = None,
        initial: float = 0.0,
        seed: int = 0,
        state: State | None = None,
        models: MemoryModels | None = None,
    ) -> None:
        self.models = MemoryModels() if models is None else models
        self.controller = Controller(
            algorithm,
            LAYOUT,
            self.models,
            ending=ending or Ending(commits=1000),
            evaluation=evaluation,
            learners=learners,
            seed=seed,
            initial=None if state is not None else torch.full((LAYOUT.size,), initial),
            state=state,
        )
        self.trains: dict[int, Train] = {}
        """Every training task that was ever handed out."""
        self.scores: dict[tuple[str, str], int] = {}
        """Tasks of the scores that were asked for, by model and site."""
        self.records: list[Record] = []

    def do(self, event: Play) -> list[Command]:
        """Give the controller one event; the laws of the state hold after it."""
        commands = self.controller.handle(self._event(event))
        for command in commands:
            if isinstance(command, Train):
                self.trains[command.task] = command
            elif isinstance(command, Evaluate) and command.record:
                self.scores[command.model.name, command.site] = command.task
            elif isinstance(command, Keep):
                self.records.append(command.record)
        validate(self.state, self.models)
        return commands

    def _event(self, play: Play) -> Event:
        if isinstance(play, Tried):
            task = self.scores[play.model, play.site]
            if play.result is None:
                return Failed(task, "lost", play.traffic)
            return Evaluated(task, play.result, play.traffic)
        if not isinstance(play, Answer):
            return play
        name = f"t{play.task}"
        if name in self.models.names():  # a second answer must not overwrite the first
            name += " again"
        self.models.write(name, play.vector())
        train = self.trains.get(play.task)
        layers = play.layers if play.layers is not None else train.plan.sends(LAYOUT.names) if train else LAYOUT.names
        return Trained(play.task, name, layers, play.steps, play.metrics, play.traffic)

    def play(self, *rows: Sequence[Any]) -> Hand:
        """Play a table: each row an event and, in words, all that follows from it."""
        for number, (event, *expected) in enumerate(rows):
            found = words(self.do(event))
            assert found == expected, f"row {number}, {event}: expected {expected}, got {found}"
        return self

    @property
    def state(self) -> State:
        return self.controller.state

    @property
    def vector(self) -> Tensor:
        """The community model."""
        return self.models.read(self.state.model.name)

    @property
    def value(self) -> float:
        """The number that the whole model consists of."""
        numbers = set(self.vector.tolist())
        assert len(numbers) == 1, f"the model is not one number: {self.vector}"
        return numbers.pop()

    @property
    def values(self) -> tuple[float, ...]:
        """The number that each layer consists of."""
        pieces = [set(self.vector[layer.start : layer.stop].tolist()) for layer in LAYOUT.layers]
        assert all(len(piece) == 1 for piece in pieces), f"a layer is not one number: {self.vector}"
        return tuple(piece.pop() for piece in pieces)

    def all(self, kind: type[R]) -> list[R]:
        """All records of a kind so far."""
        return [record for record in self.records if isinstance(record, kind)]

    def last(self, kind: type[R]) -> R:
        return self.all(kind)[-1]


def words(commands: Iterable[Command]) -> list[str]:
    """Commands in words; records that only repeat them are left out."""
    return [said for said in map(_word, commands) if said is not None]


def _word(command: Command) -> str | None:
    match command:
        case Train(task, learner, model):
            return f"train {task} {learner} {model.name}"
        case Evaluate(_, site, model, record=True):
            return f"score {site} {model.name}"
        case Evaluate(task, site, model):
            return f"ask {task} {site} {model.name}"
        case Finish(task):
            return f"finish {task}"
        case Cancel(task):
            return f"cancel {task}"
        case Wake(after, tag):
            return f"wake {after:g} {tag}"
        case Stop(reason):
            return f"stop {reason}"
        case Keep(Committed() as record):
            return f"v{record.version} <- {' '.join(map(str, record.tasks))}".rstrip()
        case Keep(Refused() as record):
            return f"refused {record.task} {record.reason.split()[0].rstrip(':')}"
        case Keep(Scores() as record):
            return f"scored v{record.version}"
    return None

"""A controller driven by hand: put an update's vector into the store, answer a task, read its commands.

A game is a table of rows, an event and what follows from it, each command in a few words:

    "train 0 a v0"     learner a is given model v0 as task 0
    "ask 4 b c t0"     b and c are asked what they think of model t0, as task 4; `evaluated(4, (3, 1), None)` is b's
                       answer, 3 examples right and 1 wrong, and that there will be none of c
    "score home v1"    version 1 is to be scored at home; its score is answered by `tried("v1", ...)`
    "add 3 a b"        the updates of a and b are to be added up, as task 3; `summed(3, 2.0, (0, 1), 20)` is the answer
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

from archipel.core.algorithm import Algorithm
from archipel.core.controller import Controller
from archipel.core.layout import Layout
from archipel.core.parts.ending import Ending
from archipel.core.parts.evaluation import Evaluation
from archipel.core.records import Committed, Record, Refused, Scores
from archipel.core.state import State, validate
from archipel.core.types import (
    AddUp,
    Cancel,
    Command,
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
    Result,
    Score,
    Scored,
    Stop,
    Summed,
    Traffic,
    Train,
    Trained,
    Wake,
    Woke,
    collect_answers,
)
from archipel.kernels import kernels
from archipel.simulation.vectors import MemoryModels

LAYOUT = Layout.of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
"""Two layers, "0" of six numbers and "1" of three."""
FIRST, SECOND = LAYOUT.slices((0,))[0], LAYOUT.slices((1,))[0]

R = TypeVar("R")


@dataclass(frozen=True)
class Answer:
    """A `Trained` whose vector is not in the store yet: one number for all of it, one for each layer, or the vector."""

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


Said: TypeAlias = tuple[int, int] | Result | None
"""A site's opinion: numbers of right and wrong examples, or the answer itself; None: it will not come."""


@dataclass(frozen=True)
class Total:
    """A `Summed` whose mean is not in the store yet: one number for all of it."""

    task: int
    value: float
    tasks: tuple[int, ...]
    weight: int


@dataclass(frozen=True)
class Opinions:
    """Opinions of the sites that were asked, in their order."""

    asked: int | str
    """The task; for a score, whose task number is internal, the model."""
    said: tuple[Said, ...] | None = ()
    """Nothing: each site tried one example, and the model got it right. None: the task failed as a whole."""
    traffic: Traffic = Traffic()


Play: TypeAlias = Event | Answer | Opinions | Total


# ------------------------------------------------------------------------------------------------- events in few words


def joined(learner: str, examples: int | None = 10, **known: Any) -> Joined:
    return Joined(learner, examples, **known)


def trained(task: int, value: float | tuple[float, ...] | Tensor = 1.0, **more: Any) -> Answer:
    return Answer(task, value, **more)


def withheld(task: int, steps: int = 1) -> Trained:
    """An update without numbers: they are added up by the engine."""
    return Trained(task, "", LAYOUT.names, steps)


def summed(task: int, value: float, tasks: tuple[int, ...], weight: int) -> Total:
    return Total(task, value, tasks, weight)


def failed(task: int, reason: str = "lost", **more: Any) -> Failed:
    return Failed(task, reason, **more)


def evaluated(task: int, *said: Said, **more: Any) -> Opinions:
    return Opinions(task, said, **more)


def tried(model: str, *said: Said, **more: Any) -> Opinions:
    return Opinions(model, said, **more)


def untried(model: str, **more: Any) -> Opinions:
    """The score of a model failed as a whole."""
    return Opinions(model, None, **more)


def scored(right: int, wrong: int = 0) -> Scored:
    """A score of two classes from the numbers of right and wrong examples."""
    return Scored(right + wrong, float(wrong), np.array([[right, wrong], [0, 0]]))


woke, left, progress = Woke, Left, Progress


# -------------------------------------------------------------------------------------------------------- the player


class Hand:
    """The engine of a table: it carries out a row and nothing else."""

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        learners: int = 2,
        ending: Ending | None = None,
        evaluation: Evaluation | None = None,
        initial: float = 0.0,
        seed: int = 0,
        secret: str = "",
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
            secret=secret,
            kernels=kernels(),
            initial=None if state is not None else torch.full((LAYOUT.size,), initial),
            state=state,
        )
        self.trains: dict[int, Train] = {}
        """Every training task so far."""
        self.questions: dict[int, Evaluate] = {}
        """Every evaluation so far."""
        self.scores: dict[str, int] = {}
        """Those among them that are scores, by model."""
        self.records: list[Record] = []

    def do(self, event: Play) -> list[Command]:
        """Give the controller one event; the laws of the state hold after it."""
        commands = self.controller.handle(self._event(event))
        for command in commands:
            if isinstance(command, Train):
                self.trains[command.task] = command
            elif isinstance(command, Evaluate):
                self.questions[command.task] = command
                if command.record:
                    self.scores[command.model.name] = command.task
            elif isinstance(command, Keep):
                self.records.append(command.record)
        validate(self.state, self.models)
        return commands

    def _event(self, play: Play) -> Event:
        if isinstance(play, Opinions):
            return self._opinions(play)
        if isinstance(play, Total):
            self.models.write(f"s{play.task}", torch.full((LAYOUT.size,), play.value))
            return Summed(play.task, f"s{play.task}", play.tasks, play.weight)
        if not isinstance(play, Answer):
            return play
        name = f"t{play.task}"
        if name in self.models.names():  # a second answer must not overwrite the first
            name += " again"
        self.models.write(name, play.vector())
        train = self.trains.get(play.task)
        layers = play.layers if play.layers is not None else train.plan.sends(LAYOUT.names) if train else LAYOUT.names
        return Trained(play.task, name, layers, play.steps, play.metrics, play.traffic)

    def _opinions(self, play: Opinions) -> Event:
        task = play.asked if isinstance(play.asked, int) else self.scores[play.asked]
        if play.said is None:
            return Failed(task, "lost", play.traffic)
        question = self.questions.get(task)
        said = play.said or ((1, 0),) * (1 if question is None else len(question.sites))
        results = tuple(scored(*opinion) if isinstance(opinion, tuple) else opinion for opinion in said)
        probe = Score("validation") if question is None else question.probe
        return Evaluated(task, collect_answers(probe, results), play.traffic)

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
        numbers: set[float] = set(self.vector.tolist())
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
        case Evaluate(_, sites, model, record=True):
            return f"score {' '.join(sites)} {model.name}"
        case Evaluate(task, sites, model):
            return f"ask {task} {' '.join(sites)} {model.name}"
        case AddUp(task, _, learners):
            return f"add {task} {' '.join(learners)}"
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

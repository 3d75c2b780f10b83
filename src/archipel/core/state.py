"""Everything a crash must not lose, as plain data, and the view of it that parts get."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from torch import Tensor

from archipel.core.layout import Layout
from archipel.core.randomness import generator
from archipel.core.scored import ScoreTable
from archipel.core.types import Metrics, Model, Plan, Probe, Result, Role, Score, SiteAnswers
from archipel.kernels.interface import Kernels, Rows


class Models(Protocol):
    """Where vectors live: in memory, in memory-mapped files, in blobs on disk. The engine brings one.

    Names are given by the controller and the parts, never drawn, so that a replay finds the same ones.
    """

    def read(self, name: str, piece: slice | None = None) -> Tensor:
        """Return the vector, or a piece of it; a part may change in place what it wrote, and must not change models."""

    def rows(self, names: Sequence[str]) -> Rows:
        """Return these vectors as rows for the kernels."""

    def shape(self, name: str) -> tuple[int, ...]: ...

    def write(self, name: str, vector: Tensor) -> None: ...

    def complete(self, name: str, base: str, pieces: Sequence[slice]) -> None:
        """Set these pieces of a model, each some layers, to those of another one."""

    def drop(self, name: str) -> None: ...

    def names(self) -> list[str]: ...


@dataclass(slots=True)
class Member:
    """A learner as the controller knows it."""

    name: str
    examples: int | None
    validation: int
    test: int
    group: str
    role: Role
    active: bool = True
    given: int = 0
    """Training tasks it was given so far: the counter of its randomness."""


@dataclass(slots=True)
class Assignment:
    """A training task that is out."""

    task: int
    learner: str
    model: Model
    plan: Plan
    version: int
    """Version of the community model when it was handed out."""
    committed: int
    """Steps committed to the community model by then (S_c^t of Metis section V)."""
    slot: int
    travels: bool
    steps: int = 0
    """Steps it is known to have made."""
    measures: bool = False
    """It trains nothing: the learner reports on the model, and no update comes of it."""
    finishing: bool = False
    cancelled: bool = False


@dataclass(slots=True)
class Inquiry:
    """An evaluation that is out: evidence for an update, or a score for the records."""

    task: int
    sites: tuple[str, ...]
    models: tuple[str, ...]
    """Vectors that must stay until it is answered."""
    probe: Probe
    update: int | None
    """The update it is about; None: the current model is scored for the records."""
    question: int
    """Place of the question in the update's evidence."""
    version: int
    """Version of the community model when it was asked."""
    rounds: int
    """Local-training rounds by then."""
    validators: int = 0
    """So many of the sites, the last ones, are validation learners: their scores are kept apart."""


@dataclass(slots=True)
class Evidence:
    """One question about an update, and the answers once they have come."""

    probe: Probe
    answers: SiteAnswers | None = None


@dataclass(slots=True)
class Update:
    """A trained model that waits to be committed (or, under Relay, to travel on)."""

    task: int
    learner: str
    model: Model
    layers: tuple[int, ...]
    """Places of the layers that were sent."""
    version: int
    committed: int
    examples: int | None
    steps: int
    slot: int
    metrics: Metrics
    path: tuple[str, ...] = ()
    """All learners it has been trained by; their examples and steps add up."""
    start: str = ""
    """The model that its task carried, by name; under Relay that of the path's first task."""
    asked: bool = False
    evidence: list[Evidence] = field(default_factory=list)
    stale_versions: int = 0
    """Versions between the model it started from and its commit; stamped at the commit."""
    stale_steps: int = 0
    """Effective staleness S_k of Metis section V; stamped at the commit."""

    @property
    def ready(self) -> bool:
        return self.asked and all(item.answers is not None for item in self.evidence)

    def answers(self, probe: Probe) -> list[Result | None]:
        """Return the answers to this probe, in the order of asking; None where one is missing."""
        return [answer for item in self.evidence if item.probe == probe for answer in item.answers or ()]

    def scores(self, probe: Score) -> list[ScoreTable]:
        """Return the answers to this probe in tables, one for each question."""
        return [item.answers for item in self.evidence if item.probe == probe and isinstance(item.answers, ScoreTable)]


@dataclass(slots=True)
class State:
    """The controller's whole memory. Models are names; the vectors live in the engine's store."""

    seed: int
    model: Model
    version: int = 0
    """Commits so far."""
    rounds: int = 0
    """Local-training rounds so far: each hop of a Relay counts one."""
    vain_attempts: int = 0
    """Attempts at a version since the last one: a round, a round's worth of a stream, all hops of a relay."""
    committed: int = 0
    """Steps committed so far (S_c of Metis section V)."""
    begun: bool = False
    ending: str | None = None
    """Why the run is about to end, while the last score is still out."""
    stopped: str | None = None
    next_task: int = 0
    next_score: int = -1
    """Scores are numbered downwards, so that how often a model is scored changes no draw that a task's number keys."""
    members: dict[str, Member] = field(default_factory=dict)
    there: dict[Role, list[str]] = field(default_factory=dict)
    """Names of the members that are there, sorted, by role: looked at many times an event."""
    out: dict[int, Assignment] = field(default_factory=dict)
    inquiries: dict[int, Inquiry] = field(default_factory=dict)
    starts: dict[str, Model] = field(default_factory=dict)
    """Models that learners start their next task from, where that is not the current version."""
    queue: list[Update] = field(default_factory=list)
    """Updates offered for commit, in order of arrival."""
    travelling: dict[int, Update] = field(default_factory=dict)
    """Under Relay, the last model of each slot."""
    scored: int = -1
    """The last version that was sent to be scored."""
    best: float | None = None
    """Best score so far."""
    since_best: int = 0
    """Scores since then."""
    classes: int | None = None
    """How many classes answers count, once one has come."""
    most_share: float = 1.0
    """The largest share that anybody may have of a merge's weights and of a pooled score; 1: no limit."""
    capped: dict[str, list[str]] = field(default_factory=dict)
    """Learners that claimed more, by what they claimed it of."""
    traffic: dict[str, int] = field(default_factory=dict)
    """Bytes and models moved so far, by kind."""
    memory: dict[str, object] = field(default_factory=dict)
    """What the parts remember, each a dataclass of its own under the part's role; vectors go into the store."""


M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class View:
    """What a part may look at, and the memory it may write to."""

    state: State
    layout: Layout
    models: Models
    kernels: Kernels
    role: str
    """The part's own name in this algorithm, such as `merge` or `planner.1`."""

    def inner(self, index: int) -> View:
        """Return the view of a part inside a part, with a memory of its own."""
        return View(self.state, self.layout, self.models, self.kernels, f"{self.role}.{index}")

    def memory(self, kind: type[M], begin: Callable[[], M] | None = None) -> M:
        """Return what the part remembers, a dataclass of this kind; `begin` makes it at the first use."""
        memory = self.state.memory.get(self.role)
        if not isinstance(memory, kind):
            memory = self.state.memory[self.role] = (begin or kind)()
        return memory

    @property
    def version(self) -> int:
        return self.state.version

    @property
    def model(self) -> Model:
        return self.state.model

    def start(self, learner: str) -> Model:
        """Return the model that a learner's next task starts from: the current version, or one of its own."""
        return self.state.starts.get(learner, self.state.model)

    @property
    def out(self) -> dict[int, Assignment]:
        return self.state.out

    @property
    def queue(self) -> list[Update]:
        return self.state.queue

    def name(self, what: str) -> str:
        """Return the name of a vector that this part keeps in the store."""
        return f"{self.role}/{what}"

    def generator(self, *key: int | str) -> np.random.Generator:
        return generator(self.state.seed, self.role, *key)

    def active(self, role: Role = "train") -> list[str]:
        """Return the learners of this role that are there, by name."""
        return list(self.state.there.get(role, ()))

    def idle(self) -> list[str]:
        """Return the learners that may be given a training task now, by name."""
        busy = {a.learner for a in self.out.values()} | {u.learner for u in self.queue}
        return [name for name in self.active() if name not in busy]

    def others_with_validation(self, learner: str) -> Iterator[str]:
        members = self.state.members
        for name in self.state.there.get("train", ()):
            if name != learner and members[name].validation > 0:
                yield name


def needed_vectors(state: State) -> set[str]:
    """Return the names of vectors that somebody still needs, beside those that parts hold."""
    names = {state.model.name, *(assignment.model.name for assignment in state.out.values())}
    names.update(model.name for model in state.starts.values())
    names.update(update.model.name for update in (*state.queue, *state.travelling.values()))
    names.update(name for inquiry in state.inquiries.values() for name in inquiry.models)
    return names


def validate(state: State, models: Models) -> None:
    """Raise if the state breaks a law that holds after every event; for tests and for finding bugs."""
    at_work = [assignment.learner for assignment in state.out.values()]
    _law(len(at_work) == len(set(at_work)), "a learner has two training tasks", at_work)
    waiting = [update.task for update in (*state.queue, *state.travelling.values())]
    _law(len(waiting) == len(set(waiting)), "an update stands for commit twice", waiting)
    known = {*state.out, *state.inquiries, *waiting}
    _law(len(known) == len(state.out) + len(state.inquiries) + len(waiting), "a task is in two places", known)
    handed_out = all(state.next_score < task < state.next_task for task in known)
    _law(handed_out, "a task was never handed out", known)
    there = {name: member.role for name, member in state.members.items() if member.active}
    by_role = {role: sorted(n for n in there if there[n] == role) for role in there.values()}
    _law({role: names for role, names in state.there.items() if names} == by_role, "who is there", state.there)
    for update in state.queue:
        out = sorted(i.question for i in state.inquiries.values() if i.update == update.task)
        open_ = [place for place, item in enumerate(update.evidence) if item.answers is None]
        _law(open_ == out, f"update {update.task} waits for the questions {open_}", out)
        _law(update.version <= state.version, "an update is newer than the model", update)
    orphans = [i for i in state.inquiries.values() if i.update is not None and i.update not in waiting]
    _law(not orphans, "an inquiry is about no update", orphans)
    missing = needed_vectors(state) - set(models.names())
    _law(not missing, "vectors are missing from the store", missing)


def _law(holds: bool, broken: str, story: object) -> None:
    if not holds:
        raise AssertionError(f"{broken}: {story}")

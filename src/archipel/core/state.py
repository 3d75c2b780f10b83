"""The controller's state as plain data, everything that a crash must not lose, and the view that parts get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.layout import Layout
from archipel.core.members import Members, SortedNames
from archipel.core.randomness import draw_some, generator
from archipel.core.scored import ScoreTable
from archipel.core.types import Metrics, Model, Plan, Probe, Result, Role, Score, SiteAnswers
from archipel.core.vector_uses import VectorUses
from archipel.kernels.interface import Kernels, Rows
from archipel.privacy.noise import uniform


class Models(Protocol):
    """A store of vectors, provided by the engine: in memory, in memory-mapped files, or in blobs on disk.

    Names are given by the controller and the parts, never drawn, so that a replay finds the same ones.
    """

    def read(self, name: str, piece: slice | None = None) -> Tensor:
        """Return the vector, or a piece of it. A part may change its own vectors in place, but never models."""

    def rows(self, names: Sequence[str]) -> Rows:
        """Return these vectors as rows for the kernels."""

    def shape(self, name: str) -> tuple[int, ...]: ...

    def write(self, name: str, vector: Tensor) -> None: ...

    def complete(self, name: str, base: str, pieces: Sequence[slice]) -> None:
        """Copy these pieces, whole layers each, from another model into this one."""

    def drop(self, name: str) -> None: ...

    def names(self) -> list[str]: ...


@dataclass(slots=True)
class Assignment:
    """An open training task."""

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
    """Steps it has made, as last reported."""
    measures: bool = False
    """Whether it only measures: the learner trains nothing, reports on the model and sends no update."""
    finishing: bool = False
    cancelled: bool = False

    @property
    def vectors(self) -> tuple[str, ...]:
        """The vectors that travel with the task."""
        return (self.model.name,) if self.plan.shift is None else (self.model.name, self.plan.shift)


@dataclass(slots=True)
class Inquiry:
    """An open evaluation: evidence for an update, or a score for the records."""

    task: int
    sites: tuple[str, ...]
    models: tuple[str, ...]
    """Vectors that must be kept until it is answered."""
    probe: Probe
    update: int | None
    """The update it is about; None: the current model is scored for the records."""
    question: int
    """Index of the question in the update's evidence."""
    version: int
    """Version of the community model when it was asked."""
    rounds: int
    """Local-training rounds by then."""
    validators: int = 0
    """How many of the last sites are validation learners, whose scores are recorded apart."""
    pooled: bool = False
    """Whether the sites' answers are added up before the controller sees them."""


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
    """Indices of the layers that were sent."""
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
    plan: Plan = Plan()
    """The plan of its task; under Relay of its last task."""
    asked: bool = False
    evidence: list[Evidence] = field(default_factory=list)
    stale_versions: int = 0
    """Versions between the model it started from and its commit; stamped at the commit."""
    stale_steps: int = 0
    """Effective staleness S_k of Metis section V; stamped at the commit."""

    @property
    def vectors(self) -> tuple[str, ...]:
        """The vectors that it names: its own, and its task's model and shift, for parts that compare with them."""
        return tuple(name for name in (self.model.name, self.start, self.plan.shift) if name)

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
class Sum:
    """Updates that the engine is adding up without showing any single one."""

    task: int
    updates: list[Update]
    weights: list[tuple[float, ...]]
    cancelled: bool = False


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
    """Attempts since the last version: rounds, round-sized batches of a stream's tasks, or complete relays."""
    committed: int = 0
    """Steps committed so far (S_c of Metis section V)."""
    begun: bool = False
    ending: str | None = None
    """Why the run is about to end, while the last score is awaited."""
    stopped: str | None = None
    next_task: int = 0
    next_score: int = -1
    """Scores count downwards: draws are keyed by task numbers, and scoring must not change them."""
    members: Members = field(default_factory=Members)
    out: dict[int, Assignment] = field(default_factory=dict)
    inquiries: dict[int, Inquiry] = field(default_factory=dict)
    sum: Sum | None = None
    """The sum under way; until it is done, the protocol decides nothing."""
    starts: dict[str, Model] = field(default_factory=dict)
    """Models that learners start their next task from, if not from the current version."""
    queue: dict[int, Update] = field(default_factory=dict)
    """Updates offered for commit by task, in order of arrival."""
    travelling: dict[int, Update] = field(default_factory=dict)
    """Under Relay, the last model of each slot."""
    scored: int = -1
    """The last version that was sent to be scored."""
    best: float | None = None
    """Best score so far."""
    since_best: int = 0
    """Scores since then."""
    classes: int | None = None
    """Classes of the confusion matrices; None until the first answer, unless it was given."""
    per_token: bool = False
    """Whether examples have a target for every token, so that answers count tokens."""
    most_share: float = 1.0
    """The largest share of one learner in a merge's weights and a pooled score; 1: no limit."""
    secret: str = ""
    """The controller's key for noise and draws that learners must not foresee, if the algorithm needs it."""
    capped: dict[str, list[str]] = field(default_factory=dict)
    """Learners that claimed more than that share, by the quantity: weight, opinions or score."""
    traffic: dict[str, int] = field(default_factory=dict)
    """Bytes and models moved so far, by kind."""
    memory: dict[str, object] = field(default_factory=dict)
    """Memories of the parts by role, each a dataclass of the part's own; vectors go into the store."""
    vectors: VectorUses = field(default_factory=VectorUses)
    """References to each vector in the store, from this state and from parts."""

    def __post_init__(self) -> None:
        if not self.vectors.counts:
            self.vectors.add(self.model.name)

    def hand_out(self, assignment: Assignment) -> None:
        """Add an open training task."""
        self.out[assignment.task] = assignment
        self.members.engage(assignment.learner)
        self.vectors.add(*assignment.vectors)

    def close(self, task: int) -> Assignment | None:
        """Remove an open training task and return it; None if it is not open."""
        assignment = self.out.pop(task, None)
        if assignment is not None:
            self.members.release(assignment.learner)
            self.vectors.remove(*assignment.vectors)
        return assignment

    def enqueue(self, update: Update) -> None:
        """Add an update to the queue for commits."""
        self.queue[update.task] = update
        self.members.engage(update.learner)
        self.vectors.add(*update.vectors)

    def dequeue(self, tasks: Iterable[int]) -> list[Update]:
        """Take the updates of these tasks out of the queue."""
        chosen = [self.queue.pop(task) for task in tasks]
        for update in chosen:
            self.members.release(update.learner)
            self.vectors.remove(*update.vectors)
        return chosen

    def begin_sum(self, found: Sum) -> None:
        """Store the sum that the engine is computing."""
        self.sum = found
        for update in found.updates:
            self.members.engage(update.learner)
            self.vectors.add(*update.vectors)

    def end_sum(self) -> Sum:
        """Remove the awaited sum and return it."""
        found, self.sum = self.sum, None
        assert found is not None
        for update in found.updates:
            self.members.release(update.learner)
            self.vectors.remove(*update.vectors)
        return found

    def travel(self, update: Update) -> None:
        """Replace the last update of its slot."""
        self.vectors.add(*update.vectors)
        before = self.travelling.get(update.slot)
        if before is not None:
            self.vectors.remove(*before.vectors)
        self.travelling[update.slot] = update

    def arrive(self) -> list[Update]:
        """Remove the travelling updates from their slots and return them in order of slot."""
        arrived = [self.travelling[slot] for slot in sorted(self.travelling)]
        self.vectors.remove(*(name for update in arrived for name in update.vectors))
        self.travelling = {}
        return arrived

    def ask(self, inquiry: Inquiry) -> None:
        """Add an open evaluation."""
        self.inquiries[inquiry.task] = inquiry
        self.vectors.add(*inquiry.models)

    def answer(self, task: int) -> Inquiry:
        """Remove an open evaluation and return it."""
        inquiry = self.inquiries.pop(task)
        self.vectors.remove(*inquiry.models)
        return inquiry

    def set_model(self, model: Model, starts: dict[str, Model]) -> None:
        """Set the current version and the models that learners start from."""
        self.vectors.add(model.name, *(start.name for start in starts.values()))
        self.vectors.remove(self.model.name, *(start.name for start in self.starts.values()))
        self.model, self.starts = model, starts


M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class View:
    """The state as one part may read it, and the memory that the part may change."""

    state: State
    layout: Layout
    models: Models
    kernels: Kernels
    role: str
    """The part's own name in this algorithm, such as `merge` or `planner.1`."""
    _inner: dict[int, View] = field(default_factory=dict, init=False, repr=False, compare=False)

    def inner(self, index: int) -> View:
        """Return the view of a part inside a part, with a memory of its own."""
        if index not in self._inner:
            self._inner[index] = View(self.state, self.layout, self.models, self.kernels, f"{self.role}.{index}")
        return self._inner[index]

    def memory(self, kind: type[M], begin: Callable[[], M] | None = None) -> M:
        """Return the part's memory, a dataclass of this kind; `begin` makes it at the first use."""
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
    def queue(self) -> Collection[Update]:
        """Updates offered for commit, in order of arrival."""
        return self.state.queue.values()

    def name(self, what: str) -> str:
        """Return the name of a vector that this part keeps in the store."""
        return f"{self.role}/{what}"

    def generator(self, *key: int | str) -> np.random.Generator:
        return generator(self.state.secret or self.state.seed, self.role, *key)

    def draw_some(self, count: int, among: int, draw: str) -> list[int]:
        """Draw numbers below `among` without replacement; with the secret, if there is one."""
        if not self.state.secret:
            return draw_some(self.generator(draw), count, among)
        order = np.argsort(self._secret_numbers(draw, among), kind="stable")
        return [int(number) for number in order[:count]]

    def draw_each(self, chance: float, among: int, draw: str) -> list[int]:
        """Draw each number below `among` independently with this chance; with the secret, if there is one."""
        secret = self.state.secret
        numbers = self._secret_numbers(draw, among) if secret else self.generator(draw).random(among)
        return [int(number) for number in np.flatnonzero(numbers < chance)]

    def _secret_numbers(self, draw: str, count: int) -> NDArray[np.float64]:
        return uniform(self.state.secret, f"{self.role} {draw}", count)

    def active(self, role: Role = "train") -> SortedNames:
        """Return the learners of this role that are present, by name."""
        return self.state.members.present(role)

    def idle(self) -> SortedNames:
        """Return the learners that may be given a training task now, by name."""
        return self.state.members.idle

    def hold(self, *names: str) -> None:
        """Keep these vectors of updates in the store until this part releases them."""
        self.state.vectors.hold(self.role, *names)

    def release(self, *names: str) -> None:
        """Release vectors that this part holds."""
        self.state.vectors.release(self.role, *names)


def needed_vectors(state: State) -> Counter[str]:
    """Count the state's references to each vector, apart from those of parts."""
    names = [state.model.name, *(model.name for model in state.starts.values())]
    names += [name for assignment in state.out.values() for name in assignment.vectors]
    waiting = (*state.queue.values(), *state.travelling.values(), *(state.sum.updates if state.sum else ()))
    names += [name for update in waiting for name in update.vectors]
    names += [name for inquiry in state.inquiries.values() for name in inquiry.models]
    return Counter(names)


def validate(state: State, models: Models) -> None:
    """Check the invariants that hold after every event; for tests and debugging."""
    at_work = [assignment.learner for assignment in state.out.values()]
    _law(len(at_work) == len(set(at_work)), "a learner has two training tasks", at_work)
    adding = state.sum.updates if state.sum else []
    waiting = [update.task for update in (*state.queue.values(), *state.travelling.values(), *adding)]
    _law(len(waiting) == len(set(waiting)), "an update is queued for commit twice", waiting)
    known = {*state.out, *state.inquiries, *waiting}
    _law(len(known) == len(state.out) + len(state.inquiries) + len(waiting), "a task is in two places", known)
    handed_out = all(state.next_score < task < state.next_task for task in known)
    _law(handed_out, "a task was never handed out", known)
    for update in state.queue.values():
        out = sorted(i.question for i in state.inquiries.values() if i.update == update.task)
        open_ = [place for place, item in enumerate(update.evidence) if item.answers is None]
        _law(open_ == out, f"update {update.task} waits for the questions {open_}", out)
        _law(update.version <= state.version, "an update is newer than the model", update)
    orphans = [i for i in state.inquiries.values() if i.update is not None and i.update not in waiting]
    _law(not orphans, "an inquiry is about no update", orphans)
    needed = needed_vectors(state)
    missing = needed.keys() - set(models.names())
    _law(not missing, "vectors are missing from the store", missing)
    for held in state.vectors.held.values():
        needed.update(held)
    _law(needed == Counter(state.vectors.counts), "uses of vectors are not counted", state.vectors)
    _validate_members(
        state.members, Counter([*at_work, *(update.learner for update in (*state.queue.values(), *adding))])
    )


def _validate_members(members: Members, busy: Counter[str]) -> None:
    for name, member in members.items():
        _law(member.busy == busy[name], f"tasks and updates of {name}", member)
    again = Members(dict(members))
    roles: tuple[Role, ...] = ("train", "validation", "test")
    for role in roles:
        _law([*members.present(role)] == [*again.present(role)], f"learners to {role}", [*members.present(role)])
    _law([*members.idle] == [*again.idle], "idle learners", [*members.idle])
    _law([*members.validating] == [*again.validating], "learners with a validation part", [*members.validating])


def _law(holds: bool, broken: str, story: object) -> None:
    if not holds:
        raise AssertionError(f"{broken}: {story}")

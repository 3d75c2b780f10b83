"""Random histories by an engine that keeps its contract and nothing more: what holds after every event, and no hang.

Answers come in any order, tasks fail, opinions are missing or make no sense, updates hold NaN, learners come and go,
timers go off in any order, what was answered comes once more, sums fail or lack somebody, and versions are rolled back.
A history is a list of (what, which); hypothesis shrinks it to the shortest that breaks a law.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar, get_args

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archipel.algorithms import (
    async_dvw,
    async_fedavg,
    fed2a,
    fedadam,
    fedasync,
    fedavg,
    hdafl,
    radfed,
    radfed_i,
    sync_dvw,
)
from archipel.core.algorithm import Algorithm
from archipel.core.parts import (
    ByDistributedValidation,
    Community,
    Ending,
    Evaluation,
    Mean,
    NormClipped,
    PrivateLayers,
    Relay,
    Rounds,
    SecureSum,
    Stream,
)
from archipel.core.parts.merge import CommunityMemory
from archipel.core.parts.privacy import SumInEngine
from archipel.core.records import Committed, Refused, Restored, Scores
from archipel.core.state import State, validate
from archipel.core.types import (
    HOME,
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
    Pooled,
    Progress,
    RolledBack,
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
from tests.core.answers import LEARNERS, confusion, opinion, pooled, scored_on
from tests.core.hand import LAYOUT
from tests.core.replay import Log, crash, fresh

pytestmark = pytest.mark.slow

ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "fedavg, a fraction": partial(fedavg, 0.5),
    "fedavg, a deadline": partial(fedavg, deadline=10.0),
    "fedavg, at least three": lambda: replace(fedavg(0.3), protocol=Rounds(0.3, at_least=3)),
    "fedadam": partial(fedadam, eta=0.1),
    "sync_dvw": partial(sync_dvw, quorum=0.6),
    "fedasync": partial(fedasync, concurrency=2),
    "async_fedavg": async_fedavg,
    "async_dvw, adaptive": partial(async_dvw, recall_after=1, evaluators=2),
    "fed2a": partial(fed2a, buffer=3, max_wait=5.0, period=3, last=1, deep="1"),
    "hdafl": partial(hdafl, 0.5, private="1"),
    "radfed": partial(radfed, 0.5, hops=3),
    "radfed_i": partial(radfed_i, 0.7, hops=2),
    "a relay with opinions": lambda: replace(
        sync_dvw(), name="mixture", protocol=Relay(0.5, hops=2), planners=(PrivateLayers("1"),)
    ),
    "a clipped mean": lambda: replace(fedavg(0.5), merge=NormClipped(Mean(), 1.0)),
    "a clipped community": lambda: replace(async_fedavg(), merge=NormClipped(Community(), 1.0)),
    "a stream by evidence": lambda: Algorithm(
        "ready",
        protocol=Stream(2, max_wait=3.0, concurrency=3, order="ready"),
        weighting=ByDistributedValidation(),
        merge=Community(forget=True),
    ),
    "secure sums": lambda: replace(
        fedavg(), protocol=Rounds(at_least=3), privacy=SecureSum(threshold=0.7, most_examples=12)
    ),
    "secure sums of the first": lambda: replace(
        fedavg(), protocol=Rounds(0.8, at_least=3, deadline=10.0, extra=0.5), privacy=SecureSum(threshold=0.7)
    ),
}

T = TypeVar("T")

AT_FIRST = "abc"
COMMITS = 8

WHATS = (
    *["train"] * 8,
    *["answer"] * 8,
    *["lose", "lose all opinions", "lose an opinion", "senseless opinion", "wake", "leave", "join"],
    *["nan", "huge", "short", "wrong layers", "again", "progress", "roll back"],
    *["sum", "sum", "sum of fewer", "wrong sum", "lose a sum"],
)
"""What may happen; frequent actions are listed several times."""


class Engine:
    """Keep the contract, `Failed` for the tasks of a leaver included, and check the laws after each event."""

    def __init__(self, make: Callable[[], Algorithm]) -> None:
        self.log = Log(
            {
                "layout": LAYOUT,
                "ending": Ending(commits=COMMITS),
                "evaluation": Evaluation(every=2, seconds=20.0, at="learners"),
                "learners": len(AT_FIRST),
                "seed": 0,
                "initial": torch.linspace(-1, 1, LAYOUT.size),
            }
        )
        self.controller = fresh(make(), self.log)
        self.there: set[str] = set()
        self.out: dict[int, Train] = {}
        self.questions: dict[int, Evaluate] = {}
        self.sums: dict[int, AddUp] = {}
        self.closed: list[Train | Evaluate | AddUp] = []
        self.gone: set[int] = set()
        """Training tasks whose learner has left: they can only fail."""
        self.silent: dict[int, set[str]] = {}
        """Sites of each question that have left: their opinions will not come."""
        self.wakes: list[str] = []
        self.numbers: set[int] = set()
        self.taken: set[int] = set()
        """Tasks whose update was found good."""
        self.refused: set[int] = set()
        self.committed: list[int] = []
        self.version = 0
        self.versions: dict[int, torch.Tensor] = {}
        """The numbers of versions so far; one event may have made several, of which the last is here."""
        self.rolled_back_at_the_end = 0
        """Versions more than the ending allows: the last one can be taken back while it is scored."""
        self.scored: set[int] = set()
        self.cancelled: set[int] = set()
        self.stopped = False
        for name in AT_FIRST:
            self.join(name)

    # ------------------------------------------------------------------------------------------------ what may happen

    def happen(self, what: str, which: int) -> None:
        """Do it to the n-th of those to which it can be done, if there is one."""
        match what:
            case "train" | "nan" | "huge" | "short" | "wrong layers":
                if task := self._one([task for task in self.out if task not in self.gone], which):
                    self.train(task[0], what)
            case "lose":
                if task := self._one(self.out, which):
                    self.fail(task[0])
            case "answer" | "lose an opinion" | "senseless opinion":
                if task := self._one(self.questions, which):
                    self.answer(task[0], what, which)
            case "lose all opinions":
                if task := self._one(self.questions, which):
                    self.fail(task[0])
            case "sum" | "sum of fewer" | "wrong sum":
                if task := self._one(self.sums, which):
                    self.add_up(task[0], what, which)
            case "lose a sum":
                if task := self._one(self.sums, which):
                    self.fail(task[0])
            case "again":
                if asked := self._one(self.closed, which):
                    self.again(asked[0], which)
            case "progress":
                if task := self._one(self.out, which):
                    self.tell(Progress(task[0], 1 + which))
            case "wake":
                if tag := self._one(self.wakes, which):
                    self.wakes.remove(tag[0])
                    self.tell(Woke(tag[0]))
            case "roll back":
                if version := self._one([one for one in self.versions if one < self.version], which):
                    self.roll_back(version[0])
            case "leave":
                if name := self._one(sorted(self.there), which):
                    self.leave(name[0])
            case "join":
                if name := self._one(sorted(set(LEARNERS) - self.there), which):
                    self.join(name[0])

    @staticmethod
    def _one(things: Iterable[T], which: int) -> list[T]:
        things = list(things)
        return [things[which % len(things)]] if things else []

    def join(self, name: str) -> None:
        place = LEARNERS.index(name)
        self.there.add(name)
        self.tell(Joined(name, 10 + place, validation=place, test=scored_on(name), fresh=False))

    def leave(self, name: str) -> None:
        self.there.remove(name)
        self.gone |= {task for task, train in self.out.items() if train.learner == name}
        for task, question in self.questions.items():
            if name in question.sites:
                self.silent[task].add(name)
        self.tell(Left(name))

    def roll_back(self, version: int) -> None:
        """Roll back to a version, as an operator does; opinions on updates are no longer waited for."""
        name = f"r{version}"
        self.rolled_back_at_the_end += self.controller.state.ending is not None
        self.controller.models.write(name, self.versions[version].clone())
        for task in [task for task, question in self.questions.items() if not question.record]:
            self.closed.append(self.questions.pop(task))
        said = self.tell(RolledBack(version, name))
        if self.stopped:
            return
        state, models = self.controller.state, self.controller.models
        (restored,) = [c.record for c in said if isinstance(c, Keep) and isinstance(c.record, Restored)]
        assert (restored.version, restored.earlier) == (self.version, version)
        assert torch.equal(models.read(f"v{self.version}"), self.versions[version])
        assert not state.queue
        assert not set(self.out) - {command.task for command in said if isinstance(command, Train)} - self.cancelled

    def fail(self, task: int) -> None:
        asked = self.out.pop(task, None) or self.questions.pop(task, None) or self.sums.pop(task)
        self.closed.append(asked)
        self.tell(Failed(task, "left" if task in self.gone else "lost", Traffic(down=4)))

    def train(self, task: int, how: str = "train") -> None:
        train = self.out.pop(task)
        self.closed.append(train)
        sent = train.plan.sends(LAYOUT.names)
        draw = np.random.default_rng(task)
        vector = torch.from_numpy(draw.normal(size=LAYOUT.size)).float()
        for layer in LAYOUT.layers:
            if layer.name not in sent:  # what was not sent may hold anything
                vector[layer.start : layer.stop] = math.nan
        hidden = isinstance(self.controller.algorithm.privacy, SumInEngine)
        good = how in ("train", "huge") or (hidden and how != "wrong layers")
        match how:
            case "nan" if sent:
                vector[LAYOUT.layers[LAYOUT.index(sent[0])].start] = math.nan
            case "huge":
                vector *= 1e30
            case "short":
                vector = vector[:-1]
            case "wrong layers":
                sent = (*sent, "2")
            case "nan":
                good = True
        if good:
            self.taken.add(task)
        else:
            self.refused.add(task)
        name = "" if hidden else f"t{task}"
        if not hidden:
            self.controller.models.write(name, vector)
        right, wrong, steps = (int(n) for n in draw.integers(1, 9, size=3))
        metrics = Metrics(1.0, (), confusion(right, wrong), gradient_norm=float(draw.random()))
        self.tell(Trained(task, name, sent, steps, metrics, Traffic(36, 36)))

    def answer(self, task: int, how: str = "answer", which: int = 0) -> None:
        """Deliver the opinions of all present sites; one may be lost or invalid."""
        question = self.questions.pop(task)
        self.closed.append(question)
        if question.pooled:
            self.pool(question, how, which)
            return
        opinions = {site: None if site in self.silent[task] else opinion(question, site) for site in question.sites}
        (one,) = self._one(question.sites, which)
        if how == "lose an opinion":
            opinions[one] = None
        senseless = how == "senseless opinion" and isinstance(opinions[one], Scored)
        if senseless:
            opinions[one] = confusion(-1, 3)
        before, last = self.controller.state.traffic.get(down := f"{kind(question)} down models", 0), self.version
        said = self.tell(
            Evaluated(
                task,
                collect_answers(question.probe, [*opinions.values()]),
                Traffic(36 * len(opinions), 0, len(opinions)),
            )
        )
        records = [c.record for c in said if isinstance(c, Keep)]
        refused = [one.learner for one in records if isinstance(one, Refused) and one.task == task]
        assert refused == ([one] if senseless else []), "refused by name, and nobody else"
        assert self.controller.state.traffic[down] == before + len(opinions)
        if question.record:
            counted = [o for o in opinions.values() if isinstance(o, Scored) and not (senseless and o is opinions[one])]
            scores = [c.record for c in said if isinstance(c, Keep) and isinstance(c.record, Scores)]
            assert [record.sites for record in scores] == ([len(counted)] if counted else [])
            assert all(record.version <= last for record in scores)

    def pool(self, question: Evaluate, how: str, which: int) -> None:
        """Scores were added up; perhaps somebody dropped out, or sent another number of examples than it has."""
        silent = {*self.silent[question.task], *(self._one(question.sites, which) if how == "lose an opinion" else ())}
        answer = pooled(question, [site for site in question.sites if site not in silent], how == "senseless opinion")
        if len(answer.rows) < 3:
            self.tell(Failed(question.task, "too few have shared secrets", Traffic(down=4)))
            return
        said = self.tell(Pooled(question.task, answer, Traffic(36 * len(question.sites), 0, len(question.sites))))
        records = [c.record for c in said if isinstance(c, Keep)]
        assert [one.sites for one in records if isinstance(one, Scores)] == (
            [] if how == "senseless opinion" else [len(answer.rows)]
        )

    def add_up(self, task: int, how: str = "sum", which: int = 0) -> None:
        """Deliver a sum of all learners, or one without a learner, or one with another weight."""
        asked = self.sums.pop(task)
        self.closed.append(asked)
        there = [place for place in range(len(asked.tasks)) if how != "sum of fewer" or place != which % 3]
        weight = sum(asked.weights[place] for place in there) + (how == "wrong sum")
        name, before = f"s{task}", self.version
        self.controller.models.write(name, torch.full((LAYOUT.size,), float(task)))
        self.tell(Summed(task, name, tuple(asked.tasks[place] for place in there), weight, Traffic(36, 36, len(there))))
        needed = max(3, math.ceil(0.7 * (len(asked.tasks) + len(asked.absent))))
        refused = how == "wrong sum" or len(there) < needed or task in self.cancelled
        if refused:
            assert self.refused >= set(asked.tasks)
        assert self.version == before + (not refused)

    def again(self, asked: Train | Evaluate | AddUp, which: int) -> None:
        """Deliver an answer again, or a failure of an answered task: both are late."""
        before = self._standing()
        if which % 3 == 0:
            said = self.tell(Failed(asked.task, "lost"))
        elif isinstance(asked, Evaluate) and asked.pooled:
            said = self.tell(Pooled(asked.task, pooled(asked, asked.sites)))
        elif isinstance(asked, Evaluate):
            said = self.tell(
                Evaluated(asked.task, collect_answers(asked.probe, [opinion(asked, site) for site in asked.sites]))
            )
        else:
            name = f"t{asked.task} again"
            self.controller.models.write(name, torch.full((LAYOUT.size,), 1e6))
            if isinstance(asked, AddUp):
                said = self.tell(Summed(asked.task, name, asked.tasks, sum(asked.weights)))
            else:
                said = self.tell(Trained(asked.task, name, LAYOUT.names, 99))
        if not self.stopped:
            assert [type(command) for command in said] == [Keep], f"a late answer had consequences: {said}"
            assert self._standing() == before

    def _standing(self) -> tuple[object, ...]:
        state = self.controller.state
        return state.version, state.rounds, state.committed, list(state.out), list(state.inquiries), len(state.queue)

    # ----------------------------------------------------------------------------------------------------- the laws

    def tell(self, event: Event) -> list[Command]:
        state, models = self.controller.state, self.controller.models
        self.log.hear(event, models)
        commands = self.controller.handle(event)
        self.log.commands.append(commands)
        assert not (self.stopped and commands), f"it goes on after it stopped: {commands}"
        for command in commands:
            self.obey(command)
        if self.stopped:
            return commands
        validate(state, models)
        # a part's own vectors have a slash in their names; those that it does not hold it drops itself
        unnamed = {name for name in models.names() if "/" not in name} - state.vectors.counts.keys()
        assert not unnamed, "the store holds vectors that are not needed"
        assert state.vectors.counts.keys() <= set(models.names()), "the store lacks vectors that are needed"
        held = Counter(name for names in state.vectors.held.values() for name in names)
        assert held == held_by_parts(state)
        assert set(state.out) == set(self.out), "engine and controller disagree on what is out"
        assert set(state.inquiries) == set(self.questions)
        assert self.sums.keys() == ({state.sum.task} if state.sum is not None else set())
        assert torch.isfinite(models.read(state.model.name)).all()
        assert state.version == self.version
        self.versions[self.version] = models.read(state.model.name).clone()
        if not isinstance(self.controller.algorithm.protocol, Relay):
            waiting = set(state.queue) | {update.task for update in (state.sum.updates if state.sum else ())}
            assert self.taken == waiting | set(self.committed) | (self.refused & self.taken), "an update was lost"
        self.no_hang()
        return commands

    def obey(self, command: Command) -> None:
        """Accept a command, if an engine can carry it out."""
        models = self.controller.models.names()
        match command:
            case Train(task, learner, model):
                assert learner in self.there, f"{learner} is not there"
                assert learner not in {train.learner for train in self.out.values()}, f"{learner} is at work"
                assert task not in self.numbers
                assert model.name in models
                self.numbers.add(task)
                self.out[task] = command
            case Evaluate(task, sites, model, reference=reference):
                assert sites, "nobody is asked"
                assert len(set(sites)) == len(sites), f"a site is asked twice: {sites}"
                assert {*sites} <= {HOME, *self.there}, f"one of {sites} is not there"
                assert task not in self.numbers
                assert {model.name} | ({reference.name} if reference else set()) <= set(models)
                self.numbers.add(task)
                self.questions[task] = command
                self.silent[task] = set()
            case AddUp():
                self.obey_sum(command)
            case Finish(task):
                assert task in self.out
            case Cancel(task):
                assert task in self.out or task in self.sums
                self.cancelled.add(task)
            case Wake(after, tag):
                assert after > 0
                self.wakes.append(tag)
            case Stop():
                self.stopped = True
            case Keep(Committed() as record):
                assert record.version == self.version + 1
                self.version = record.version
                assert not set(record.tasks) & set(self.committed), "an update was applied twice"
                assert set(record.tasks) <= self.taken, "an update was applied that was never trained, or not well"
                assert not set(record.tasks) & self.refused, "an update was applied that was refused"
                self.committed += record.tasks
                assert all(math.isfinite(w) and w >= 0 for weights in record.weights for w in weights)
                assert all(s >= 0 for s in record.stale_versions + record.stale_steps)
            case Keep(Restored(version)):
                assert version == self.version + 1
                self.version = version
            case Keep(Refused(task, learner)):
                if learner:
                    assert task not in self.committed
                    self.refused.add(task)
            case Keep(Scores(version=version)):
                assert version not in self.scored, "a version was scored twice"
                self.scored.add(version)

    def obey_sum(self, command: AddUp) -> None:
        task, learners = command.task, set(command.learners)
        assert task not in self.numbers
        assert not self.sums, "one round at a time is added up"
        assert len(command.tasks) == len(learners) == len(command.weights) >= 3
        assert not learners & set(command.absent)
        assert set(command.tasks) <= self.taken
        assert command.start in self.controller.models.names()
        self.numbers.add(task)
        self.sums[task] = command

    def no_hang(self) -> None:
        """Check that some task is out whenever learners are present."""
        state, protocol = self.controller.state, self.controller.algorithm.protocol
        if self.sums:
            return
        enough = len(self.there) >= (protocol.at_least if isinstance(protocol, Rounds) else 1)
        asking = any(not question.record for question in self.questions.values())
        if not state.begun:
            assert len(self.there) < len(AT_FIRST)
        elif state.ending is not None:
            assert self.questions, "it is about to end, and waits for nothing"
        elif enough and not asking:
            assert self.out, "nobody is at work, and nothing will ever happen"

    def drain(self) -> None:
        """With all learners present and answering, the run has to reach its end."""
        for name in LEARNERS:
            if name not in self.there:
                self.join(name)
        for _ in range(600):
            if self.stopped:
                return
            first = min((*self.out, *self.questions, *self.sums))
            if first in self.gone:
                self.fail(first)
            elif first in self.out:
                self.train(first)
            elif first in self.sums:
                self.add_up(first)
            else:
                self.answer(first)
        raise AssertionError(f"no end after 600 events: {self.controller.state}")


def kind(question: Evaluate) -> str:
    return "score" if question.record else "evaluate"


# ------------------------------------------------------------------------------------------------------- the histories

histories = st.lists(st.tuples(st.sampled_from(WHATS), st.integers(0, 11)), max_size=100)
quickly = settings(
    max_examples=30,  # `make fuzz` makes ten thousand others
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def live(name: str, history: list[tuple[str, int]]) -> Engine:
    engine = Engine(ALGORITHMS[name])
    for what, which in history:
        if engine.stopped:
            break
        engine.happen(what, which)
    engine.drain()
    state = engine.controller.state
    assert state.version == COMMITS + engine.rolled_back_at_the_end == engine.version
    return engine


@pytest.mark.parametrize("name", ALGORITHMS)
@quickly
@given(history=histories)
def test_the_laws_hold_in_every_history(name: str, history: list[tuple[str, int]]) -> None:
    live(name, history)


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(quickly, max_examples=4)
@given(history=histories, share=st.floats(0, 1))
def test_a_crash_in_any_history(
    name: str, history: list[tuple[str, int]], share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    engine = live(name, history)
    engine.log.end(engine.controller)
    point = int(share * (len(engine.log.events) - 1))
    assert crash(ALGORITHMS[name], engine.log, {point}, tmp_path) is None


def test_a_quiet_history_reaches_its_end() -> None:
    for name in ALGORITHMS:
        live(name, [])


def test_histories_hold_what_may_go_wrong() -> None:
    """The histories are not vacuous: they hold every command, and refused, late and abandoned updates."""
    draw = np.random.default_rng(0)
    commands, events = set(), set()
    missing = senseless = 0
    for name in ALGORITHMS:
        refused = set()
        for _ in range(3):
            engine = live(name, [(WHATS[draw.integers(len(WHATS))], int(draw.integers(12))) for _ in range(100)])
            commands |= {type(command) for said in engine.log.commands for command in said}
            events |= {type(event) for event, _ in engine.log.events}
            questions = {asked.task for asked in engine.closed if isinstance(asked, Evaluate)}
            refused |= engine.refused - questions
            senseless += len(engine.refused & questions)
            answers = [event.results for event, _ in engine.log.events if isinstance(event, Evaluated)]
            missing += sum(len({opinion is None for opinion in opinions}) == 2 for opinions in answers)
        assert refused
    assert missing > 20, "opinions should be missing among others"
    assert senseless > 10, "and some should make no sense"
    assert commands == {*get_args(Command)}
    assert events == {*get_args(Event)}


def test_a_history_in_which_a_learner_drops_out_of_a_sum() -> None:
    """Five take part in the second round, and four are in its sum."""
    everybody = [("join", 0)] * 2 + [("sum", 0)] + [("train", 0)] * 5
    engine = live("secure sums", [("train", 0)] * 3 + everybody + [("sum of fewer", 1)])
    sizes = [len(event.tasks) for event, _ in engine.log.events if isinstance(event, Summed)]
    assert sizes[:2] == [3, 4]


def held_by_parts(state: State) -> Counter[str]:
    """Vectors that parts remember to hold, by a walk over what they remember."""
    memories = [memory for memory in state.memory.values() if isinstance(memory, CommunityMemory)]
    return Counter({name for memory in memories for latest in memory.latest.values() for name, _ in latest.values()})

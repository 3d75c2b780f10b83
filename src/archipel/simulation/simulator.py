"""The simulator: a virtual clock, and many learners in one process.

Law of the clock: a heap keyed (time, counter), so that what happens at the same time happens in the order it was
scheduled. Tasks that are out have fixed inputs, so they wait unbuilt until the clock needs one of them; then all that
are out are built together.
"""

from __future__ import annotations

import heapq
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from archipel.core.controller import Controller
from archipel.core.randomness import generator
from archipel.core.records import Record, Stamped
from archipel.core.types import (
    HOME,
    Cancel,
    Command,
    Consistency,
    Evaluate,
    Evaluated,
    Event,
    Failed,
    Finish,
    Joined,
    Keep,
    Left,
    Opinions,
    Progress,
    Result,
    Role,
    Score,
    Stop,
    Tallies,
    Traffic,
    Train,
    Trained,
    Wake,
    Woke,
)
from archipel.learner.batches import epochs_of, steps_after, steps_of_epoch
from archipel.learner.learner import Job, Learner, Work
from archipel.learner.probes import consistency, score, score_parts
from archipel.learner.training import report
from archipel.simulation.executors.choice import Execution, threads
from archipel.simulation.executors.fork_pool import Errand
from archipel.simulation.executors.native import Native, Trials
from archipel.simulation.fleet import Group
from archipel.simulation.network import Wire

AHEAD = 1 << 26
"""Parameters of the models that are trained before their time has come: they wait in memory."""
WORTH_AN_ERRAND = 5_000_000
"""Multiplications of trying a model from which it is worth another process's while."""


@dataclass(frozen=True, slots=True)
class Arrives:
    """A training task's answer reaches the controller."""

    task: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The last of the opinions that were asked for reaches the controller."""

    task: int


@dataclass(frozen=True, slots=True)
class EpochEnds:
    """A learner that is watched has ended an epoch."""

    task: int


@dataclass(frozen=True, slots=True)
class Goes:
    """A learner goes away for a while."""

    learner: str


@dataclass(frozen=True, slots=True)
class Returns:
    """A learner is back."""

    learner: str


Occurrence: TypeAlias = Event | Arrives | Answered | EpochEnds | Goes | Returns


@dataclass(slots=True)
class Site:
    """A learner and how it behaves."""

    learner: Learner
    group: Group
    role: Role = "train"
    away: int = 0
    """Times it went away: the counter of its randomness."""
    there: bool = True


@dataclass(slots=True)
class Flight:
    """A training task on its way."""

    train: Train
    down: int
    """Bytes that carried it to the learner."""
    job: Job | None = None
    """None while it waits unbuilt."""
    watched: bool = False
    """It goes epoch by epoch, because its end is not known or may be called for."""
    ended: int = 0
    """Epochs that have ended on the virtual clock; the job may be one ahead."""
    before: Tensor | None = None
    """The model when that epoch had ended, while the job is ahead."""
    finishing: bool = False
    arriving: bool = False
    lost: bool = False
    """It will not be trained: it was lost on its way."""


@dataclass(slots=True)
class Asked:
    """An evaluation on its way: what every site will say, and when that will be there."""

    sites: tuple[str, ...]
    due: list[float]
    traffic: Traffic
    opinions: Opinions | None = None
    """None while another process works them out."""
    missing: list[int] = field(default_factory=list)
    """Places of opinions that are lost, or whose sites have left."""


@dataclass
class Clock:
    """The heap of what is to come."""

    now: float = 0.0
    counter: int = 0
    heap: list[tuple[float, int, Occurrence]] = field(default_factory=list)

    def after(self, seconds: float, occurrence: Occurrence) -> None:
        self.at(self.now + seconds, occurrence)

    def at(self, when: float, occurrence: Occurrence) -> None:
        heapq.heappush(self.heap, (when, self.counter, occurrence))
        self.counter += 1

    def next(self) -> Occurrence:
        self.now, _, occurrence = heapq.heappop(self.heap)
        return occurrence


class Observer(Protocol):
    """Looks on from outside and adds records of its own; what it remembers is saved with the run."""

    def before(self, simulator: Simulator, event: Event) -> None: ...

    def after(self, simulator: Simulator, commands: Sequence[Command]) -> Iterable[Record]: ...

    def save(self) -> dict[str, Any]: ...

    def load(self, saved: dict[str, Any]) -> None: ...


class Simulator:
    """An engine: carries the controller's commands to learners in this process and brings their events back."""

    def __init__(
        self,
        controller: Controller,
        work: Work,
        sites: Mapping[str, Site],
        execution: Execution,
        *,
        test: Tensor,
        stimuli: Tensor,
        seed: int = 0,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.controller = controller
        self.work = work
        self.sites = dict(sites)
        self.execution = execution
        self.test = test
        self.stimuli = stimuli
        self.seed = seed
        self.observers = tuple(observers)
        self.errand: Errand | Trials
        """Tries models meanwhile."""
        if isinstance(execution, Native):
            self.errand = Trials(execution, self._examples)
        else:
            self.errand = Errand(self._tallies)
        self.cores = torch.get_num_threads() if work.x.device.type == "cpu" and sys.platform == "linux" else 1
        self.clock = Clock()
        self.wire = Wire(work.layout)
        self.flights: dict[int, Flight] = {}
        self.pending: dict[int, str] = {}
        """Training tasks that are not answered yet, and their learners."""
        self.asked: dict[int, Asked] = {}
        """Evaluations that are not answered yet."""
        self.records: list[Stamped] = []
        self.handled = 0
        """Events handled so far."""
        self.stopped: str | None = None
        self.worked = 0.0
        """Real seconds that this process has worked on it."""

    # --------------------------------------------------------------------------------------------------- running

    def begin(self) -> None:
        """Let everybody join."""
        for name in sorted(self.sites):
            self.clock.after(0.0, self._joined(name, fresh=True))
            if self.sites[name].group.up is not None:
                self._leaves_later(name)

    def run(self, events: int | None = None, real_seconds: float | None = None) -> None:
        """Go on until the controller stops the run, for so many events, or until so much real time has passed."""
        began = time.monotonic()
        until = None if real_seconds is None else began + real_seconds
        try:
            with threads(self.execution.threads):
                self._run(events, until)
        finally:
            self.worked += time.monotonic() - began

    def _run(self, events: int | None, until: float | None) -> None:
        while self.stopped is None and (events is None or events > 0) and (until is None or time.monotonic() < until):
            if not self.clock.heap:
                raise RuntimeError(
                    f"Nothing is left to happen at {self.clock.now} s, version {self.controller.state.version}, and "
                    "the controller has not stopped: too few learners are there for its protocol to go on."
                )
            event = self._happen(self.clock.next())
            if event is not None:
                self._handle(event)
                events = None if events is None else events - 1

    def _handle(self, event: Event) -> None:
        self.handled += 1
        for observer in self.observers:
            observer.before(self, event)
        commands = self.controller.handle(event)
        evaluations = []
        for command in commands:
            match command:
                case Train():
                    self._train(command)
                case Evaluate():
                    evaluations.append(command)
                case Finish(task):
                    self._finish(task)
                case Cancel(task):
                    self._give_up(task, "cancelled")
                case Wake(after, tag):
                    self.clock.after(after, Woke(tag))
                case Keep(record):
                    self.records.append(Stamped(self.clock.now, record))
                case Stop(reason):
                    self.stopped = reason
        for observer in self.observers:
            self.records += [Stamped(self.clock.now, record) for record in observer.after(self, commands)]
        for evaluation in evaluations:
            self._evaluate(evaluation)

    def _happen(self, occurrence: Occurrence) -> Event | None:
        """What the controller hears of an occurrence, if anything."""
        match occurrence:
            case Arrives(task):
                return self._arrives(task)
            case Answered(task):
                return self._answered(task)
            case EpochEnds(task):
                return self._epoch_ends(task)
            case Goes(learner):
                return self._goes(learner)
            case Returns(learner):
                self.sites[learner].there = True
                self._leaves_later(learner)
                return self._joined(learner, fresh=False)
            case Failed(task):
                self.flights.pop(task, None)
                return None if self.pending.pop(task, None) is None else occurrence
            case _:
                return occurrence

    # -------------------------------------------------------------------------------------------------- learners

    def _joined(self, name: str, fresh: bool) -> Joined:
        site = self.sites[name]
        learner = site.learner
        return Joined(
            name,
            len(learner.train),
            len(learner.validation),
            len(learner.test),
            site.group.name,
            site.role,
            fresh,
        )

    def _leaves_later(self, name: str) -> None:
        site = self.sites[name]
        assert site.group.up is not None
        draw = generator(self.seed, "leaves", name, site.away)
        self.clock.after(float(draw.exponential(site.group.up)), Goes(name))

    def _goes(self, name: str) -> Left:
        site = self.sites[name]
        site.there = False
        site.away += 1
        for task in sorted(task for task, where in self.pending.items() if where == name):
            self._give_up(task, "left")
        self._silence(name)
        draw = generator(self.seed, "returns", name, site.away)
        self.clock.after(float(draw.exponential(site.group.down)), Returns(name))
        return Left(name)

    def _give_up(self, task: int, reason: str) -> None:
        flight = self.flights.pop(task, None)
        self.clock.after(0.0, Failed(task, reason, Traffic(flight.down if flight else 0)))

    def _is_lost(self, task: int, site: Site) -> bool:
        loss = site.group.loss
        return loss > 0 and generator(self.seed, "loss", task, site.learner.name).random() < loss

    # -------------------------------------------------------------------------------------------------- training

    def _train(self, command: Train) -> None:
        site = self.sites[command.learner]
        plan = command.plan
        down = self.wire.deliver(command.learner, command.model, site.learner.private)
        flight = Flight(command, down, watched=plan.cycle is not None or "progress" in plan.reports)
        self.pending[command.task] = command.learner
        begins = self.wire.seconds(site.group, down)
        if flight.watched:
            lasts = self._epoch_seconds(flight, 0)
        else:
            epochs = epochs_of(plan, len(site.learner.train))
            lasts = sum(self._epoch_seconds(flight, epoch) for epoch in range(epochs))
        self.flights[command.task] = flight
        if self._is_lost(command.task, site):
            flight.lost = True
            self.clock.after(begins + lasts, Failed(command.task, "lost", Traffic(down)))
        elif flight.watched:
            self.clock.after(begins + lasts, EpochEnds(command.task))
        else:
            self._arrives_later(flight, begins + lasts)

    def _arrives_later(self, flight: Flight, seconds: float) -> None:
        """Schedule the answer of a task whose training ends in so many seconds."""
        site = self.sites[flight.train.learner]
        plan, layout = flight.train.plan, self.work.layout
        up = layout.bytes(layout.indices(plan.sends(layout.names)))
        if any(asked.startswith("validation") for asked in plan.reports):
            seconds += self._evaluation_seconds(site, len(site.learner.validation))
        if any(asked.startswith("gradient norm") for asked in plan.reports):  # one more pass over its data
            seconds += steps_of_epoch(len(site.learner.train), plan.batch) * site.group.train_seconds
        self.clock.after(seconds + self.wire.seconds(site.group, up), Arrives(flight.train.task))

    def _epoch_seconds(self, flight: Flight, epoch: int) -> float:
        site, plan = self.sites[flight.train.learner], flight.train.plan
        examples = len(site.learner.train)
        steps = steps_after(plan, examples, epoch + 1) - steps_after(plan, examples, epoch)
        watching = plan.cycle is not None or "losses" in plan.reports
        looks = (2 if epoch == 0 else 1) if watching else 0  # the first epoch also looks at the received model
        seconds = steps * site.group.train_seconds * self._pace(flight.train.task, site)
        return seconds + looks * self._evaluation_seconds(site, len(site.learner.validation)) if looks else seconds

    def _pace(self, task: int, site: Site) -> float:
        """How many times its usual seconds a learner needs for this task."""
        varies = site.group.varies
        if not varies:
            return 1.0
        return math.exp(varies * generator(self.seed, "pace", task, site.learner.name).standard_normal())

    def _evaluation_seconds(self, site: Site, examples: int) -> float:
        return steps_of_epoch(examples, self.controller.algorithm.plan.batch) * site.group.evaluate_seconds

    def _build(self, flights: Iterable[Flight], epochs: int | None) -> None:
        """Train these together."""
        jobs = []
        for flight in flights:
            if flight.job is None:
                carried = self.controller.models.read(flight.train.model.name)
                learner = self.sites[flight.train.learner].learner
                flight.job = Job.begin(learner, self.work.layout, carried.to(self.work.x.device), flight.train.plan)
            if flight.watched:
                flight.before = flight.job.vector
            jobs.append(flight.job)
        self.execution.advance(jobs, epochs)
        if epochs is not None:  # how far they are is looked at at once
            self.execution.settle()

    def _arrives(self, task: int) -> Trained | Failed | None:
        flight = self.flights.pop(task, None)
        if flight is None:
            return None  # cancelled, or its learner has gone
        if flight.job is None:
            waiting = [f for f in self.flights.values() if f.job is None and not f.watched and not f.lost]
            self._build([flight, *waiting[: AHEAD // self.work.layout.size]], None)
        job = flight.job
        assert job is not None
        self.execution.settle(job)
        del self.pending[task]
        epochs = flight.ended if flight.watched else job.epochs
        ahead = job.epochs > epochs
        vector = flight.before if ahead and flight.before is not None else job.vector
        vector = vector.cpu()
        name, sent = f"t{task}", job.plan.sends(self.work.layout.names)
        if job.plan.private and not job.learner.keep_private(self.work.layout, job.plan.private, vector):
            return Failed(task, "its private layers hold numbers that are not finite", Traffic(flight.down))
        self.controller.models.write(name, vector)
        return Trained(
            task=task,
            model=name,
            layers=sent,
            steps=job.steps_at(epochs),
            metrics=report(self.work, job, vector.to(self.work.x.device), epochs),
            traffic=Traffic(flight.down, self.wire.send(flight.train.learner, name, sent)),
        )

    # ------------------------------------------------------------------------------------- tasks that are watched

    def _epoch_ends(self, task: int) -> Progress | None:
        flight = self.flights.get(task)
        if flight is None or flight.arriving:
            return None
        if flight.job is None or flight.job.epochs == flight.ended:
            self._build([f for f in self.flights.values() if self._can_go_ahead(f)], 1)
        job = flight.job
        assert job is not None
        flight.ended += 1
        if flight.finishing or job.done:
            flight.arriving = True
            self._arrives_later(flight, 0.0)
            return None
        self.clock.after(self._epoch_seconds(flight, flight.ended), EpochEnds(task))
        return Progress(task, job.steps) if "progress" in job.plan.reports else None

    @staticmethod
    def _can_go_ahead(flight: Flight) -> bool:
        if not flight.watched or flight.arriving or flight.lost:
            return False
        return flight.job is None or (flight.job.epochs == flight.ended and not flight.job.done)

    def _finish(self, task: int) -> None:
        """Report the last epoch that has ended; the first one, if none has."""
        flight = self.flights.get(task)
        if flight is None or flight.arriving or flight.lost:
            return
        flight.finishing = True
        if flight.watched and flight.ended > 0:
            flight.arriving = True
            self._arrives_later(flight, 0.0)

    # ------------------------------------------------------------------------------------------------ evaluation

    def _evaluate(self, command: Evaluate) -> None:
        """Ask all sites at once: what they will say is known now, and when it will be there."""
        down = self._shown(command)
        asked = Asked(command.sites, self._due(command, down), Traffic(sum(down), 0, sum(map(bool, down))))
        if self._lossy and not command.record:
            asked.missing += [
                place
                for place, name in enumerate(command.sites)
                if name != HOME and self._is_lost(command.task, self.sites[name])
            ]
        if isinstance(command.probe, Consistency):
            asked.opinions = (self._consistency(command, command.probe),) * len(command.sites)
        elif self._goes_on_an_errand(command, command.probe):
            vector = self.controller.models.read(command.model.name)
            self.errand.begin(command.task, vector, command.sites, command.probe)
        else:
            asked.opinions = self._scores(command, command.probe)
        self.asked[command.task] = asked
        self.clock.at(max(asked.due), Answered(command.task))

    def _goes_on_an_errand(self, command: Evaluate, probe: Score) -> bool:
        """Is there a core for it, time until it is needed, and enough to do? By its arithmetic, not by timing.

        In C everything goes that can: its sums are its own, and must not depend on the cores there are.
        """
        if self._private(command.sites):
            return False
        if isinstance(self.errand, Trials):
            return not probe.bins
        if command.record or self.execution.threads != 1 or self.cores < 2:
            return False
        examples = sum(map(self._part_sizes[probe.part].__getitem__, command.sites))
        return examples * self.work.layout.size > WORTH_AN_ERRAND

    def _private(self, sites: Sequence[str]) -> bool:
        return any(name != HOME and self.sites[name].learner.private for name in sites)

    def _tallies(self, vector: Tensor, sites: Sequence[str], probe: Score) -> Tallies:
        return score_parts(self.work, vector, [self._examples(name, probe) for name in sites], probe.bins)

    def _scores(self, command: Evaluate, probe: Score) -> Opinions:
        """The model on every site's part, in one pass where no site has private layers."""
        vector = self._vector(command.model.name)
        if not self._private(command.sites):
            return self._tallies(vector, command.sites, probe)
        found = []
        for name in command.sites:
            own = vector if name == HOME else self.sites[name].learner.with_private(self.work.layout, vector)
            found.append(score(self.work, own, self._examples(name, probe), probe.bins))
        return tuple(found)

    def _shown(self, command: Evaluate) -> list[int]:
        """Bytes that showing the model to each site moves; at home it is there already."""
        away = [(name, self.sites[name].learner.private) for name in command.sites if name != HOME]
        kind = "score down" if command.record else "evaluate down"
        moved = iter(self.wire.show(away, command.model, kind))
        return [0 if name == HOME else next(moved) for name in command.sites]

    def _due(self, command: Evaluate, down: Sequence[int]) -> list[float]:
        """When each site's opinion is there; what is only written down costs no virtual time, nor does home."""
        now = self.clock.now
        if command.record or not isinstance(command.probe, Score):
            return [now] * len(command.sites)
        trials = self._trials[command.probe.part]
        return [
            now + (trial if group is None else self.wire.seconds(group, amount) + group.latency + trial)
            for (trial, group), amount in zip(map(trials.__getitem__, command.sites), down, strict=True)
        ]

    @cached_property
    def _trials(self) -> dict[str, dict[str, tuple[float, Group | None]]]:
        """By part and site: the seconds until its opinion is there, without those of its group if that is given."""
        found: dict[str, dict[str, tuple[float, Group | None]]] = {}
        for part, sizes in self._part_sizes.items():
            found[part] = {HOME: (0.0, None)}
            for name, site in self.sites.items():
                group, seconds = site.group, self._evaluation_seconds(site, sizes[name])
                if group.bandwidth is None:  # it does not depend on what has to be sent
                    found[part][name] = (self.wire.seconds(group, 0) + group.latency + seconds, None)
                else:
                    found[part][name] = (seconds, group)
        return found

    @cached_property
    def _part_sizes(self) -> dict[str, dict[str, int]]:
        """Examples that a model is tried on, by part and site."""
        learners = {name: site.learner for name, site in self.sites.items()}
        return {
            "validation": {HOME: 0, **{name: len(learner.validation) for name, learner in learners.items()}},
            "test": {HOME: len(self.test), **{name: len(learner.test) for name, learner in learners.items()}},
        }

    @cached_property
    def _lossy(self) -> bool:
        """Does anything ever get lost?"""
        return any(site.group.loss > 0 for site in self.sites.values())

    def _silence(self, name: str) -> None:
        """A site has gone: the opinions it has not given yet will not come, and nobody waits for them."""
        for task, asked in self.asked.items():
            if name in asked.sites and asked.due[place := asked.sites.index(name)] > self.clock.now:
                asked.missing.append(place)
                asked.due[place] = self.clock.now
                self.clock.at(max(asked.due), Answered(task))

    def _answered(self, task: int) -> Evaluated | None:
        asked = self.asked.get(task)
        if asked is None:
            return None
        opinions = self._settled(task, asked)
        if asked.missing:
            opinions = tuple(None if place in asked.missing else told for place, told in enumerate(opinions))
        del self.asked[task]
        return Evaluated(task, opinions, asked.traffic)

    def settle(self) -> None:
        """Have everything at hand that other processes are working on."""
        self.execution.settle()
        for task, asked in self.asked.items():
            self._settled(task, asked)

    def _settled(self, task: int, asked: Asked) -> Opinions:
        if asked.opinions is None:
            asked.opinions = self.errand.result(task)
        return asked.opinions

    def _vector(self, name: str) -> Tensor:
        return self.controller.models.read(name).to(self.work.x.device)

    def _examples(self, name: str, probe: Score) -> Tensor:
        if name == HOME:
            return self.test
        learner = self.sites[name].learner
        return learner.validation if probe.part == "validation" else learner.test

    def _consistency(self, command: Evaluate, probe: Consistency) -> Result:
        assert command.reference is not None
        mine, theirs = self._vector(command.model.name), self._vector(command.reference.name)
        return consistency(self.work, mine, theirs, self.stimuli, probe.distance)

"""The simulator: an engine with a virtual clock and all learners on one machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from torch import Tensor

from archipel.core.controller import Controller
from archipel.core.parts.privacy import SumInEngine
from archipel.core.parts.secure_sum import SecureSum
from archipel.core.records import Record, Stamped
from archipel.core.types import (
    AddUp,
    Cancel,
    Command,
    Evaluate,
    Event,
    Failed,
    Finish,
    Keep,
    Left,
    Stop,
    Train,
    Wake,
    Woke,
)
from archipel.executors.interface import Executor
from archipel.learner.learner import TrainingContext
from archipel.runs.record_log import RecordLog
from archipel.simulation.availability import Availability
from archipel.simulation.clock import Answered, Arrives, Clock, EpochEnds, Goes, Occurrence, Returns, TrainingEnds
from archipel.simulation.evaluations import Evaluations
from archipel.simulation.example_budgets import ExampleBudgets
from archipel.simulation.flights import Flights
from archipel.simulation.network import Wire
from archipel.simulation.secure_sums import add_up
from archipel.simulation.simulated_sites import SimulatedSites


class Observer(Protocol):
    """Sees every event and adds records of its own; its memory is saved with the run."""

    def before(self, simulator: Simulator, event: Event) -> None:
        """Observe an event before the controller handles it."""

    def after(self, simulator: Simulator, commands: Sequence[Command]) -> Iterable[Record]:
        """Observe the controller's commands; return further records."""

    def save(self) -> dict[str, Any]:
        """Return what a resumed run needs."""

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""


class Simulator:
    """Carries the controller's commands to the learners and their events back, in the order of a virtual clock."""

    def __init__(
        self,
        controller: Controller,
        context: TrainingContext,
        sites: SimulatedSites,
        executor: Executor,
        *,
        test: Tensor,
        stimuli: Tensor,
        seed: int = 0,
        budgets: ExampleBudgets | None = None,
    ) -> None:
        self.controller = controller
        self.context = context
        self.sites = sites
        self.executor = executor
        self.seed = seed
        self.observers: tuple[Observer, ...] = ()
        self.clock = Clock()
        self.wire = Wire(context.layout)
        self.availability = Availability(self.clock, self.sites, seed)
        batch = controller.algorithm.plan.batch
        shared = (context, controller.models, self.sites, self.clock, self.wire, executor)
        optional = controller.algorithm.optional(context.layout)
        self.flights = Flights(
            *shared,
            wanted=controller.wanted,
            optional=optional,
            in_sums=isinstance(controller.algorithm.privacy, SumInEngine),
            evaluation_batch=batch,
            seed=seed,
            budgets=budgets,
        )
        privacy = controller.algorithm.privacy
        sums = privacy if isinstance(privacy, SecureSum) else None
        self.evaluations = Evaluations(*shared, test=test, stimuli=stimuli, batch=batch, seed=seed, sums=sums)
        self.records = RecordLog()
        self.handled = 0
        """Events handled so far."""
        self.stopped: str | None = None
        self.worked = 0.0
        """Real seconds that this process has worked on it."""

    def begin(self) -> None:
        """Let all learners join."""
        self.availability.begin()

    def run(self, events: int | None = None, real_seconds: float | None = None) -> None:
        """Handle this many events, or events for this long, or all until the controller stops the run."""
        began = time.monotonic()
        until = None if real_seconds is None else began + real_seconds
        last = None if events is None else self.handled + events
        with self.executor.running():
            try:
                while self.stopped is None and self.handled != last and (until is None or time.monotonic() < until):
                    event = self._next_event()
                    if event is not None:
                        self._handle(event)
            finally:
                self.worked += time.monotonic() - began

    def close(self) -> None:
        """Stop the executor's processes."""
        self.executor.close()

    def _next_event(self) -> Event | None:
        """Advance the clock; return the event that the controller gets, if the occurrence makes one."""
        if not self.clock.heap:
            raise RuntimeError(
                f"No events are scheduled at {self.clock.now} s, version {self.controller.state.version}, and the "
                "controller has not stopped: too few learners are online for its protocol to go on."
            )
        occurrence: Occurrence = self.clock.next()
        match occurrence:
            case Arrives(task):
                return self.flights.arrive(task)
            case Answered(task):
                return self.evaluations.answer(task)
            case EpochEnds(task):
                return self.flights.end_epoch(task)
            case TrainingEnds(task):
                self.flights.upload(task)
                return None
            case Goes(learner):
                return self._leave(learner)
            case Returns(learner):
                return self.availability.come_back(learner)
            case Failed(task) if self.controller.state.sum is None or self.controller.state.sum.task != task:
                return self.flights.fail(occurrence)
            case _:
                return occurrence

    def _leave(self, learner: str) -> Left:
        self.flights.give_up_all_of(learner)
        self.evaluations.leave(learner)
        return self.availability.go(learner)

    def _handle(self, event: Event) -> None:
        """Have the controller handle an event, and carry out its commands."""
        self.handled += 1
        for observer in self.observers:
            observer.before(self, event)
        commands = self.controller.handle(event)
        evaluations = []
        for command in commands:
            match command:
                case Train():
                    self.flights.train(command)
                case Evaluate():
                    evaluations.append(command)
                case AddUp():
                    self.clock.after(0.0, add_up(self.controller, self.wire, command))
                case Finish(task):
                    self.flights.finish(task)
                case Cancel(task):
                    self.flights.give_up(task, "cancelled")
                case Wake(after, tag):
                    self.clock.after(after, Woke(tag))
                case Keep(record):
                    self._record(record)
                case Stop(reason):
                    self.stopped = reason
        self.flights.start_early()
        for observer in self.observers:
            for record in observer.after(self, commands):
                self._record(record)
        for evaluation in evaluations:  # after the observers, which may need the models that are dropped next
            probed = self.evaluations.start(evaluation)
            if probed is not None:
                self._record(probed)

    def _record(self, record: Record) -> None:
        self.records.append(Stamped(self.clock.now, record))

    def save(self) -> dict[str, Any]:
        """Return what a resumed run needs beside its records; wait for everything that is being computed."""
        controller = self.controller
        self.flights.wait()
        return {
            "state": controller.state,
            "models": {name: controller.models.read(name) for name in controller.models.names()},
            "clock": self.clock.save(),
            "wire": self.wire.save(),
            "availability": self.availability.save(),
            "flights": self.flights.save(),
            "evaluations": self.evaluations.save(),
            "handled": self.handled,
            "stopped": self.stopped,
            "observers": [observer.save() for observer in self.observers],
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned, with the same settings; `records` is set by the caller."""
        controller = self.controller
        controller.state = saved["state"]
        for name in controller.models.names():
            controller.models.drop(name)
        for name, vector in saved["models"].items():
            controller.models.write(name, vector)
        self.clock.load(saved["clock"])
        self.wire.load(saved["wire"])
        self.availability.load(saved["availability"])
        self.flights.load(saved["flights"])
        self.evaluations.load(saved["evaluations"])
        self.handled, self.stopped = saved["handled"], saved["stopped"]
        for observer, memory in zip(self.observers, saved["observers"], strict=True):
            observer.load(memory)

"""Training tasks under way: when their answers arrive, and when they are computed.

A task's inputs are fixed when it is handed out, so it is not trained until the clock needs its result; then all tasks
that are out are trained together. An executor that trains them one by one elsewhere gets as many as it has room for at
any time, those first whose results are needed first. A task whose end is unknown (a validation cycle) or may be called
for (`Finish`) is trained epoch by epoch, at most one epoch ahead of the clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from archipel.core.state import Models
from archipel.core.types import Failed, Progress, Traffic, Train, Trained
from archipel.executors.interface import Executor
from archipel.learner.batches import epochs_of, steps_after, steps_of_epoch
from archipel.learner.example_budget import StepNoise
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.training import report
from archipel.simulation.attacks import Attackers, attack_of
from archipel.simulation.clock import Arrives, Clock, EpochEnds, TrainingEnds
from archipel.simulation.example_budgets import ExampleBudgets
from archipel.simulation.network import Wire
from archipel.simulation.simulated_sites import SimulatedSites
from archipel.simulation.site import Site

NOT_FINITE = "a private layer or kept vector of its learner holds numbers that are not finite"
AHEAD = 1 << 26
"""Parameters of all models that are trained ahead of the clock: they wait in memory."""


@dataclass(slots=True)
class Flight:
    """One training task under way."""

    train: Train
    down: int
    """Bytes that carried it to the learner."""
    job: Job | None = None
    """Its job; None until its training is needed."""
    by_epoch: bool = False
    """Its end is not known, or may be called for."""
    ended: int = 0
    """Epochs that have ended on the virtual clock; the job may be one ahead."""
    began: float = 0.0
    """When the epoch after those began."""
    before: Tensor | None = None
    """The model when that epoch began, while the job is ahead,"""
    kept_before: dict[str, Tensor] = field(default_factory=dict)
    """and what its learner kept then."""
    submitted: bool = False
    """Its next epoch is being trained."""
    finishing: bool = False
    arriving: bool = False
    lost: bool = False
    """Whether it is lost on its way, and never trained."""
    sends: tuple[str, ...] | None = None
    """Layers of its answer, where they were decided before it arrived."""

    @property
    def waits(self) -> bool:
        """Whether it is to be trained to its end, and was not submitted yet."""
        return not (self.job or self.by_epoch or self.lost)

    @property
    def trains_ahead(self) -> bool:
        """Whether its next epoch can be trained now."""
        if not self.by_epoch or self.submitted or self.arriving or self.lost:
            return False
        return self.job is None or (self.job.epochs == self.ended and not self.job.done)


class Flights:
    """All training tasks under way."""

    def __init__(
        self,
        context: TrainingContext,
        models: Models,
        sites: SimulatedSites,
        clock: Clock,
        wire: Wire,
        executor: Executor,
        *,
        wanted: Callable[[int], tuple[str, ...]],
        optional: frozenset[str],
        in_sums: bool,
        evaluation_batch: int,
        seed: int,
        budgets: ExampleBudgets | None = None,
    ) -> None:
        """wanted: the layers of a task's answer if it is sent now; optional: layers that may be left out then.

        in_sums: numbers are sent when they are added up, and not with the answers. evaluation_batch: examples of an
        evaluation step, on which its virtual seconds depend. budgets: where learners add noise to their gradients.
        """
        self.context = context
        self.models = models
        self.sites = sites
        self.clock = clock
        self.wire = wire
        self.executor = executor
        self.wanted = wanted
        self.optional = optional
        self.in_sums = in_sums
        self.evaluation_batch = evaluation_batch
        self.seed = seed
        self.budgets = budgets
        attacks = {
            name: attack_of(text) for name, text in sites.fleet.attacks(sites.data.rows.names, sites.assigned).items()
        }
        self.attackers = Attackers({name: attack for name, attack in attacks.items() if attack is not None}, seed)
        self.out: dict[int, Flight] = {}
        self.unanswered: dict[int, str] = {}
        """Unanswered tasks, and their learners."""
        self._queue: list[tuple[float, int]] = []
        """Heap of tasks that can be trained before their time, by the second when their results are needed."""
        self._ahead: set[int] = set()
        """Tasks that are being trained before their time."""
        self._tasks: dict[str, set[int]] = {}
        """The same by learner."""

    def train(self, command: Train) -> None:
        """Send a task to its learner and schedule what follows."""
        site, plan = self.sites[command.learner], command.plan
        down = self.wire.deliver(command.learner, command.model, site.learner.private)
        if plan.shift is not None:
            down += self.wire.shift(self.context.layout.shared_parameters(plan.trains, plan.private))
        flight = Flight(command, down, by_epoch=plan.cycle is not None or "progress" in plan.reports)
        self._note(command.task, command.learner)
        self.out[command.task] = flight
        epochs = 1 if flight.by_epoch else epochs_of(plan, len(site.learner.under(plan).train))
        seconds = self.wire.seconds(site.group, down) + sum(self._epoch_seconds(flight, i) for i in range(epochs))
        refusal = self._refusal(command)
        if refusal is not None:
            flight.lost = True
            self.clock.after(self.wire.seconds(site.group, down), Failed(command.task, refusal, Traffic(down)))
        elif site.drops(self.seed, command.task):
            flight.lost = True
            self.clock.after(seconds, Failed(command.task, "lost", Traffic(down)))
        elif flight.by_epoch:
            self.clock.after(seconds, EpochEnds(command.task))
        else:
            self._schedule_arrival(flight, seconds)
        self._enqueue(flight, self.clock.now + seconds)

    def _enqueue(self, flight: Flight, due: float) -> None:
        """Note a task that can be trained before its time."""
        # what a task begins with that its learner has of its own is known when the learner's task before has ended
        if self.executor.ahead and not flight.lost and (flight.job or not self._has_own(flight)):
            heapq.heappush(self._queue, (due, flight.train.task))

    def _has_own(self, flight: Flight) -> bool:
        """Return whether a task begins with something that its learner has of its own."""
        return bool(self.context.keeps or flight.train.plan.private)

    def _refusal(self, command: Train) -> str | None:
        """Return why a learner does not do this task, or None."""
        if self.budgets is None:
            return None
        return self.budgets.of(command.learner, self._examples(command.learner)).refusal(command.plan)

    def _examples(self, learner: str) -> int:
        return len(self.sites[learner].learner.train)

    def _noise(self, command: Train) -> StepNoise | None:
        if self.budgets is None:
            return None
        return self.budgets.noise(command.learner, self._examples(command.learner), command.plan, command.task)

    def _note(self, task: int, learner: str) -> None:
        self.unanswered[task] = learner
        self._tasks.setdefault(learner, set()).add(task)

    def _close(self, task: int) -> bool:
        """Note that a task is answered; return False if it was before."""
        learner = self.unanswered.pop(task, None)
        if learner is None:
            return False
        self._tasks[learner].remove(task)
        if not self._tasks[learner]:
            del self._tasks[learner]
        return True

    def finish(self, task: int) -> None:
        """Have a learner report at the end of its epoch: now, if one has just ended, or when the running one does."""
        flight = self.out.get(task)
        if flight is None or flight.arriving or flight.lost:
            return
        flight.finishing = True
        if flight.ended > 0 and flight.began == self.clock.now:
            flight.arriving = True
            self._schedule_arrival(flight, 0.0)

    def give_up(self, task: int, reason: str) -> None:
        """Answer a task with a failure."""
        flight = self._remove(task)
        if flight and flight.job:
            self.executor.drop(flight.job)
        self.clock.after(0.0, Failed(task, reason, Traffic(flight.down if flight else 0)))

    def give_up_all_of(self, learner: str) -> None:
        """Answer all tasks of a learner that has left with a failure."""
        for task in sorted(self._tasks.get(learner, ())):
            self.give_up(task, "left")

    def fail(self, event: Failed) -> Failed | None:
        """Return the failure of a task, unless the task was answered before."""
        self._remove(event.task)
        return event if self._close(event.task) else None

    def arrive(self, task: int) -> Trained | Failed | None:
        """Return a learner's answer; None if the task was cancelled or its learner has left."""
        flight = self._remove(task)
        if flight is None:
            return None
        if flight.job is None:
            self._start([flight, *self._waiting()])
        job = flight.job
        assert job is not None
        self.executor.wait(job)
        if flight.sends is None:
            flight.sends = self.wanted(task)
        self._close(task)
        epochs = flight.ended if flight.by_epoch else job.epochs
        vector, kept = job.vector, job.kept
        if job.epochs > epochs and flight.before is not None:
            vector, kept = flight.before, flight.kept_before
        return self._answer(flight, job, vector.cpu(), kept, epochs)

    def _remove(self, task: int) -> Flight | None:
        self._ahead.discard(task)
        return self.out.pop(task, None)

    def _waiting(self) -> list[Flight]:
        """Return tasks to train together with one whose result is needed now."""
        waiting = [flight for flight in self.out.values() if flight.waits]
        if self.executor.ahead:  # the rest is in the queue
            return [flight for flight in waiting if self._has_own(flight)][: self.executor.ahead]
        return waiting[: AHEAD // self.context.layout.size]

    def upload(self, task: int) -> None:
        """Decide which layers an answer holds when it is sent, and schedule its arrival."""
        flight = self.out.get(task)
        if flight is not None:
            flight.sends = self.wanted(task)
            up = self.context.layout.bytes(self.context.layout.indices(flight.sends))
            seconds = self.wire.seconds(self.sites[flight.train.learner].group, up)
            self.clock.after(seconds, Arrives(task))

    def end_epoch(self, task: int) -> Progress | None:
        """Note that an epoch has ended on the clock; return the progress if the plan asks for it."""
        flight = self.out.get(task)
        if flight is None or flight.arriving:
            return None
        if flight.trains_ahead:
            together = [flight] if self.executor.ahead else self.out.values()
            self._start_epoch([other for other in together if other.trains_ahead])
        job = flight.job
        assert job is not None
        self.executor.wait(job)
        self._ahead.discard(task)
        flight.submitted = False
        flight.ended += 1
        if flight.finishing or job.done:
            flight.arriving = True
            self._schedule_arrival(flight, 0.0)
            return None
        flight.began = self.clock.now
        seconds = self._epoch_seconds(flight, flight.ended)
        self._enqueue(flight, self.clock.now + seconds)
        self.clock.after(seconds, EpochEnds(task))
        return Progress(task, job.steps) if "progress" in job.plan.reports else None

    def wait(self) -> None:
        """Wait for all training that was started."""
        self.executor.wait()

    def start_early(self) -> None:
        """Submit the tasks whose results are needed next, as many as the executor has room for."""
        chosen = []
        while self._queue and len(self._ahead) < self.executor.ahead:
            flight = self.out.get(heapq.heappop(self._queue)[1])
            if flight is not None and (flight.waits or flight.trains_ahead):
                chosen.append(flight)
                self._ahead.add(flight.train.task)
        if whole := [flight for flight in chosen if not flight.by_epoch]:
            self._start(whole)
        if by_epoch := [flight for flight in chosen if flight.by_epoch]:
            self._start_epoch(by_epoch)

    def _start(self, flights: Sequence[Flight]) -> None:
        """Train these together, to their ends."""
        self.executor.submit([self._job(flight) for flight in flights])

    def _start_epoch(self, flights: Sequence[Flight]) -> None:
        """Train these together for one epoch."""
        jobs = [self._job(flight) for flight in flights]
        for flight, job in zip(flights, jobs, strict=True):
            flight.before, flight.kept_before, flight.submitted = job.vector, job.kept, True
        self.executor.submit(jobs, 1)

    def _job(self, flight: Flight) -> Job:
        if flight.job is None:
            carried = self.models.read(flight.train.model.name).to(self.context.x.device)
            learner, plan = self.sites[flight.train.learner].learner, flight.train.plan
            shift = None if plan.shift is None else self.models.read(plan.shift).to(self.context.x.device)
            key, objective = flight.train.key, self.context.objective
            noise = self._noise(flight.train)
            flight.job = Job.begin(learner, self.context.layout, carried, plan, key, shift, objective, noise)
            flight.job.task = flight.train.task
        return flight.job

    def _answer(
        self, flight: Flight, job: Job, vector: Tensor, kept: dict[str, Tensor], epochs: int
    ) -> Trained | Failed:
        task, layout = flight.train.task, self.context.layout
        name, sent, learner = f"t{task}", flight.sends, flight.train.learner
        assert sent is not None
        if not job.learner.keep(layout, job.plan.private, vector, self.context.kept_after(kept, vector)):
            return Failed(task, NOT_FINITE, Traffic(flight.down))
        model = vector
        if self.attackers.attacks:
            model = self.attackers.sent(learner, task, self.models.read(flight.train.model.name), vector)
        self.models.write(name, model)
        if self.in_sums:  # they are sent when they are added up
            self.wire.keep(learner, name, sent)
        metrics = report(self.context, job, vector.to(self.context.x.device), epochs)
        if self.budgets is not None:
            metrics = replace(metrics, spent=self.budgets.charge(learner, job.examples, job.plan, epochs))
        return Trained(
            task=task,
            model=name,
            layers=sent,
            steps=job.steps_at(epochs),
            metrics=metrics,
            traffic=Traffic(flight.down, 0 if self.in_sums else self.wire.send(learner, name, sent)),
        )

    def _schedule_arrival(self, flight: Flight, seconds: float) -> None:
        """Schedule the answer of a task whose training ends in this many seconds."""
        site = self.sites[flight.train.learner]
        plan, layout = flight.train.plan, self.context.layout
        sends, examples = plan.sends(layout.names), len(site.learner.under(plan).train)
        if any(asked.startswith("validation") for asked in plan.reports):
            seconds += self._validation_seconds(site)
        if any(asked.startswith("gradient norm") for asked in plan.reports):  # one more pass over its data
            seconds += steps_of_epoch(examples, plan.batch) * site.group.train_seconds
        if "training loss" in plan.reports:
            seconds += site.evaluation_seconds(examples, self.evaluation_batch)
        transfer = self.wire.seconds(site.group, layout.bytes(layout.indices(sends)))
        if transfer and not self.optional.isdisjoint(sends):
            self.clock.after(seconds, TrainingEnds(flight.train.task))
        else:
            self.clock.after(seconds + transfer, Arrives(flight.train.task))

    def _epoch_seconds(self, flight: Flight, epoch: int) -> float:
        site, plan = self.sites[flight.train.learner], flight.train.plan
        examples = len(site.learner.under(plan).train)
        steps: float = steps_after(plan, examples, epoch + 1) - steps_after(plan, examples, epoch)
        if self.context.descent is not None and not (plan.phases and plan.phase(epoch).of):
            steps = steps * self.context.descent.gradients
        seconds = steps * site.group.train_seconds * site.pace(self.seed, flight.train.task)
        if plan.cycle is None and "losses" not in plan.reports:
            return seconds
        looks = 2 if epoch == 0 else 1  # the received model's loss is computed before the first epoch
        return seconds + looks * self._validation_seconds(site)

    def _validation_seconds(self, site: Site) -> float:
        return site.evaluation_seconds(len(site.learner.validation), self.evaluation_batch)

    def save(self) -> dict[str, Any]:
        """Return what a resumed run needs, once nothing is being trained."""
        private = {name: private for name, private in self.sites.private.items() if private}
        kept = {name: kept for name, kept in self.sites.kept.items() if kept}
        return {
            "out": {task: _saved(flight) for task, flight in self.out.items()},
            "unanswered": self.unanswered,
            "private": private,
            "kept": kept,
            "movements": self.attackers.latest,
            "budgets": None if self.budgets is None else self.budgets.save(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        for name, private in saved["private"].items():
            self.sites.private[name].update(private)
        for name, kept in saved["kept"].items():
            self.sites.kept[name].update(kept)
        self.attackers.latest = saved["movements"]
        if self.budgets is not None:
            self.budgets.load(saved["budgets"])
        for task, learner in saved["unanswered"].items():
            self._note(task, learner)
        self.out = {task: self._loaded(flight) for task, flight in saved["out"].items()}
        for when, _, occurrence in self.clock.heap:
            if isinstance(occurrence, (Arrives, TrainingEnds, EpochEnds)) and occurrence.task in self.out:
                self._enqueue(self.out[occurrence.task], when)

    def _loaded(self, saved: dict[str, Any]) -> Flight:
        train, job = saved["train"], saved["job"]
        if job is not None:
            learner, noise = self.sites[train.learner].learner, self._noise(train)
            job = Job(learner=learner, plan=train.plan, key=train.key, noise=noise, task=train.task, **job)
        return Flight(**{**saved, "job": job})


def _saved(flight: Flight) -> dict[str, Any]:
    job = flight.job
    fields = ("train", "down", "by_epoch", "ended", "began", "before", "kept_before", "finishing", "arriving", "lost")
    progress = ("vector", "anchor", "epochs", "losses", "memory", "validation", "received", "shift", "kept")
    return {
        **{name: getattr(flight, name) for name in (*fields, "sends")},
        "job": None if job is None else {name: getattr(job, name) for name in progress},
    }

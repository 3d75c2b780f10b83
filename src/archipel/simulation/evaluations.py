"""Evaluations under way: what each site will answer, and when the answers arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from torch import Tensor

from archipel.core.parts.secure_sum import SecureSum
from archipel.core.pooled_scores import ScoreNumbers
from archipel.core.records import Probed
from archipel.core.state import Models
from archipel.core.types import (
    HOME,
    Consistency,
    Consistent,
    Evaluate,
    Evaluated,
    Failed,
    Pooled,
    Score,
    Scored,
    ScoreTable,
    SiteAnswers,
    Traffic,
)
from archipel.executors.interface import Executor, KnownResult, PendingResult
from archipel.learner.learner import TrainingContext
from archipel.learner.probes import Parts, consistency, score
from archipel.simulation.attacks import inflated
from archipel.simulation.clock import Answered, Clock
from archipel.simulation.fleet import Group
from archipel.simulation.network import Wire
from archipel.simulation.personal_models import scored_models
from archipel.simulation.secure_sums import pool_scores
from archipel.simulation.simulated_sites import SimulatedSites


@dataclass(slots=True)
class Evaluating:
    """One evaluation under way."""

    sites: tuple[str, ...]
    due: list[float]
    """When each site's answer arrives."""
    traffic: Traffic
    missing: list[int] = field(default_factory=list)
    """Positions of answers that were lost, or whose sites have left."""
    bins: int = 0
    """Of its histograms of scores."""
    pooled: bool = False
    """Whether the answers are added up in a secure sum."""


class Evaluations:
    """All evaluations under way."""

    def __init__(
        self,
        context: TrainingContext,
        models: Models,
        sites: SimulatedSites,
        clock: Clock,
        wire: Wire,
        executor: Executor,
        *,
        test: Tensor,
        stimuli: Tensor,
        batch: int,
        seed: int,
        sums: SecureSum | None = None,
    ) -> None:
        """test: the examples at home. batch: examples of an evaluation step, on which its virtual seconds depend.

        sums: how scores are added up, where they are.
        """
        self.context = context
        self.models = models
        self.sites = sites
        self.clock = clock
        self.wire = wire
        self.executor = executor
        self.test = test
        self.stimuli = stimuli
        self.batch = batch
        self.seed = seed
        self.sums = sums
        self.out: dict[int, Evaluating] = {}
        self._results: dict[int, PendingResult[SiteAnswers]] = {}
        self._parts = lru_cache(maxsize=256)(self._parts_of)
        self._seconds = lru_cache(maxsize=1 << 16)(self._site_seconds)

    def start(self, command: Evaluate) -> Probed | None:
        """Ask all sites at once and schedule their answer; return a record of it if it costs virtual time."""
        down = self._send(command)
        seconds, now = self._answer_seconds(command, down), self.clock.now
        due = [now + own for own in seconds]
        started = Evaluating(command.sites, due, Traffic(sum(down), 0, sum(map(bool, down))), pooled=command.pooled)
        started.bins = command.probe.bins if isinstance(command.probe, Score) else 0
        if self._some_drop and not command.record:
            started.missing += [
                position
                for position, name in enumerate(command.sites)
                if name != HOME and self.sites[name].drops(self.seed, command.task)
            ]
        self.out[command.task] = started
        self._results[command.task] = self._result(command)
        self.clock.at(max(due), Answered(command.task))
        if command.record or isinstance(command.probe, Consistency):
            return None
        return Probed(command.task, command.sites, tuple(seconds))

    def answer(self, task: int) -> Evaluated | Pooled | Failed | None:
        """Return the answers of an evaluation, or what they add up to; None if they were returned before."""
        ended = self.out.pop(task, None)
        if ended is None:
            return None
        answers = self._results.pop(task).result()
        if isinstance(answers, ScoreTable):
            if task >= 0:  # scores for the records are not attacked
                answers = self._claimed(answers, ended.sites)
            answers = answers.without(ended.missing)
            if ended.pooled:
                assert self.sums is not None, "only an algorithm with secure sums adds scores up"
                numbers = ScoreNumbers(self.context.classes, ended.bins, self.context.per_token)
                return pool_scores(self.sums, numbers, task, ended.sites, answers, ended.traffic)
        else:
            answers = tuple(None if i in ended.missing else answer for i, answer in enumerate(answers))
        return Evaluated(task, answers, ended.traffic)

    def _claimed(self, answers: ScoreTable, sites: Sequence[str]) -> ScoreTable:
        """Return the answers with the numbers of examples that the sites claim."""
        claims = [1 if name == HOME else self.sites.group(name).claims for name in sites]
        return answers if set(claims) == {1} else inflated(answers, claims)

    def leave(self, name: str) -> None:
        """Drop the unanswered questions of a site."""
        now = self.clock.now
        for task, started in self.out.items():
            if name in started.sites and started.due[position := started.sites.index(name)] > now:
                started.missing.append(position)
                started.due[position] = now
                self.clock.at(max(started.due), Answered(task))

    # -------------------------------------------------------------------------------------------------------- answers

    def _result(self, command: Evaluate) -> PendingResult[SiteAnswers]:
        probe, vector = command.probe, self.models.read(command.model.name)
        if isinstance(probe, Consistency):
            return KnownResult((self._consistency(command, probe),) * len(command.sites))
        if command.record and self.context.personal is not None:
            models = scored_models(self.context, self.sites, command.sites, vector, self.executor)
            scores = zip(command.sites, models, strict=True)
            return KnownResult(ScoreTable.of([self._score(name, model, probe) for name, model in scores]))
        if any(map(self._private, command.sites)):
            return KnownResult(ScoreTable.of([*self._scores_with_private_layers(vector, command.sites, probe)]))
        return self.executor.score(vector, self._parts(command.sites, probe.part), probe, urgent=command.record)

    def _consistency(self, command: Evaluate, probe: Consistency) -> Consistent:
        assert command.reference is not None
        device = self.context.x.device
        model, reference = (self.models.read(one.name).to(device) for one in (command.model, command.reference))
        return consistency(self.context, model, reference, self.stimuli, probe.distance)

    def _scores_with_private_layers(self, vector: Tensor, sites: Sequence[str], probe: Score) -> Iterator[Scored]:
        """Score the model of each site, which has its own private layers."""
        vector = vector.to(self.context.x.device)
        for name in sites:
            own = vector if name == HOME else self.sites[name].learner.with_private(self.context.layout, vector)
            yield self._score(name, own, probe)

    def _score(self, name: str, model: Tensor, probe: Score) -> Scored:
        return score(self.context, model, self._examples(name, probe.part), probe.bins)

    def _private(self, name: str) -> bool:
        return bool(self.sites.private.get(name))

    def _parts_of(self, sites: Sequence[str], part: str) -> Parts:
        return Parts.of([self._examples(name, part) for name in sites])

    def _examples(self, name: str, part: str) -> Tensor:
        if name == HOME:
            return self.test
        return self.sites[name].learner.validation if part == "validation" else self.sites.test(name)

    # ---------------------------------------------------------------------------------------------------------- costs

    def _send(self, command: Evaluate) -> list[int]:
        """Return the bytes that carry the model to each site; home has it already."""
        private = self.sites.private
        away = [(name, private.get(name, ())) for name in command.sites if name != HOME]
        kind = "score down" if command.record else "evaluate down"
        moved = iter(self.wire.show(away, command.model, kind))
        return [0 if name == HOME else next(moved) for name in command.sites]

    def _answer_seconds(self, command: Evaluate, down: Sequence[int]) -> list[float]:
        """Return the seconds until each site's answer arrives: 0 for scores for the records, and at home."""
        if command.record or not isinstance(command.probe, Score):
            return [0.0] * len(command.sites)
        seconds = [self._seconds(name, command.probe.part) for name in command.sites]
        return [
            own if group is None else self.wire.seconds(group, amount) + group.latency + own
            for (own, group), amount in zip(seconds, down, strict=True)
        ]

    def _site_seconds(self, name: str, part: str) -> tuple[float, Group | None]:
        """Return the seconds until a site's answer arrives; with a group, without those of the model's transfer."""
        if name == HOME:
            return 0.0, None
        site = self.sites[name]
        group, seconds = site.group, site.evaluation_seconds(len(self._examples(name, part)), self.batch)
        if group.bandwidth is None:  # they do not depend on what has to be sent
            return self.wire.seconds(group, 0) + group.latency + seconds, None
        return seconds, group

    @cached_property
    def _some_drop(self) -> bool:
        return any(group.drop_rate > 0 for group in self.sites.fleet.groups)

    def save(self) -> dict[str, Any]:
        """Return what a resumed run needs; wait for all results."""
        return {"out": self.out, "results": {task: pending.result() for task, pending in self._results.items()}}

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        self.out = saved["out"]
        self._results = {task: KnownResult(answers) for task, answers in saved["results"].items()}

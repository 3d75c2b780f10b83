"""The controller: events go in, commands come out. Read this second, after `types.py`.

Laws of this file:
1. No clock, no IO, no thread, no global randomness. Everything that a crash must not lose is in `State`; vectors are in
   the engine's store, under names given here.
2. An event is handled to its end: what follows from the state is done before `handle` returns, so it does not matter
   which event led there.
3. The model never takes a number that is not finite: updates are looked at before they are weighed.
4. Sums do not depend on who came first.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from archipel.core.algorithm import Algorithm
from archipel.core.checks import at_least, require
from archipel.core.layout import Layout, chunks
from archipel.core.metrics import higher_is_better, metrics_of
from archipel.core.parts.ending import Ending
from archipel.core.parts.evaluation import Evaluation
from archipel.core.parts.merge import Proposal
from archipel.core.parts.protocol import Commit, Count, Decision, GiveUp, Later, Offer, Send
from archipel.core.parts.weighting import Weight
from archipel.core.randomness import derive
from archipel.core.records import Capped, Committed, Handed, Membership, Record, Refused, Returned, Scores
from archipel.core.shares import cap
from archipel.core.state import (
    Assignment,
    Evidence,
    Inquiry,
    Member,
    Models,
    State,
    Update,
    View,
    needed_vectors,
)
from archipel.core.types import (
    AUC_BINS,
    HOME,
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
    Model,
    Opinions,
    Probe,
    Progress,
    Result,
    Score,
    Scored,
    Stop,
    Tallies,
    Traffic,
    Train,
    Trained,
    Wake,
    Woke,
)
from archipel.kernels.interface import Kernels

CHUNK = 1 << 21
"""Numbers of an update that are checked at a time: it may lie on a disk."""
TIME_IS_UP = "time is up"
SCORE_NOW = "score now"
COUNTED = {
    kind: [(f"{kind} {way} bytes", f"{kind} {way} models") for way in ("down", "up")]
    for kind in ("train", "evaluate", "score")
}
"""What is counted of the traffic of each kind."""
FRUITLESS = 100
"""Tries at a new version, all in vain, after which a run gives up, whatever its ending is."""


class ImpossibleEvent(Exception):
    """An event that no engine that keeps the contract can send, with its story."""


class Controller:
    """The state machine of one federation."""

    def __init__(
        self,
        algorithm: Algorithm,
        layout: Layout,
        models: Models,
        *,
        ending: Ending,
        evaluation: Evaluation | None = None,
        learners: int = 1,
        seed: int = 0,
        kernels: Kernels,
        classes: int | None = None,
        most_share: float = 1.0,
        initial: Tensor | None = None,
        state: State | None = None,
    ) -> None:
        """Begin with an initial model, or go on from a saved state whose vectors are in `models`.

        It waits until so many `learners` have joined before it hands out the first task. `classes` is what confusion
        matrices must have; without it the first one that comes decides. Nobody's share of a merge or of a pooled score
        exceeds `most_share`.
        """
        at_least(1, "Controller", learners=learners)
        algorithm.check(layout)
        require((initial is None) != (state is None), "Controller: give either an initial model or a saved state.")
        if state is None and initial is not None:
            layout.check("Controller: initial model", initial)
            require(kernels.finite(initial), "Controller: the initial model holds numbers that are not finite.")
            state = State(seed, Model("v0", ("v0",) * len(layout.layers)), classes=classes, most_share=most_share)
            models.write("v0", algorithm.merge.initial(layout, initial.clone()))
        assert state is not None
        self._look_at_vectors(state, models, layout)
        self.algorithm = algorithm
        self._parts, self._plan = algorithm.parts(), replace(algorithm.plan, reports=algorithm.reports)
        self.layout = layout
        self.models = models
        self.kernels = kernels
        self.ending = ending
        self.evaluation = evaluation
        self.learners = learners
        self.state = state
        self._views: dict[str, View] = {}
        self._commands: list[Command] = []

    @staticmethod
    def _look_at_vectors(state: State, models: Models, layout: Layout) -> None:
        """A saved state is worth nothing without the vectors it names."""
        stored = set(models.names())
        for name in sorted(needed_vectors(state)):
            require(name in stored, f"Controller: the state names the vector {name!r}, and the store does not hold it.")
            layout.check(f"Controller: vector {name!r}", models.read(name))

    # ------------------------------------------------------------------------------------------------ the one door

    def handle(self, event: Event) -> list[Command]:
        """Take one event to its end and say what the engine has to do."""
        self._commands = []
        if self.state.stopped is None:
            self._take(event)
        return self._commands

    def _take(self, event: Event) -> None:
        match event:
            case Joined():
                self._joined(event)
            case Left(learner):
                self._left(learner)
            case Trained():
                self._trained(event)
            case Evaluated():
                if not self._evaluated(event):
                    return  # more opinions are out: nothing can follow yet
            case Progress():
                self._progressed(event)
                return
            case Failed():
                self._failed(event)
            case Woke(tag):
                self._woke(tag)
        self._advance()

    # --------------------------------------------------------------------------------------------------- membership

    def _joined(self, event: Joined) -> None:
        if event.learner == HOME:
            raise ImpossibleEvent(f"A learner joined as {HOME!r}, which is the name of the controller's own site.")
        old = self.state.members.get(event.learner)
        examples = event.examples
        if not isinstance(examples, int) or examples < 0:  # no number of examples: as if it had told none
            examples = None
        self.state.members[event.learner] = Member(
            event.learner,
            examples,
            event.validation,
            event.test,
            event.group,
            event.role,
            given=old.given if old else 0,
        )
        self._goes(event.learner, old)
        insort(self.state.there.setdefault(event.role, []), event.learner)
        self._keep(Membership(event.learner, there=True, fresh=event.fresh))

    def _left(self, learner: str) -> None:
        member = self.state.members.get(learner)
        if member is not None and member.active:
            self._goes(learner, member)
            member.active = False
            for role, part in self._parts:
                part.left(self._view(role), learner)
            self._keep(Membership(learner, there=False))

    def _goes(self, learner: str, member: Member | None) -> None:
        """Take a learner off the list of those who are there."""
        if member is not None and member.active:
            self.state.there[member.role].remove(learner)

    # ----------------------------------------------------------------------------------------------------- training

    def _send(self, send: Send) -> None:
        state = self.state
        member = state.members[send.learner]
        plan = self._plan.keyed(derive(state.seed, "training", member.name, member.given))
        for i, planner in enumerate(self.algorithm.planners):
            plan = planner.plan(self._view(f"planner.{i}"), member, plan)
        member.given += 1
        task = self._next_task()
        state.out[task] = Assignment(
            task, send.learner, send.model, plan, state.version, state.committed, send.slot, send.travels
        )
        self._keep(Handed(task, send.learner, state.version, send.slot))
        self._commands.append(Train(task, send.learner, send.model, plan))

    def _trained(self, event: Trained) -> None:
        assignment = self._close(event.task)
        if assignment is None:
            return
        self._count("train", event.traffic)
        wrong = self._wrong(assignment, event)
        if wrong is not None:
            self.models.drop(event.model)
            self._waste(assignment, wrong)
            return
        update = self._receive(assignment, event)
        for role, part in self._parts:
            part.observe(self._view(role), update)
        if assignment.travels:
            self.state.travelling[assignment.slot] = self._travelled(update)
            self._sweep()  # the model of the hop before is behind it
        else:
            self._offer(update)

    def _wrong(self, assignment: Assignment, event: Trained) -> str | None:
        """What is wrong with an update, or None. It is looked at before it is weighed: 0 x NaN is NaN."""
        plan = assignment.plan
        asked = plan.sends(self.layout.names)
        if event.layers != asked and not self._suffices(event.layers, asked):
            unknown = [name for name in event.layers if not self.layout.knows(name)]
            if unknown:
                return f"unknown layer {unknown[0]!r}; layers of this model: {', '.join(self.layout.names)}"
            return f"sent the layers ({', '.join(event.layers)}), the plan asks for ({', '.join(asked)})"
        shape = self.models.shape(event.model)
        if shape != (self.layout.size,):
            return f"{shape} numbers, the model has ({self.layout.size},)"
        if event.steps < 0:
            return f"{event.steps} steps"
        # piece by piece: it may lie on a disk, and should not take the memory of a whole model to be looked at
        for piece in chunks(self.layout.slices(self.layout.indices(event.layers)), CHUNK):
            if not self.kernels.finite(self.models.read(event.model, piece)):
                return "holds numbers that are not finite (NaN or infinity); lower the rate or look at the data"
        norm = event.metrics.gradient_norm
        if any(report.startswith("gradient norm") for report in plan.reports) and (
            norm is None or not math.isfinite(norm) or norm < 0
        ):
            return f"gradient norm {norm!r}, the plan asks for a finite one"
        return None

    def _suffices(self, sent: Sequence[str], asked: Sequence[str]) -> bool:
        """Are these the layers that the plan asks for, or all of them but optional ones?"""
        missing = set(asked).difference(sent)
        return (
            len(set(sent)) == len(sent) and set(sent) <= set(asked) and missing <= self.algorithm.optional(self.layout)
        )

    def wanted(self, task: int) -> tuple[str, ...]:
        """Return the layers that a task's answer should hold if it is sent now; an engine asks before it sends it."""
        unwanted = self._unwanted()
        return tuple(name for name in self.state.out[task].plan.sends(self.layout.names) if name not in unwanted)

    def _unwanted(self) -> set[str]:
        """Return the layers that the version to come does not use."""
        planners = enumerate(self.algorithm.planners)
        return {name for i, planner in planners for name in planner.unwanted(self._view(f"planner.{i}"))}

    def _receive(self, assignment: Assignment, event: Trained) -> Update:
        """The update as it will be weighed; layers that are not used stand as in the model the task carried."""
        unwanted = self._unwanted()
        layers = self.layout.indices(name for name in event.layers if name not in unwanted)
        sent = set(layers)
        missing = [place for place in range(len(self.layout.layers)) if place not in sent]
        if missing:
            self.models.complete(event.model, assignment.model.name, self.layout.slices(missing))
        manifest = tuple(
            event.model if place in sent else stamp for place, stamp in enumerate(assignment.model.manifest)
        )
        self._keep(
            Returned(
                event.task,
                assignment.learner,
                assignment.version,
                event.steps,
                event.metrics.epochs,
                event.layers,
                event.metrics.losses,
                assignment.finishing,
            )
        )
        return Update(
            task=event.task,
            learner=assignment.learner,
            model=Model(event.model, manifest),
            layers=layers,
            version=assignment.version,
            committed=assignment.committed,
            examples=self.state.members[assignment.learner].examples,
            steps=event.steps,
            slot=assignment.slot,
            metrics=self._sensible(event.metrics),
            path=(assignment.learner,),
        )

    def _sensible(self, metrics: Metrics) -> Metrics:
        """Without the learner's opinion of its own model, if that makes no sense."""
        if metrics.validation is None or self._nonsense(metrics.validation, AUC_BINS) is None:
            return metrics
        return replace(metrics, validation=None)

    def _travelled(self, update: Update) -> Update:
        """Under Relay examples, steps and layers add up along the slot's path."""
        before = self.state.travelling.get(update.slot)
        if before is None:
            return update
        update.examples = (
            None if update.examples is None or before.examples is None else update.examples + before.examples
        )
        update.steps += before.steps
        update.layers = tuple(sorted({*update.layers, *before.layers}))
        update.path = (*before.path, *update.path)
        return update

    def _failed(self, event: Failed) -> None:
        if event.task in self.state.inquiries:
            self._answer(event.task, (None,) * len(self.state.inquiries[event.task].sites), event.traffic)
            return
        assignment = self._close(event.task)
        if assignment is not None:
            self._count("train", event.traffic)
            self._waste(assignment, event.reason)

    def _waste(self, assignment: Assignment, reason: str) -> None:
        self.algorithm.protocol.wasted(self._view("protocol"))
        self._keep(Refused(assignment.task, assignment.learner, reason))

    def _progressed(self, event: Progress) -> None:
        self._known(event.task)
        if event.task in self.state.out:
            self.state.out[event.task].steps = event.steps
            self._recall()

    def _known(self, task: int) -> None:
        if not self.state.next_score < task < self.state.next_task:
            raise ImpossibleEvent(
                f"An answer to task {task}, but only {self.state.next_task} tasks, numbered from 0, and "
                f"{-1 - self.state.next_score} scores, numbered from -1 downwards, were ever handed out."
            )

    def _close(self, task: int) -> Assignment | None:
        """Take a task off the list; None, and a record, if it was answered before."""
        self._known(task)
        if task in self.state.inquiries:
            raise ImpossibleEvent(f"An update in answer to task {task}, which asks for an evaluation.")
        assignment = self.state.out.pop(task, None)
        if assignment is None:
            self._keep(Refused(task, "", "late: the task was closed before, its answer is not applied"))
        return assignment

    # ----------------------------------------------------------------------------------------------------- evidence

    def _offer(self, update: Update) -> None:
        """Let an update stand for commit, and gather what its weighting asks for."""
        self.state.queue.append(update)
        update.asked = True
        questions: dict[tuple[Probe, Model | None], dict[str, None]] = {}
        alike: tuple[Probe, Model | None, dict[str, None]] | None = None
        for site, probe, reference in self.algorithm.weighting.ask(self._view("weighting"), update):
            # a hundred sites are asked the same thing: to look it up takes longer than to see that it is the same
            if alike is None or alike[0] is not probe or alike[1] is not reference:
                alike = (probe, reference, questions.setdefault((probe, reference), {}))
            alike[2][site] = None  # asked twice, it would say the same
        for (probe, reference), sites in questions.items():
            question = Evaluate(self._next_task(), tuple(sites), update.model, probe, reference)
            self._ask(question, update.task, len(update.evidence))
            update.evidence.append(Evidence(probe))

    def _ask(self, question: Evaluate, update: int | None, place: int, validators: int = 0) -> None:
        state, reference = self.state, question.reference
        names = (question.model.name,) if reference is None else (question.model.name, reference.name)
        bins = question.probe.bins if isinstance(question.probe, Score) else 0
        state.inquiries[question.task] = Inquiry(
            question.task, question.sites, names, bins, update, place, state.version, state.rounds, validators
        )
        self._commands.append(question)

    def _evaluated(self, event: Evaluated) -> bool:
        """True if something may follow from it."""
        if event.task in self.state.out:
            raise ImpossibleEvent(f"An evaluation in answer to task {event.task}, which asks for training.")
        if event.task not in self.state.inquiries:
            self._close(event.task)  # tells a late answer from an impossible one
            return False
        asked = self.state.inquiries[event.task].sites
        if len(event.results) != len(asked):
            raise ImpossibleEvent(f"{len(event.results)} opinions in answer to task {event.task}, which asks {asked}.")
        return self._answer(event.task, event.results, event.traffic)

    def _answer(self, task: int, results: Opinions, traffic: Traffic) -> bool:
        """Take the opinions; True if something may follow from them."""
        inquiry = self.state.inquiries.pop(task)
        self._count("score" if inquiry.update is None else "evaluate", traffic)
        opinions = self._sensible_ones(inquiry, results)
        if inquiry.update is None:
            if self.state.most_share < 1 and self.evaluation is not None and self.evaluation.mean == "examples":
                self._look_at_counts("score", inquiry.sites, opinions)
            self._scored(inquiry, opinions)
            return True
        for update in self.state.queue:
            if update.task == inquiry.update:
                if self.state.most_share < 1:
                    own = update.metrics.validation
                    self._look_at_counts("opinions", (*inquiry.sites, update.learner), (*opinions, own))
                update.evidence[inquiry.question].opinions = opinions
                return update.ready
        return False

    def _sensible_ones(self, inquiry: Inquiry, results: Opinions) -> Opinions:
        """Opinions whose counts make sense, None in place of the others: they are added up before they are used."""
        if self._all_sensible(results):
            return results
        opinions = []
        for site, result in zip(inquiry.sites, results, strict=True):
            nonsense = self._nonsense(result, inquiry.bins)
            if nonsense is not None:
                self._keep(Refused(inquiry.task, site, nonsense))
            opinions.append(result if nonsense is None else None)
        return tuple(opinions)

    def _all_sensible(self, results: Opinions) -> bool:
        """One look at all confusion matrices together; where it fails, `_nonsense` says of each what is wrong."""
        shape = (self.state.classes or 0,) * 2
        if isinstance(results, Tallies):
            counts, confusion = results.counts.tolist(), results.confusion
            if results.histogram is not None or confusion is None or confusion.shape[1:] != shape:
                return False
        else:
            scored = [result for result in results if isinstance(result, Scored)]
            if any(r.histogram is not None or r.confusion is None or r.confusion.shape != shape for r in scored):
                return False
            counts = [r.count for r in scored]
            confusion = np.array([r.confusion for r in scored]).reshape(len(scored), *shape)
        return bool(confusion.min(initial=0) >= 0) and confusion.sum(axis=(1, 2)).tolist() == counts

    def _nonsense(self, result: Result | None, bins: int) -> str | None:
        """What is wrong with the counts of an answer, or None."""
        if not isinstance(result, Scored) or result.confusion is None:
            return None
        confusion, histogram = result.confusion, result.histogram
        if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1] or confusion.size == 0:
            return f"a confusion matrix of shape {confusion.shape}"
        if self.state.classes is None:
            self.state.classes = len(confusion)
        if len(confusion) != self.state.classes:
            return f"a confusion matrix of {len(confusion)} classes, the task has {self.state.classes}"
        if confusion.min() < 0 or confusion.sum() != result.count:
            return f"a confusion matrix that does not count {result.count} examples"
        if histogram is not None and (histogram.shape != (self.state.classes, 2, bins) or histogram.min() < 0):
            return f"a histogram of scores of shape {histogram.shape}, or with negative counts"
        return None

    # ------------------------------------------------------------------------------------------------------- commit

    def _commit(self, tasks: Sequence[int]) -> None:
        state, asked = self.state, set(tasks)
        chosen = [update for update in state.queue if update.task in asked]
        state.queue = [update for update in state.queue if update.task not in asked]
        chosen.sort(key=lambda update: (update.slot, update.learner))
        unwanted = self.layout.indices(self._unwanted())
        for update in chosen:  # one that waited for its evidence may be committed in a later round than it arrived in
            update.layers = tuple(place for place in update.layers if place not in unwanted)
        updates, weights = self._weigh(chosen)
        if updates:
            weights = self._within_shares(updates, weights)
            proposal = self.algorithm.merge.merge(self._view("merge"), updates, weights)
            self._note_capped("weight", proposal.cut)
            following = self.algorithm.server.step(self._view("server"), proposal)
            if following is not None:
                self._take_version(updates, weights, proposal, following)
            else:
                if proposal.undo is not None:
                    proposal.undo()
                for update in updates:
                    self._keep(Refused(update.task, update.learner, "the merged model would not be finite"))
        self._sweep()

    def _weigh(self, updates: Sequence[Update]) -> tuple[list[Update], list[tuple[float, ...]]]:
        kept: list[Update] = []
        weights: list[tuple[float, ...]] = []
        for update in updates:
            update.stale_versions = self.state.version - update.version
            update.stale_steps = self.state.committed - update.committed + update.steps
            weight = self.algorithm.weighting.weigh(self._view("weighting"), update)
            if weight is None:
                self._keep(Refused(update.task, update.learner, "too little evidence to weigh it"))
            else:
                kept.append(update)
                weights.append(self._per_layer(weight, update))
        return kept, weights

    def _within_shares(self, updates: Sequence[Update], weights: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
        if self.state.most_share >= 1:
            return weights
        within = self.algorithm.merge.within_shares(self._view("merge"), updates, weights)
        for update, before, after in zip(updates, weights, within, strict=True):
            if after != before:
                self._note_capped("weight", update.path)
        return within

    def _note_capped(self, what: str, learners: Sequence[str]) -> None:
        """Tell once of each learner that it claims more than anybody's share of something."""
        for learner in learners:
            known = self.state.capped.setdefault(what, [])
            if learner not in known:
                insort(known, learner)
                self._keep(Capped(learner, what, self.state.most_share))

    def _look_at_counts(self, what: str, sites: Sequence[str], answers: Opinions) -> None:
        """See whether somebody's examples are more than anybody's share of those that are pooled."""
        counts = [float(answer.count) if isinstance(answer, Scored) else 0.0 for answer in answers]
        within = cap(counts, self.state.most_share)
        self._note_capped(what, [s for s, c, w in zip(sites, counts, within, strict=True) if w < c])

    def _per_layer(self, weight: Weight, update: Update) -> tuple[float, ...]:
        layers = len(self.layout.layers)
        spread = weight if isinstance(weight, tuple) else (weight,) * layers
        require(
            len(spread) == layers and all(math.isfinite(w) and w >= 0 for w in spread),
            f"{self.algorithm.weighting!r} gave the update of learner {update.learner!r} the weight {weight!r}; "
            f"a weight is one number, or one for each of the {layers} layers, finite and at least 0.",
        )
        return spread

    def _take_version(
        self,
        updates: Sequence[Update],
        weights: Sequence[tuple[float, ...]],
        proposal: Proposal,
        following: Tensor,
    ) -> None:
        state = self.state
        state.version += 1
        state.fruitless = 0
        name = f"v{state.version}"
        changed = set(proposal.layers)
        manifest = tuple(name if place in changed else stamp for place, stamp in enumerate(state.model.manifest))
        version = Model(name, manifest)
        state.starts = {
            update.learner: self._take_start(
                f"{name}.{place}", proposal.starts[update.learner], update, version, following
            )
            for place, update in enumerate(updates)
            if update.learner in proposal.starts
        }
        self.models.write(name, following)
        state.model = version
        state.committed += sum(update.steps for update in updates)
        for role, part in self._parts:
            part.committed(self._view(role), updates)
        self._keep(
            Committed(
                version=state.version,
                rounds=state.rounds,
                learners=tuple(update.learner for update in updates),
                paths=tuple(update.path for update in updates),
                tasks=tuple(update.task for update in updates),
                weights=tuple(weights),
                stale_versions=tuple(update.stale_versions for update in updates),
                stale_steps=tuple(update.stale_steps for update in updates),
                layers=proposal.layers,
                traffic=dict(state.traffic),
            )
        )
        for i, planner in enumerate(self.algorithm.planners):
            for note in planner.notes(self._view(f"planner.{i}")):
                self._keep(note)
        self._recall()

    def _take_start(self, name: str, start: Tensor, update: Update, version: Model, following: Tensor) -> Model:
        """Store the model that a contributor starts from; layers that the learner has already keep their stamps."""
        stamps = []
        for place, layer in enumerate(self.layout.layers):
            piece = slice(layer.start, layer.stop)
            if torch.equal(start[piece], following[piece]):
                stamps.append(version.manifest[place])
            elif torch.equal(start[piece], self.models.read(update.model.name, piece)):
                stamps.append(update.model.manifest[place])
            else:
                stamps.append(name)
        self.models.write(name, start)
        return Model(name, tuple(stamps))

    def _recall(self) -> None:
        recall = self.algorithm.recall
        if recall is not None:
            for assignment in self.state.out.values():
                if not assignment.finishing and recall.due(self._view("recall"), assignment):
                    assignment.finishing = True
                    self._commands.append(Finish(assignment.task))

    # ------------------------------------------------------------------------------------------------------ scoring

    def _score(self) -> None:
        """Have the current version scored."""
        state = self.state
        if self.evaluation is None or state.scored == state.version:
            return
        state.scored = state.version
        sites = self.evaluation.sites(state)
        if not sites:
            return
        task = state.next_score
        state.next_score -= 1
        validators = self.evaluation.validators(state)
        question = Evaluate(task, (*sites, *validators), state.model, self.evaluation.probe, record=True)
        self._ask(question, None, 0, len(validators))

    def _scored(self, inquiry: Inquiry, opinions: Opinions) -> None:
        state, evaluation = self.state, self.evaluation
        told, tested = list(opinions), len(inquiry.sites) - inquiry.validators
        answers = [opinion for opinion in told[:tested] if isinstance(opinion, Scored)]
        validation = [opinion for opinion in told[tested:] if isinstance(opinion, Scored)]
        if not answers or evaluation is None:
            return
        found = metrics_of(answers, evaluation.mean, state.most_share)
        beside = metrics_of(validation, evaluation.mean, state.most_share)
        examples = sum(answer.count for answer in answers)
        self._keep(Scores(inquiry.version, inquiry.rounds, found, examples, len(answers), beside))
        value = found.get(evaluation.metric, math.nan)
        higher = higher_is_better(evaluation.metric)
        if not math.isnan(value) and (state.best is None or (value > state.best if higher else value < state.best)):
            state.best, state.since_best = value, 0
        else:
            state.since_best += 1
        reason = self.ending.satisfied(state.best, state.since_best, higher)
        if reason is not None:
            self._end(reason)

    # ------------------------------------------------------------------------------------------------- what follows

    def _advance(self) -> None:
        """Do what follows from the state, until nothing does."""
        state = self.state
        if not state.begun:
            if len(self._view("protocol").active()) < self.learners:
                return
            self._begin()
        for _ in range(10_000):
            if state.ending is not None:
                break
            decisions = self.algorithm.protocol.decide(self._view("protocol"), self._choose)
            if not decisions:
                break
            for decision in decisions:
                self._do(decision)
                self._look_at_ending()
            if state.fruitless >= FRUITLESS:
                self._end(f"no new version came of {state.fruitless} tries in a row; the records say why")
        else:
            raise RuntimeError(
                f"{self.algorithm.protocol!r} still finds something to do after 10,000 decisions at version "
                f"{state.version}: its `decide` has to answer [] when the state asks for nothing."
            )
        if state.ending is not None:
            self._score()  # the last version has a score too
        if state.ending is not None and not any(inquiry.update is None for inquiry in state.inquiries.values()):
            state.stopped = state.ending
            self._commands.append(Stop(state.stopped))

    def _choose(self, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        return self.algorithm.selection.select(self._view("selection"), candidates, count, draw)

    def _begin(self) -> None:
        self.state.begun = True
        self._score()
        if self.ending.seconds is not None:
            self._commands.append(Wake(self.ending.seconds, TIME_IS_UP))
        if self.evaluation is not None and self.evaluation.seconds is not None:
            self._commands.append(Wake(self.evaluation.seconds, SCORE_NOW))

    def _do(self, decision: Decision) -> None:
        state = self.state
        match decision:
            case Send():
                if state.ending is None:  # nothing is handed out in a run's last words
                    self._send(decision)
            case Offer():
                for slot in sorted(state.travelling):
                    self._offer(state.travelling[slot])
                state.travelling = {}
            case Commit(tasks):
                before = state.version
                self._commit(tasks)
                every = None if self.evaluation is None else self.evaluation.every
                if every is not None and state.version > before and state.version % every == 0:
                    self._score()
            case Count(rounds):
                state.rounds += rounds
                state.fruitless += 1
            case GiveUp(tasks):
                for task in tasks:
                    if not state.out[task].cancelled:
                        state.out[task].cancelled = True
                        self._commands.append(Cancel(task))
            case Later(after, tag):
                self._commands.append(Wake(after, tag))

    def _woke(self, tag: str) -> None:
        if tag == TIME_IS_UP:
            self._end("time is up")
        elif tag == SCORE_NOW and self.evaluation is not None and self.evaluation.seconds is not None:
            self._score()
            self._commands.append(Wake(self.evaluation.seconds, SCORE_NOW))
        else:
            self.algorithm.protocol.woke(self._view("protocol"), tag)

    def _look_at_ending(self) -> None:
        reason = self.ending.reached(self.state)
        if reason is not None:
            self._end(reason)

    def _end(self, reason: str) -> None:
        if self.state.ending is None:
            self.state.ending = reason

    # --------------------------------------------------------------------------------------------------- small things

    def _view(self, role: str) -> View:
        view = self._views.get(role)
        if view is None or view.state is not self.state:  # a saved state may take its place
            view = self._views[role] = View(self.state, self.layout, self.models, self.kernels, role)
        return view

    def _next_task(self) -> int:
        self.state.next_task += 1
        return self.state.next_task - 1

    def _keep(self, record: Record) -> None:
        self._commands.append(Keep(record))

    def _count(self, kind: str, traffic: Traffic) -> None:
        counted = self.state.traffic
        for amount, (bytes_, models) in zip((traffic.down, traffic.up), COUNTED[kind], strict=True):
            if amount:
                counted[bytes_] = counted.get(bytes_, 0) + amount
                counted[models] = counted.get(models, 0) + traffic.sites

    def _sweep(self) -> None:
        """Drop the vectors nobody needs any more."""
        unneeded = set(self.models.names()) - needed_vectors(self.state)
        for role, part in self._parts:
            unneeded.difference_update(part.holds(self._view(role)))
        for name in unneeded:
            if "/" not in name:
                self.models.drop(name)

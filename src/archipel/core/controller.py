"""The controller: events go in, commands come out. Read this second, after `types.py`.

Laws of this file and of the steps it calls (`tasks`, `evidence`, `commit`, `scoring`):
1. No clock, no IO, no thread, no global randomness. Everything that a crash must not lose is in `State`; vectors are in
   the engine's store, under names given here.
2. An event is handled to its end: what follows from the state is done before `handle` returns, so it does not matter
   which event led there.
3. The model never becomes NaN or infinite: updates are checked before they are weighed.
4. Sums do not depend on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from archipel.core.algorithm import Algorithm
from archipel.core.checks import at_least, require
from archipel.core.commit import commit, commit_sum
from archipel.core.context import ControllerContext
from archipel.core.evidence import check_answers, offer, store
from archipel.core.layout import Layout
from archipel.core.members import Member
from archipel.core.parts.ending import Ending
from archipel.core.parts.evaluation import Evaluation
from archipel.core.parts.noise_terms import NoisePrivacy
from archipel.core.parts.protocol import Commit, Count, Decision, GiveUp, Later, Offer, Send
from archipel.core.records import Membership
from archipel.core.rollback import roll_back
from archipel.core.scored import PooledScore, ScoreTable
from archipel.core.scoring import check_scores, score, take_pooled, take_scores
from archipel.core.state import Assignment, Models, State, needed_vectors
from archipel.core.summing import fail_sum
from archipel.core.tasks import measure, measuring, progress, receive, send, unwanted, waste
from archipel.core.types import (
    HOME,
    Cancel,
    Command,
    Evaluated,
    Event,
    Failed,
    Joined,
    Left,
    Model,
    Pooled,
    Progress,
    RolledBack,
    Score,
    SiteAnswers,
    Stop,
    Summed,
    Traffic,
    Trained,
    Wake,
    Woke,
)
from archipel.kernels.interface import Kernels

TIME_IS_UP = "time is up"
SCORE_NOW = "score now"
MOST_ATTEMPTS = 100
"""Consecutive failed attempts at a new version after which a run ends, whatever its ending says."""
MOST_DECISIONS = 10_000
"""Most decisions that a protocol may make after one event; more than that is a bug in the protocol."""


class ImpossibleEvent(Exception):
    """An event that breaks the engine's contract; the message says how."""


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
        per_token: bool = False,
        most_share: float = 1.0,
        secret: str = "",
        norms: bool = False,
        initial: Tensor | None = None,
        state: State | None = None,
    ) -> None:
        """Begin with an initial model, or continue from a saved state whose vectors are in `models`.

        The first task is handed out when `learners` learners have joined. `classes`: classes of confusion matrices;
        default: as in the first matrix that arrives. `per_token`: answers count tokens. `most_share`: the largest
        share of one learner in a merge or a pooled score. `secret`: a key that no learner knows, for an algorithm
        with privacy. `norms`: measure how far each update would move the model, for the records.
        """
        at_least(1, "Controller", learners=learners)
        algorithm.check(layout)
        ending.check(algorithm.name, layout, algorithm.private(layout))
        _check_privacy(algorithm, ending, norms)
        check_scores(algorithm, evaluation)
        begins = state is None
        require((initial is None) != (state is None), "Controller: give either an initial model or a saved state.")
        if state is None and initial is not None:
            layout.check("Controller: initial model", initial)
            require(kernels.finite(initial), "Controller: the initial model holds numbers that are not finite.")
            version = Model("v0", ("v0",) * len(layout.layers))
            state = State(seed, version, classes=classes, per_token=per_token, most_share=most_share, secret=secret)
            models.write("v0", algorithm.merge.initial(layout, initial.clone()))
        assert state is not None
        _check_vectors(state, models, layout)
        self.algorithm = algorithm
        self.layout = layout
        self.models = models
        self.ending = ending
        self.evaluation = evaluation
        self.learners = learners
        self.norms = norms
        self._context = ControllerContext(algorithm, layout, models, kernels, ending, evaluation, state, norms)
        if begins and algorithm.privacy is not None:
            private = algorithm.private(layout)
            algorithm.privacy.begin(self._context.view("privacy"), algorithm, ending, learners, private)

    @property
    def state(self) -> State:
        """Everything that a crash must not lose; a saved one may replace it."""
        return self._context.state

    @state.setter
    def state(self, saved: State) -> None:
        self._context.use(saved)

    def handle(self, event: Event) -> list[Command]:
        """Handle one event completely; return the commands for the engine."""
        context = self._context
        context.commands = []
        if context.state.stopped is None and self._take(event) and self._begin():
            for decision in self._decisions():
                self._carry_out(decision)
                self._check_ending()
            self._stop_when_scored()
        context.sweep()
        return context.commands

    def wanted(self, task: int) -> tuple[str, ...]:
        """Return the layers that a task's answer should hold if it is sent now; engines call this before sending."""
        unused = self.unwanted()
        return tuple(name for name in self.state.out[task].plan.sends(self.layout.names) if name not in unused)

    def unwanted(self) -> set[str]:
        """Return the layers that the next version does not use."""
        return unwanted(self._context)

    def _take(self, event: Event) -> bool:
        """Change the state as the event says; return whether decisions may follow from it."""
        match event:
            case Joined():
                self._joined(event)
            case Left(learner):
                self._left(learner)
            case Trained():
                assignment = self._close(event.task)
                if assignment is not None:
                    receive(self._context, assignment, event)
                else:
                    self.state.vectors.discard(event.model)
            case Evaluated() | Pooled():
                return self._evaluated(event)
            case Progress():
                self._progressed(event)
                return False
            case Failed():
                self._failed(event)
            case Summed():
                return self._summed(event)
            case Woke(tag):
                self._woke(tag)
            case RolledBack():
                roll_back(self._context, event)
                score(self._context)
                self._check_ending()  # it may have made the last version without another decision
        return True

    # --------------------------------------------------------------------------------------------------- membership

    def _joined(self, event: Joined) -> None:
        if event.learner == HOME:
            raise ImpossibleEvent(f"A learner joined as {HOME!r}, which is the name of the controller's own site.")
        # an invalid number of examples counts as withheld
        known = isinstance(event.examples, int) and event.examples >= 0
        self.state.members.join(
            Member(
                event.learner,
                event.examples if known else None,
                event.validation,
                event.test,
                event.group,
                event.role,
            )
        )
        self._context.record(Membership(event.learner, there=True, fresh=event.fresh))

    def _left(self, learner: str) -> None:
        members, context = self.state.members, self._context
        if learner in members and members[learner].active:
            members.leave(learner)
            for view, part in context.parts:
                part.left(view, learner)
            context.record(Membership(learner, there=False))

    # ------------------------------------------------------------------------------------------------------ answers

    def _close(self, task: int) -> Assignment | None:
        """Take a training task off the list; None, and a record, if it was answered before."""
        self._check_known(task)
        if task in self.state.inquiries:
            raise ImpossibleEvent(f"An update in answer to task {task}, which asks for an evaluation.")
        assignment = self.state.close(task)
        if assignment is None:
            self._context.refuse(task, "", "late: the task was closed before, its answer is not applied")
        return assignment

    def _check_known(self, task: int) -> None:
        if not self.state.next_score < task < self.state.next_task:
            raise ImpossibleEvent(
                f"An answer to task {task}, but only {self.state.next_task} tasks, numbered from 0, and "
                f"{-1 - self.state.next_score} scores, numbered from -1 downwards, were handed out."
            )

    def _failed(self, event: Failed) -> None:
        inquiry = self.state.inquiries.get(event.task)
        if inquiry is not None:
            if inquiry.pooled:
                self._context.refuse(event.task, "", event.reason)
            nothing = (None,) * len(inquiry.sites)
            answers = ScoreTable.of(nothing) if isinstance(inquiry.probe, Score) else nothing
            self._answer(event.task, answers, event.traffic)
            return
        if self.state.sum is not None and self.state.sum.task == event.task:
            fail_sum(self._context, event.reason)
            return
        assignment = self._close(event.task)
        if assignment is not None:
            self._context.count_traffic("train", event.traffic)
            waste(self._context, assignment, event.reason)

    def _summed(self, event: Summed) -> bool:
        """Commit what updates add up to; return whether something may follow from it."""
        if self.state.sum is None or self.state.sum.task != event.task:
            self._close(event.task)  # distinguishes a late answer from an impossible one
            self.state.vectors.discard(event.model)
            return False
        before = self.state.version
        commit_sum(self._context, event)
        self._score_new_version(before)
        self._check_ending()
        return True

    def _progressed(self, event: Progress) -> None:
        self._check_known(event.task)
        if event.task in self.state.out:
            progress(self._context, self.state.out[event.task], event.steps)

    def _evaluated(self, event: Evaluated | Pooled) -> bool:
        """Take the answers of sites; return whether something may follow from them."""
        if event.task in self.state.out:
            raise ImpossibleEvent(f"An evaluation in answer to task {event.task}, which asks for training.")
        inquiry = self.state.inquiries.get(event.task)
        if inquiry is None:
            self._close(event.task)  # distinguishes a late answer from an impossible one
            return False
        results = event.results
        expected = PooledScore if inquiry.pooled else ScoreTable if isinstance(inquiry.probe, Score) else tuple
        if not isinstance(results, expected):
            raise ImpossibleEvent(
                f"A {type(results).__name__} in answer to task {event.task}, which asks for {inquiry.probe} "
                f"{'added up' if inquiry.pooled else 'of single sites'}."
            )
        if not isinstance(results, PooledScore) and len(results) != len(inquiry.sites):
            raise ImpossibleEvent(f"{len(results)} answers to task {event.task}, which asks {inquiry.sites}.")
        return self._answer(event.task, results, event.traffic)

    def _answer(self, task: int, answers: SiteAnswers | PooledScore, traffic: Traffic) -> bool:
        context = self._context
        inquiry = self.state.answer(task)
        context.count_traffic("score" if inquiry.update is None else "evaluate", traffic)
        if isinstance(answers, PooledScore):
            take_pooled(context, inquiry, answers)
            return True
        valid = check_answers(context, inquiry, answers)
        if inquiry.update is not None:
            return store(context, inquiry, valid)
        assert isinstance(valid, ScoreTable), "an evaluation's probe is a `Score`"
        take_scores(context, inquiry, valid)
        return True

    # ---------------------------------------------------------------------------------------------------- decisions

    def _begin(self) -> bool:
        """Return whether the run has begun; it begins when enough learners have joined."""
        context = self._context
        state = context.state
        if not state.begun and len(context.view("protocol").active()) >= self.learners:
            state.begun = True
            score(context)
            measure(context)
            if self.ending.seconds is not None:
                context.issue(Wake(self.ending.seconds, TIME_IS_UP))
            if self.evaluation is not None and self.evaluation.seconds is not None:
                context.issue(Wake(self.evaluation.seconds, SCORE_NOW))
        return state.begun

    def _decisions(self) -> Iterator[Decision]:
        """Yield the protocol's decisions until it has none; each is carried out before the next is asked for."""
        context, state = self._context, self.state
        for _ in range(MOST_DECISIONS):
            if state.ending is not None or state.sum is not None or measuring(context):
                return
            decisions = self.algorithm.protocol.decide(context.view("protocol"), self._choose)
            if not decisions:
                return
            yield from decisions
            if state.vain_attempts >= MOST_ATTEMPTS:
                context.end(f"no new version came of {state.vain_attempts} attempts in a row; the records say why")
        raise RuntimeError(
            f"{self.algorithm.protocol!r} still finds something to do after {MOST_DECISIONS:,} decisions at version "
            f"{state.version}: its `decide` has to answer [] when the state asks for nothing."
        )

    def _choose(self, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        chosen = self.algorithm.selection.select(self._context.view("selection"), candidates, count, draw)
        if self.algorithm.privacy is not None:
            self.algorithm.privacy.drawn(self._context.view("privacy"), chosen, count, len(candidates))
        return chosen

    def _carry_out(self, decision: Decision) -> None:
        context, state = self._context, self.state
        match decision:
            case Send():
                if state.ending is None:  # nothing is handed out while the run is ending
                    send(context, decision)
            case Offer():
                for update in state.arrive():
                    offer(context, update)
            case Commit(tasks):
                before = state.version
                commit(context, tasks)
                self._score_new_version(before)
            case Count(rounds):
                state.rounds += rounds
                state.vain_attempts += 1
            case GiveUp(tasks):
                for task in tasks:
                    if not state.out[task].cancelled:
                        state.out[task].cancelled = True
                        context.issue(Cancel(task))
            case Later(after, tag):
                context.issue(Wake(after, tag))

    def _score_new_version(self, before: int) -> None:
        state, every = self.state, None if self.evaluation is None else self.evaluation.every
        if every is not None and state.version > before and state.version % every == 0:
            score(self._context)

    def _woke(self, tag: str) -> None:
        context = self._context
        if tag == TIME_IS_UP:
            context.end("time is up")
        elif tag == SCORE_NOW and self.evaluation is not None and self.evaluation.seconds is not None:
            score(context)
            context.issue(Wake(self.evaluation.seconds, SCORE_NOW))
        else:
            self.algorithm.protocol.woke(context.view("protocol"), tag)

    def _check_ending(self) -> None:
        reason = self.ending.reached(self.state)
        if reason is not None:
            self._context.end(reason)

    def _stop_when_scored(self) -> None:
        """Stop a run that is ending, once its last version has a score."""
        context, state = self._context, self.state
        if state.ending is None or state.sum is not None:
            return
        score(context)
        if not any(inquiry.update is None for inquiry in state.inquiries.values()):
            state.stopped = state.ending
            context.issue(Stop(state.stopped))


def _adds_noise(algorithm: Algorithm) -> bool:
    privacy = algorithm.privacy
    return isinstance(privacy, NoisePrivacy) and (privacy.epsilon is not None or privacy.noise is not None)


def _check_privacy(algorithm: Algorithm, ending: Ending, norms: bool) -> None:
    """Refuse settings that need noise, or that would weaken its protection."""
    require(
        ending.epsilon is None or _adds_noise(algorithm),
        f"Ending(epsilon={ending.epsilon}): {algorithm.name} adds no noise, so there is no epsilon. Give it "
        "privacy=CentralNoise(...), LocalNoise(...) or SecureSum(noise=...).",
    )
    require(
        not norms or algorithm.privacy is None or not algorithm.privacy.hides_updates,
        f"norms: {algorithm.name} has {algorithm.privacy!r}, and the norm of a single update would reveal "
        "something about its "
        "learner. Leave out norms, or privacy.",
    )


def _check_vectors(state: State, models: Models, layout: Layout) -> None:
    """Refuse a saved state without the vectors that it names."""
    stored = set(models.names())
    for name in sorted(needed_vectors(state)):
        require(name in stored, f"Controller: the state names the vector {name!r}, and the store does not hold it.")
        layout.check(f"Controller: vector {name!r}", models.read(name))

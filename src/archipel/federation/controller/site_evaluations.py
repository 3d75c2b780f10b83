"""Questions: a model is evaluated at many sites at once, and one event reports all results.

Answers are journalled when all have arrived: after an earlier crash the sites are asked again. A site that is gone or
late costs one answer. Under secure sums sites keep their scores and answer that they are ready; those are added up.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from archipel.core.types import HOME, Evaluate, Evaluated, Result, Score, Scored, collect_answers
from archipel.federation.controller.event_log import EventLog, PendingEvent
from archipel.federation.controller.meters import Meters
from archipel.federation.controller.outbox import Outbox
from archipel.federation.controller.secure_rounds import SecureRounds
from archipel.federation.controller.sessions import LearnerSession
from archipel.federation.controller.sum_totals import AddScores
from archipel.federation.controller.terms import HomeSite
from archipel.federation.controller.thread_pools import ThreadPools
from archipel.federation.storage.durable_controller import Moved
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.federation.wire.body import InvalidUpdate

log = logging.getLogger("archipel.federation")


@dataclass
class OpenQuestion:
    """A question that not all sites have answered."""

    command: Evaluate
    due: float
    found: dict[str, Result | None] = field(default_factory=dict)


class SiteEvaluations:
    """Ask sites to evaluate models, and collect their answers."""

    def __init__(
        self,
        event_log: EventLog,
        sessions: Mapping[str, LearnerSession],
        outbox: Outbox,
        workers: ThreadPools,
        sums: SecureRounds,
        meters: Meters,
        home: HomeSite | None,
        deadline: float,
    ) -> None:
        self._log = event_log
        self._sessions = sessions
        self._outbox = outbox
        self._workers = workers
        self._sums = sums
        self._meters = meters
        self._home = home
        self._deadline = deadline
        self._open: dict[int, OpenQuestion] = {}
        self._pooled: list[int] = []
        """Open questions whose answers are added up, one after the other in this order."""
        self._ready: dict[int, tuple[AddScores, Moved]] = {}
        """Those that all sites have answered."""

    def ask(self, command: Evaluate) -> None:
        """Ask every site of a question."""
        if not command.pooled:
            self._ask(command)
            return
        self._pooled.append(command.task)
        if command.task in self._sums.begun:  # go on after a crash
            self._make_ready(AddScores(command, self._sums.begun[command.task]), {})
        else:
            self._ask(command)

    def _make_ready(self, command: AddScores, moved: Moved) -> None:
        """Have scores added up when those before them are."""
        self._ready[command.task] = command, moved
        if self._pooled[0] == command.task:
            self._workers.start(self._add_up(command, moved))

    async def _add_up(self, command: AddScores, moved: Moved) -> None:
        """Have scores added up, of the same learners as before a crash."""
        traffic = self._outbox.traffic(command.task)
        if command.task not in self._sums.begun:
            members = self._log.state.members
            present = tuple(name for name in command.learners if members[name].active)  # others have left meanwhile
            command = AddScores(command.question, present)
            await self._sums.keep_scorers(command)
        await self._sums.begin_scores(command, traffic, moved)

    def _ask(self, command: Evaluate) -> None:
        self._open[command.task] = OpenQuestion(command, self._log.now + self._deadline)
        for site in command.sites:
            if site == HOME:
                self._workers.start(self._answer_at_home(command))
            else:
                self._outbox.give(site, command)

    async def _answer_at_home(self, command: Evaluate) -> None:
        home = self._home
        assert home is not None, "a study that is scored at home has data there"
        self.take(command.task, HOME, await self._workers.run_at_home(lambda: home.answer(command)))

    def receive(self, name: str, command: Evaluate, head: pb.Head) -> pb.Receipt:
        """Take a learner's answer to a question."""
        try:
            result = self._checked(name, command, head)
        except InvalidUpdate as error:
            self._meters.refusals.labels("opinion").inc()
            if self._log.note_refusal(name, task=command.task, reason=str(error)):
                about = {"learner": name, "task": command.task, "reason": str(error)}
                log.warning("an answer was refused", extra=about)
            self.take(command.task, name, None)
            return pb.Receipt(verdict=pb.Receipt.REFUSED, reason=str(error))
        self.take(command.task, name, result)
        return pb.Receipt(verdict=pb.Receipt.KEPT)

    def _checked(self, name: str, command: Evaluate, head: pb.Head) -> Result | None:
        match head.WhichOneof("result"):
            case "failed":
                self._log.note(name, "no opinion", task=command.task, reason=head.failed[:500])
                return None
            case "scored":
                assert isinstance(command.probe, Score)
                if command.pooled:
                    if head.scored != pb.Scored():
                        raise InvalidUpdate("the score of a single learner, which is to be added up")
                    return Scored(0, 0.0)  # it is ready
                state, bins = self._log.state, command.probe.bins
                member = state.members[name]
                count = member.validation if command.probe.part == "validation" else member.test
                result = messages.decode_scored(
                    head.scored, count=count, classes=state.classes, bins=bins, per_token=state.per_token
                )
                self._log.note(name, "opinion", task=command.task)
                return result
            case "trained":
                raise InvalidUpdate("an update in answer to a question")
        raise InvalidUpdate("an answer without a result to a question")

    def take(self, task: int, site: str, result: Result | None) -> None:
        """Store a site's result, or None for a failure; the first answer counts."""
        question = self._open.get(task)
        if question is None or site in question.found:
            return
        question.found[site] = result
        if site != HOME:
            self._sessions[site].orders.pop(task, None)
        if len(question.found) == len(question.command.sites):
            self._close(question)

    def silent(self) -> list[str]:
        """Return the learners for whose opinions an update has waited long enough; scores hold up nobody."""
        due = [one for one in self._open.values() if one.due <= self._log.now and not one.command.record]
        return sorted(site for one in due for site in one.command.sites if site not in one.found and site != HOME)

    def tell_due(self) -> list[PendingEvent]:
        """Close the questions that have waited long enough."""
        now = self._log.now
        told = [self._close(question) for question in list(self._open.values()) if question.due <= now]
        return [event for event in told if event is not None]

    def close(self, task: int) -> None:
        """Drop an answered question, and begin the next sum of scores."""
        self._open.pop(task, None)
        if task in self._pooled:
            self._pooled.remove(task)
            self._ready.pop(task, None)
            if self._pooled and (following := self._ready.get(self._pooled[0])) is not None:
                self._workers.start(self._add_up(*following))

    def _close(self, question: OpenQuestion) -> PendingEvent | None:
        """Tell the controller of the answers, or have them added up."""
        command = question.command
        self._open.pop(command.task, None)
        kind = "score down" if command.record else "evaluate down"
        moved: Moved = {}
        for layers in self._outbox.given(command.task):
            for layer, amount in layers.items():
                ledger = moved.setdefault(kind, {})
                ledger[layer] = ledger.get(layer, 0) + amount
        if command.pooled:
            learners = tuple(site for site in command.sites if question.found.get(site) is not None)
            for site in command.sites:
                self._sessions[site].orders.pop(command.task, None)
            self._make_ready(AddScores(command, learners), moved)
            return None
        answers = collect_answers(command.probe, [question.found.get(site) for site in command.sites])
        return self._log.post(Evaluated(command.task, answers, self._outbox.traffic(command.task)), moved=moved)

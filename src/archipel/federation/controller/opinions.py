"""Opinions: a model is tried at many sites at once, and one event tells what all of them found.

Opinions are safe when all are in. Until then a crash costs asking again; a site that has gone, or does not answer by
the deadline, costs one opinion.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archipel.core.types import HOME, Evaluate, Evaluated, Result, Score, collect_answers
from archipel.federation.storage.durable_controller import Moved
from archipel.federation.wire import codec as speech
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.body import Bad

if TYPE_CHECKING:
    from archipel.federation.controller.engine import Federation, Pending

log = logging.getLogger("archipel.federation")


@dataclass
class Asked:
    """A question that is out."""

    command: Evaluate
    due: float
    found: dict[str, Result | None] = field(default_factory=dict)


class Opinions:
    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self._asked: dict[int, Asked] = {}

    def ask(self, command: Evaluate) -> None:
        federation = self.federation
        self._asked[command.task] = Asked(command, federation.now + federation.terms.opinion_deadline)
        for site in command.sites:
            if site == HOME:
                federation.later(self._try_at_home(command))
            else:
                federation.orders.give(site, command)

    async def _try_at_home(self, command: Evaluate) -> None:
        home = self.federation.home
        assert home is not None, "a study that is scored at home has data there"
        self.take(command.task, HOME, await self.federation.in_home(lambda: home.answer(command)))

    def came(self, name: str, command: Evaluate, head: pb.Head) -> pb.Receipt:
        """A learner's answer to a question."""
        federation = self.federation
        kind = head.WhichOneof("result")
        try:
            if kind == "failed":
                result = None
                federation.note(name, "no opinion", task=command.task, reason=head.failed[:500])
            elif kind == "scored":
                result = self._heard(name, command, head.scored)
                federation.note(name, "opinion", task=command.task)
            elif kind == "trained":
                raise Bad("an update in answer to a question")
            else:
                raise Bad("an answer without a result to a question")
        except Bad as bad:
            federation.meters.refusals.labels("opinion").inc()
            federation.note(name, "refused", task=command.task, reason=str(bad))
            log.warning("an opinion was refused", extra={"learner": name, "task": command.task, "reason": str(bad)})
            self.take(command.task, name, None)
            return pb.Receipt(verdict=pb.Receipt.REFUSED, reason=str(bad))
        self.take(command.task, name, result)
        return pb.Receipt(verdict=pb.Receipt.KEPT)

    def _heard(self, name: str, command: Evaluate, said: pb.Scored) -> Result:
        assert isinstance(command.probe, Score)
        state = self.federation.book.controller.state
        member = state.members[name]
        count = member.validation if command.probe.part == "validation" else member.test
        return speech.hear_scored(said, count=count, classes=state.classes, bins=command.probe.bins)

    def take(self, task: int, site: str, result: Result | None) -> None:
        asked = self._asked.get(task)
        if asked is None or site in asked.found:
            return
        asked.found[site] = result
        if site != HOME:
            self.federation.seats[site].orders.pop(task, None)
        if len(asked.found) == len(asked.command.sites):
            self._tell(asked)

    def due(self) -> list[Pending]:
        """Those that have waited long enough."""
        now = self.federation.now
        return [self._tell(asked) for asked in list(self._asked.values()) if asked.due <= now]

    def forget(self, task: int) -> None:
        self._asked.pop(task, None)

    def _tell(self, asked: Asked) -> Pending:
        command = asked.command
        self.forget(command.task)
        kind = "score down" if command.record else "evaluate down"
        moved: Moved = {}
        for layers in self.federation.orders.given(command.task):
            for layer, amount in layers.items():
                ledger = moved.setdefault(kind, {})
                ledger[layer] = ledger.get(layer, 0) + amount
        answers = collect_answers(command.probe, [asked.found.get(site) for site in command.sites])
        event = Evaluated(command.task, answers, self.federation.orders.traffic(command.task))
        return self.federation.post(event, moved=moved)

"""Joining and heartbeats: compare a learner's study and network with the controller's; combine statistics."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence

from archipel.core.records import Capped
from archipel.core.shares import cap
from archipel.core.types import Joined, Progress, Train
from archipel.data.standardise import Moments, combine
from archipel.federation.controller.admissions import Admissions
from archipel.federation.controller.event_log import EventLog
from archipel.federation.controller.limiter import Quota
from archipel.federation.controller.sessions import LearnerSession
from archipel.federation.controller.status_board import StatusBoard
from archipel.federation.controller.terms import HomeSite, Rejected, RetryLater, Terms
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.federation.wire.body import InvalidUpdate

log = logging.getLogger("archipel.federation")

JOINS, STEPS = 30, 600
"""Joins and reports of steps a minute that are written to the journal, for each learner."""
FEW = 1 << 16
"""Bytes of a Join without statistics."""


class Joining:
    """Answer the calls Join and Beat."""

    def __init__(
        self,
        event_log: EventLog,
        sessions: Mapping[str, LearnerSession],
        admissions: Admissions,
        status: StatusBoard,
        terms: Terms,
        home: HomeSite | None,
        *,
        name: str,
        study: Mapping[str, str],
        layout: str,
        features: Sequence[int] | None,
    ) -> None:
        """Take the values that a learner's must equal.

        name: of this federation. study: hashes of its sections. layout: hashes of the layers and of the frozen weights.
        features: the shape of an example, where features are standardised by statistics over all learners.
        """
        self._log = event_log
        self._sessions = sessions
        self._admissions = admissions
        self._status = status
        self._terms = terms
        self._home = home
        self._name = name
        self._study = study
        self._layout = layout
        self._features = features
        self._told: dict[str, Moments] = {}
        """Moments of the learners that wait for the others'."""
        self._everybodys: Moments | None = None
        self._one_at_a_time = asyncio.Lock()
        self._joins, self._steps = Quota(JOINS), Quota(STEPS)

    @property
    def most_bytes(self) -> int:
        """Return the largest size of a Join message: some hashes, and two float64 for each feature."""
        return FEW + 16 * math.prod(self._features or (0,))

    async def load(self) -> None:
        """Load the combined statistics, if an earlier process has stored them."""
        stored = await self._log.in_writer(lambda: self._log.fact("moments", None))
        if stored is not None and self._features is not None:
            self._status.capped_moments(await self._log.in_writer(lambda: self._log.fact("capped", [])))
            self._adopt(self._checked(pb.Moments.FromString(bytes.fromhex(stored))))

    async def join(self, name: str, hello: pb.Hello) -> pb.Welcome:
        """Check a learner, and tell the controller that it has joined."""
        self._compare(name, hello)
        session, listed, terms = self._sessions[name], self._terms.learners[name], self._terms
        session.seen = self._log.now
        welcome = pb.Welcome(heartbeat=terms.heartbeat, silence=terms.silence, federation=self._name)
        if self._features is not None:
            async with self._one_at_a_time:  # statistics are combined once
                wait = await self._gather(name, hello)
            if wait is not None:
                welcome.wait = wait
                return welcome
            assert self._everybodys is not None
            welcome.moments.CopyFrom(messages.encode_moments(self._everybodys))
        joined = Joined(
            name,
            hello.examples if hello.HasField("examples") else None,
            hello.validation,
            hello.test,
            listed.group,
            listed.role,
            hello.fresh,
        )
        if self._may_train(session) and self._is_news(joined):
            if not self._joins.admit(name, self._log.now):
                raise RetryLater(f"{name} has joined {JOINS} times in a minute.")
            self._log.note(name, "joined", examples=joined.examples, fresh=joined.fresh)
            await self._log.post(joined).handled
            log.info("a learner has joined", extra={"learner": name, "fresh": joined.fresh})
            await self._admissions.has_joined(name)
        if joined.fresh:
            session.private.clear()
        return welcome

    async def beat(self, name: str, pulse: pb.Pulse) -> pb.Heard:
        """Note a heartbeat and the steps made; tell a learner that counts as gone to join again."""
        session = self._sessions[name]
        session.seen = self._log.now
        member = self._log.state.members.get(name)
        for task, steps in {told.task: told.steps for told in pulse.steps}.items():
            command = session.orders.get(task)
            if not isinstance(command, Train) or "progress" not in command.plan.reports:
                continue
            if member is None or steps > messages.most_steps(command.plan, member.examples):
                continue
            if self._steps.admit(name, self._log.now):
                self._log.post(Progress(task, steps))
        gone = member is None or not member.active
        join = gone and self._may_train(session) and self._log.stopped is None
        return pb.Heard(join=join, unwanted=sorted(self._log.durable.controller.unwanted()))

    def _may_train(self, session: LearnerSession) -> bool:
        """Return whether a learner is neither paused nor resting."""
        return session.name not in self._admissions.paused and session.rests_until <= self._log.now

    def _compare(self, name: str, hello: pb.Hello) -> None:
        if hello.protocol != messages.PROTOCOL:
            raise Rejected(
                f"This controller speaks version {messages.PROTOCOL} of the protocol, the learner version "
                f"{hello.protocol}. Install the same version of Archipel on both sides."
            )
        theirs = dict(hello.study)
        differ = sorted(key for key in self._study.keys() | theirs.keys() if self._study.get(key) != theirs.get(key))
        if differ:
            raise Rejected(
                f"The study of {name} differs from the controller's in {', '.join(differ)[:500]}. "
                "Give both sides the same study file and the same code."
            )
        (mine, _, frozen), (theirs_layers, _, theirs_frozen) = (
            told.partition(" ") for told in (self._layout, hello.layout)
        )
        if mine == theirs_layers and frozen != theirs_frozen:
            raise Rejected(
                f"The frozen weights of {name} differ from the controller's: their SHA-256 is "
                f"{theirs_frozen[:16] or 'missing'}, here it is {frozen[:16] or 'missing'}. Give both sides the same "
                "base network."
            )
        if mine != theirs_layers:
            raise Rejected(
                f"The network of {name} has other layers or shapes than the controller's. Do its data have other "
                "columns or classes than the others'?"
            )
        if hello.federation not in ("", self._name):
            raise Rejected(
                f"The folder of {name} holds answers and private layers of another federation. Give the learner "
                "another folder with --state; or remove that one, if it is no longer needed."
            )
        self._check_counts(name, hello)

    def _check_counts(self, name: str, hello: pb.Hello) -> None:
        """Check counts, which decide weights, against the study's limits and those of the first join."""
        for what in ("examples", "validation", "test"):
            told, most = getattr(hello, what), getattr(self._terms.limits, what)
            if told > most:
                raise Rejected(
                    f"{name} claims {told} examples ({what}); at most {most} are allowed. If that is true, raise "
                    f"federation.limits.{what} in the controller's study."
                )
        member = self._log.state.members.get(name)
        if member is None or name in self._admissions.readmitted:
            return
        before = (member.examples, member.validation, member.test)
        told = (hello.examples if hello.HasField("examples") else None, hello.validation, hello.test)
        if told != before:
            raise Rejected(
                f"{name} claims {_counts(told)}; when it first joined it had {_counts(before)}, and these counts "
                "decide "
                "its weight. If its data have changed, an operator must readmit it: archipel operator "
                f"withdraw {name}, then readmit {name}."
            )

    def _is_news(self, joined: Joined) -> bool:
        member = self._log.state.members.get(joined.learner)
        if member is None or not member.active or joined.fresh:
            return True
        told = (joined.examples, joined.validation, joined.test)
        return told != (member.examples, member.validation, member.test)

    async def _gather(self, name: str, hello: pb.Hello) -> str | None:
        """Combine all learners' statistics once enough have sent theirs; until then return what is missing."""
        assert self._features is not None
        if self._everybodys is not None:
            return None
        if not hello.HasField("moments"):
            raise Rejected(
                "This study standardises features by everybody's statistics, and the learner tells none. "
                "Does its operator refuse the moments?"
            )
        try:
            told = messages.decode_moments(hello.moments, self._features)
            if told.count > self._terms.limits.examples:
                raise InvalidUpdate(f"of {told.count} examples, at most {self._terms.limits.examples} are allowed")
            if hello.HasField("examples") and told.count != hello.examples:
                raise InvalidUpdate(f"of {told.count} examples, {hello.examples} were registered")
            self._told[name] = told
        except InvalidUpdate as error:
            raise Rejected(f"The moments of {name}: {error}.") from None
        terms = self._terms
        training = [who for who in sorted(self._told) if terms.learners[who].role == "train"]
        if len(training) < terms.wait_for:
            return f"{len(training)} of {terms.wait_for} learners have sent the moments of their features"
        together, cut = self._combined(training)
        try:
            everybodys = self._checked(together)
        except InvalidUpdate as error:  # checked before it is stored for good
            del self._told[name]
            raise Rejected(f"The moments of {name} do not fit those of the others: {error}.") from None
        self._log.note("controller", "combined moments", learners=training, count=together.count)
        for who in cut:
            self._status.warn_of_share(Capped(who, "moments", terms.limits.most_share))
        await self._log.store(moments=together.SerializeToString().hex(), capped=cut)
        self._status.capped_moments(cut)
        self._adopt(everybodys)
        return None

    def _combined(self, learners: Sequence[str]) -> tuple[pb.Moments, list[str]]:
        """Return the combined moments, each learner limited to the largest share allowed, and who was limited."""
        told = [self._told[who] for who in learners]
        counts = [one.count for one in told]
        within = [max(1, int(count)) for count in cap(counts, self._terms.limits.most_share)]
        parts = [_fewer(one, count) for one, count in zip(told, within, strict=True)]
        cut = [who for who, before, after in zip(learners, counts, within, strict=True) if after < before]
        return messages.encode_moments(combine(parts)), cut

    def _checked(self, together: pb.Moments) -> Moments:
        """Return the combined moments, checked; rounding may exceed the bounds of a single learner a little."""
        assert self._features is not None
        return messages.decode_moments(together, self._features, largest=2 * messages.LARGEST)

    def _adopt(self, everybodys: Moments) -> None:
        if self._home is not None:
            self._home.standardise(everybodys)
        self._everybodys = everybodys


def _fewer(moments: Moments, count: int) -> Moments:
    """Return the moments as if there were so many examples of the same distribution."""
    if count == moments.count:
        return moments
    share = count / moments.count
    return Moments(count, share * moments.sum, share * moments.squares)


def _counts(told: tuple[int | None, int, int]) -> str:
    examples, validation, test = told
    return (
        f"{'an undisclosed number of' if examples is None else examples} examples, {validation} to validate, "
        f"{test} to test"
    )

"""Joining: is it the same study, the same network, and what do everybody's features look like?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from archipel.core.shares import cap
from archipel.core.types import Joined
from archipel.data.standardise import Moments, combine
from archipel.federation.controller.terms import Rejected
from archipel.federation.wire import codec as speech
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.body import Bad

if TYPE_CHECKING:
    from archipel.federation.controller.engine import Federation

log = logging.getLogger("archipel.federation")


class Joining:
    def __init__(
        self, federation: Federation, study: Mapping[str, str], layout: str, features: Sequence[int] | None
    ) -> None:
        self.federation = federation
        self.study = study
        self.layout = layout
        self.features = features
        self._told: dict[str, Moments] = {}
        """Moments of those who wait for the others'."""
        self._everybodys: Moments | None = None
        self._one_at_a_time = asyncio.Lock()
        self.capped: tuple[str, ...] = ()
        """Whose moments were cut to the share that anybody may have."""

    async def remember(self) -> None:
        """Everybody's statistics, if they were settled in an earlier process."""
        settled = await self.federation.in_clerk(lambda: self.federation.fact("moments", None))
        if settled is not None and self.features is not None:
            self._note_capped(await self.federation.in_clerk(lambda: self.federation.fact("capped", [])))
            self._settle(self._checked(pb.Moments.FromString(bytes.fromhex(settled))))

    async def join(self, name: str, hello: pb.Hello) -> pb.Welcome:
        self._compare(name, hello)
        federation = self.federation
        seat, guest, terms = federation.seats[name], federation.terms.learners[name], federation.terms
        seat.seen = federation.now
        welcome = pb.Welcome(heartbeat=terms.heartbeat, silence=terms.silence, federation=federation.name)
        if self.features is not None:
            async with self._one_at_a_time:  # what is settled is settled once
                wait = await self._gather(name, hello)
            if wait is not None:
                welcome.wait = wait
                return welcome
            assert self._everybodys is not None
            welcome.moments.CopyFrom(speech.say_moments(self._everybodys))
        joined = Joined(
            name,
            hello.examples if hello.HasField("examples") else None,
            hello.validation,
            hello.test,
            guest.group,
            guest.role,
            hello.fresh,
        )
        if name not in federation.operators.paused and self._is_news(joined):
            federation.note(name, "joined", examples=joined.examples, fresh=joined.fresh)
            await federation.post(joined).handled
            log.info("a learner has joined", extra={"learner": name, "fresh": joined.fresh})
            await federation.operators.has_joined(name)
        if joined.fresh:
            seat.private.clear()
        return welcome

    def _compare(self, name: str, hello: pb.Hello) -> None:
        if hello.protocol != speech.PROTOCOL:
            raise Rejected(
                f"This controller speaks version {speech.PROTOCOL} of the protocol, the learner version "
                f"{hello.protocol}. Install the same version of Archipel on both sides."
            )
        theirs = dict(hello.study)
        differ = sorted(key for key in self.study.keys() | theirs.keys() if self.study.get(key) != theirs.get(key))
        if differ:
            raise Rejected(
                f"The study of {name} is not the controller's: they differ in {', '.join(differ)[:500]}. "
                "Give both sides the same study file and the same code."
            )
        if hello.layout != self.layout:
            raise Rejected(
                f"The network of {name} has other layers or shapes than the controller's. Do its data have other "
                "columns or classes than the others'?"
            )
        if hello.federation not in ("", self.federation.name):
            raise Rejected(
                f"The folder of {name} holds answers and private layers of another federation. Give the learner "
                "another folder with --state; or, if they are not needed any more, remove it."
            )
        self._check_counts(name, hello)

    def _check_counts(self, name: str, hello: pb.Hello) -> None:
        """Counts decide weights: the study bounds them, and they stay as they were when the learner first joined."""
        for what in ("examples", "validation", "test"):
            told, most = getattr(hello, what), getattr(self.federation.terms.limits, what)
            if told > most:
                raise Rejected(
                    f"{name} says it has {told} examples ({what}); at most {most} are allowed. If it has, raise "
                    f"federation.limits.{what} in the controller's study."
                )
        member = self.federation.book.controller.state.members.get(name)
        if member is None or name in self.federation.operators.readmitted:
            return
        before = (member.examples, member.validation, member.test)
        told = (hello.examples if hello.HasField("examples") else None, hello.validation, hello.test)
        if told != before:
            raise Rejected(
                f"{name} says it has {_counts(told)}; when it first joined it had {_counts(before)}, and that decides "
                "what its updates count. If its data have changed, an operator lets it in anew: archipel operator "
                f"withdraw {name}, then readmit {name}."
            )

    def _is_news(self, joined: Joined) -> bool:
        member = self.federation.book.controller.state.members.get(joined.learner)
        if member is None or not member.active or joined.fresh:
            return True
        told = (joined.examples, joined.validation, joined.test)
        return told != (member.examples, member.validation, member.test)

    async def _gather(self, name: str, hello: pb.Hello) -> str | None:
        """Everybody's statistics, once enough have told theirs; what is waited for, until then."""
        assert self.features is not None
        if self._everybodys is not None:
            return None
        if not hello.HasField("moments"):
            raise Rejected(
                "This study standardises features by everybody's statistics, and the learner tells none. "
                "Does its operator refuse the moments?"
            )
        try:
            told = speech.hear_moments(hello.moments, self.features)
            if told.count > self.federation.terms.limits.examples:
                raise Bad(f"of {told.count} examples, at most {self.federation.terms.limits.examples} are allowed")
            if hello.HasField("examples") and told.count != hello.examples:
                raise Bad(f"of {told.count} examples, {hello.examples} were registered")
            self._told[name] = told
        except Bad as bad:
            raise Rejected(f"The moments of {name}: {bad}.") from None
        terms = self.federation.terms
        training = [who for who in sorted(self._told) if terms.learners[who].role == "train"]
        if len(training) < terms.wait_for:
            return f"{len(training)} of {terms.wait_for} learners have told the moments of their features"
        together, cut = self._combined(training)
        try:
            everybodys = self._checked(together)
        except Bad as bad:  # what is settled stays: it is looked at before
            del self._told[name]
            raise Rejected(f"The moments of {name} do not go together with the others': {bad}.") from None
        self.federation.note("controller", "combined moments", learners=training, count=together.count)
        for who in cut:
            self.federation.warn_of_share(who, "moments", terms.limits.most_share)
        await self.federation.settle(moments=together.SerializeToString().hex(), capped=cut)
        self._note_capped(cut)
        self._settle(everybodys)
        return None

    def _combined(self, learners: Sequence[str]) -> tuple[pb.Moments, list[str]]:
        """Everybody's moments, nobody's by more than the share anybody may have; and whose were cut to it."""
        told = [self._told[who] for who in learners]
        counts = [one.count for one in told]
        within = [max(1, int(count)) for count in cap(counts, self.federation.terms.limits.most_share)]
        parts = [_fewer(one, count) for one, count in zip(told, within, strict=True)]
        cut = [who for who, before, after in zip(learners, counts, within, strict=True) if after < before]
        return speech.say_moments(combine(parts)), cut

    def _note_capped(self, learners: Sequence[str]) -> None:
        self.capped = tuple(learners)
        if learners:
            self.federation.meters.capped.labels("moments").set(len(learners))

    def _checked(self, together: pb.Moments) -> Moments:
        """Everybody's moments; rounding may have led a little beyond what each learner's may be."""
        assert self.features is not None
        return speech.hear_moments(together, self.features, largest=2 * speech.LARGEST)

    def _settle(self, everybodys: Moments) -> None:
        if self.federation.home is not None:
            self.federation.home.standardise(everybodys)
        self._everybodys = everybodys


def _fewer(moments: Moments, count: int) -> Moments:
    """As if it had so many examples that are alike."""
    if count == moments.count:
        return moments
    share = count / moments.count
    return Moments(count, share * moments.sum, share * moments.squares)


def _counts(told: tuple[int | None, int, int]) -> str:
    examples, validation, test = told
    return (
        f"{'an untold number of' if examples is None else examples} examples, {validation} to validate, {test} to test"
    )

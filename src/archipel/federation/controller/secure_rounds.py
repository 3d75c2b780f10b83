"""Secure sums in a federation: route what learners send each other, journal it, and add up masked numbers.

Law: journal, then handle, then send. Every message of a learner and every end of a phase is a row on the disk before it
counts, in the order in which it counts. After a crash the rows are replayed in a new collector, which then asks the
same learners the same again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from archipel.core.pooled_scores import ImpossibleScores, ScoreNumbers
from archipel.core.types import AddUp, Failed, Score, Traffic
from archipel.federation.controller.event_log import EventLog
from archipel.federation.controller.limiter import Quota
from archipel.federation.controller.piecewise_uploads import PiecewiseUploads
from archipel.federation.controller.sessions import LearnerSession
from archipel.federation.controller.sum_totals import AddScores, ScoreTotal, SumOutcome, SumRules, Total, UpdateTotal
from archipel.federation.controller.terms import RetryLater
from archipel.federation.controller.thread_pools import ThreadPools
from archipel.federation.controller.uploads import BROKEN_OFF, SMALL, TOO_MUCH, Expected
from archipel.federation.storage.blobs import Buffer
from archipel.federation.storage.durable_controller import DurableController, Moved
from archipel.federation.storage.journal import SumRow
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import sum_steps
from archipel.federation.wire.body import InvalidUpdate
from archipel.privacy.secure_sum.masks import whole_type
from archipel.privacy.secure_sum.quantiser import BeyondRange
from archipel.privacy.secure_sum.sum_collector import SumCollector
from archipel.privacy.secure_sum.sum_messages import PHASES, SecureSumRefused, WrongSecret

GONE, CLOSED, COHORT = "gone", "closed", "cohort"
"""Kinds of rows beside the phases: a learner has left the sum; a phase is over; whose scores are added up."""
UNASKED = 600
"""Answers a minute of a learner that is not waited for."""

log = logging.getLogger("archipel.federation")


@dataclass
class OpenSum:
    """An open sum."""

    command: AddUp | AddScores
    total: Total
    collector: SumCollector
    due: float
    masked: dict[str, SumRow] = field(default_factory=dict)
    """Rows of masked numbers by learner."""
    finishing: bool = False

    @property
    def size(self) -> int:
        """Bytes of a learner's masked numbers."""
        return self.total.size * self.total.bits // 8


class SecureRounds:
    """Carry out `AddUp`, and add up scores."""

    def __init__(
        self,
        event_log: EventLog,
        sessions: Mapping[str, LearnerSession],
        workers: ThreadPools,
        large: PiecewiseUploads,
        rules: SumRules | None,
        *,
        federation: str,
        deadline: float,
    ) -> None:
        """federation: its name; deadline: seconds of a phase."""
        self._log, self._sessions, self._workers, self._large = event_log, sessions, workers, large
        self._rules, self._federation, self._deadline = rules, federation, deadline
        self.active = rules is not None
        """Whether the study has secure sums."""
        self._durable: DurableController = event_log.durable
        self.begun: dict[int, tuple[str, ...]] = {}
        """Sums of scores that an earlier process has begun, and whose."""
        self._open: dict[int, OpenSum] = {}
        self._rows: list[tuple[SumRow, asyncio.Future[str]]] = []
        self._unasked = Quota(UNASKED)
        self._writing = False
        self._spoilers: list[str] = []

    # ------------------------------------------------------------------------------------------------------ beginning

    async def begin(self, command: AddUp) -> None:
        """Begin a sum of updates, or continue one of an earlier process."""
        assert self._rules is not None, "a study without secure sums adds nothing up"
        await self._begin(command, UpdateTotal(command, self._rules, self._durable))

    async def begin_scores(self, command: AddScores, traffic: Traffic, moved: Moved) -> None:
        """Begin a sum of scores, or continue one of an earlier process; traffic, moved: of the question."""
        state, probe = self._log.state, command.question.probe
        assert isinstance(probe, Score), "only scores are added up"
        numbers = ScoreNumbers(state.classes, probe.bins, state.per_token)
        await self._begin(command, ScoreTotal(command, numbers, traffic, moved))

    async def load(self) -> None:
        """Read whose scores an earlier process has begun to add up."""
        rows = await self._log.in_writer(lambda: self._durable.journal.sum_rows_of(COHORT))
        self.begun = {row.task: tuple(json.loads(row.content)) for row in rows}

    async def keep_scorers(self, command: AddScores) -> None:
        """Write down whose scores are added up, so that a later process adds up the same."""
        row = SumRow(command.task, "", COHORT, json.dumps(command.learners).encode(), "")
        await self._log.in_writer(lambda: self._durable.journal.keep_sum_rows([row]))

    async def _begin(self, command: AddUp | AddScores, total: Total) -> None:
        rules = self._rules
        assert rules is not None, "a study without secure sums adds nothing up"
        name = f"{self._federation}/{command.task}"
        collector = SumCollector(
            name, command.learners, least=rules.sums.at_least, threshold=rules.sums.threshold, verify=rules.verify
        )
        due = self._log.now + self._deadline
        found = self._open[command.task] = OpenSum(command, total, collector, due)
        for row in await self._log.in_writer(lambda: self._pinned_rows(command.task)):
            if row.kind != COHORT:
                self._count(found, row)
        for learner in command.learners:
            self._sessions[learner].orders[command.task] = command
        self._tell(found)
        self._go_on(found)

    def _pinned_rows(self, task: int) -> list[SumRow]:
        """In the writer's thread, before it makes a snapshot: what an earlier process has written of a sum."""
        rows = self._durable.journal.sum_rows(task)
        for row in rows:
            if row.blob:
                self._durable.blobs.pin(row.blob)
        return rows

    def _tell(self, found: OpenSum) -> None:
        """Send requests to the learners that the phase waits for."""
        found.due = self._log.now + self._deadline
        if found.collector.phase == "over":
            return
        for learner in sorted(found.collector.waiting):
            self._sessions[learner].tell("do", found.command.task)

    def order(self, learner: str, command: AddUp | AddScores) -> pb.Order | None:
        """Return the request for a learner; None if the phase does not wait for it."""
        found = self._open.get(command.task)
        if found is None or found.collector.phase == "over" or learner not in found.collector.waiting:
            return None
        assert self._rules is not None
        collector, step = found.collector, pb.SumStep(task=command.task, phase=found.collector.phase)
        match collector.phase:
            case "advertise":
                found.total.ask(learner, step)
                step.terms.CopyFrom(sum_steps.encode_terms(self._rules.sums))
            case "share":
                cohort = collector.cohort_for(learner)
                step.told.extend(sum_steps.encode_named(cohort.digests))
                step.keys.extend(sum_steps.encode_keys(cohort.keys[name]) for name in sorted(cohort.keys))
            case "mask":
                step.told.extend(sum_steps.encode_named(collector.boxes_for(learner)))
            case _:
                step.told.extend(sum_steps.encode_named(collector.tags_for(learner)))
        return pb.Order(sum=step)

    # -------------------------------------------------------------------------------------------------------- answers

    async def receive(
        self, session: LearnerSession, command: AddUp | AddScores, head: pb.Head, pieces: AsyncIterator[Buffer]
    ) -> pb.Receipt:
        """Receive a learner's answer to a phase; it is on disk when this returns."""
        found, name = self._open.get(command.task), session.name
        if found is None:
            return pb.Receipt(verdict=pb.Receipt.LATE)
        if name not in found.collector.waiting and not self._unasked.admit(name, self._log.now):
            raise RetryLater(f"{name} has answered {UNASKED} times in a minute what it was not asked in a sum.")
        if head.WhichOneof("result") != "sum":
            if name not in found.collector.waiting:  # it is gone, or has answered
                return pb.Receipt(verdict=pb.Receipt.KEPT)
            reason = head.failed[:500] or "an answer of another kind"
            self._log.note(name, "no part in the sum", task=command.task, reason=reason)
            log.warning("a learner takes no part in a sum", extra={"learner": name, "reason": reason})
            await self._write(SumRow(command.task, name, GONE, b"", ""))
            return pb.Receipt(verdict=pb.Receipt.KEPT)
        answer = head.sum
        if answer.phase != found.collector.phase or name not in found.collector.waiting:
            before = PHASES.index(answer.phase) if answer.phase in PHASES else len(PHASES)
            known = name in found.collector.answered or before < PHASES.index(found.collector.phase)
            return pb.Receipt(verdict=pb.Receipt.KEPT if known else pb.Receipt.REFUSED)
        blob, content = "", answer.SerializeToString()
        try:
            if len(content) > SMALL:
                raise InvalidUpdate(
                    f"an answer of {len(content):,} bytes beside the numbers, at most {SMALL:,} are taken"
                )
            if answer.phase == "mask":
                blob, content = await self._take_numbers(session, found, head, pieces, content)
        except InvalidUpdate as error:
            self._log.note_refusal(name, task=command.task, reason=str(error))
            await self._write(SumRow(command.task, name, GONE, b"", ""))
            return pb.Receipt(verdict=pb.Receipt.REFUSED, reason=str(error))
        reason = await self._write(SumRow(command.task, name, answer.phase, content, blob))
        if reason:
            self._log.note_refusal(name, task=command.task, reason=reason)
            return pb.Receipt(verdict=pb.Receipt.REFUSED, reason=reason)
        self._log.note(name, "in the sum", task=command.task, phase=answer.phase)
        return pb.Receipt(verdict=pb.Receipt.KEPT)

    async def _take_numbers(
        self,
        session: LearnerSession,
        found: OpenSum,
        head: pb.Head,
        pieces: AsyncIterator[Buffer],
        answer: bytes,
    ) -> tuple[str, bytes]:
        """Return the file of masked numbers, and the row's content, in which few numbers are themselves."""
        name = head.sha256.hex()
        if head.size != found.size or len(name) != 64:
            raise InvalidUpdate(f"masked numbers of {head.size:,} bytes, expected {found.size:,}")
        if found.size <= SMALL and head.offset == 0:
            body: Buffer = b""
            async for piece in pieces:
                body = piece if not body else b"".join((body, piece))
                if len(body) > found.size:
                    raise InvalidUpdate(TOO_MUCH.format(found.size))
            if len(body) < found.size:
                raise RetryLater(BROKEN_OFF.format(len(body), found.size))
            if hashlib.sha256(body).hexdigest() != name:
                raise InvalidUpdate("the SHA-256 of the masked numbers is not the one that was announced")
            return "", len(answer).to_bytes(8, "little") + answer + bytes(body)
        check = MaskedCheck(Expected("", {}, (0,), found.size, name))
        delivery = await self._large.take(session, head, check, pieces)  # type: ignore[arg-type]
        return delivery.blob, len(answer).to_bytes(8, "little") + answer

    async def _write(self, row: SumRow) -> str:
        """Journal a row and apply it; return why it does not count, or an empty text."""
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._rows.append((row, done))
        if not self._writing:
            self._writing = True
            self._workers.start(self._write_rows())
        return await done

    async def _write_rows(self) -> None:
        """Write rows as they come, many at a time, and apply them in order."""
        try:
            while self._rows:
                rows, self._rows = self._rows, []
                open_ = [row for row, _ in rows if row.task in self._open]
                await self._log.in_writer(partial(self._durable.journal.keep_sum_rows, open_))
                for row, done in rows:
                    found = self._open.get(row.task)
                    reason = self._count(found, row)
                    if not done.cancelled():
                        done.set_result(reason)
                for task in {row.task for row, _ in rows}:
                    if (found := self._open.get(task)) is not None:
                        self._go_on(found)
        finally:
            self._writing = False

    def _count(self, found: OpenSum | None, row: SumRow) -> str:
        """Count a row; return why it does not count, or nothing. Numbers of one that does not are needed no longer."""
        reason = "the sum is over" if found is None else self._apply(found, row)
        if reason and row.blob:
            self._durable.blobs.unpin(row.blob)  # the next snapshot removes the file, unless it is another's too
        return reason

    def _apply(self, found: OpenSum, row: SumRow) -> str:
        """Change the sum by a row; return why it does not count, or nothing: then its learner is gone."""
        collector = found.collector
        if row.kind == GONE:
            collector.gone(row.learner)
            return ""
        try:
            if row.kind == CLOSED:
                collector.close()
                return ""
            content = row.content
            if row.kind == "mask":
                length = int.from_bytes(content[:8], "little")
                content = content[8 : 8 + length]
            answer = pb.SumAnswer.FromString(content)
            match row.kind:
                case "advertise":
                    keys = sum_steps.decode_keys(answer.keys)
                    if keys.learner != row.learner:
                        raise SecureSumRefused(f"{row.learner} sent keys of {keys.learner[:100]!r}")
                    collector.take_keys(keys)
                case "share":
                    collector.take_boxes(row.learner, sum_steps.decode_named(answer.given))
                case "mask":
                    collector.take_sent(row.learner, sum_steps.decode_named(answer.given))
                    found.masked[row.learner] = row
                case "confirm":
                    collector.take_confirmed(row.learner, sum_steps.decode_named(answer.given))
                case "reveal":
                    collector.take_shares(row.learner, sum_steps.decode_shares(answer))
        except SecureSumRefused as refused:
            if row.kind == CLOSED:
                raise
            collector.gone(row.learner)
            return str(refused)
        return ""

    # -------------------------------------------------------------------------------------------------- phase by phase

    def gone(self, learner: str, task: int) -> None:
        """Stop waiting for a learner that has left."""
        found = self._open.get(task)
        if found is not None and learner in found.collector.waiting:
            self._workers.start(self._leave(SumRow(task, learner, GONE, b"", "")))

    async def _leave(self, row: SumRow) -> None:
        await self._write(row)

    def spoilers(self) -> list[str]:
        """Return the learners whose secrets could not be recovered since the last call."""
        spoilers, self._spoilers = self._spoilers, []
        return spoilers

    def close_due(self) -> list[str]:
        """Close the phases that have waited long enough; return the learners that they have waited for in vain."""
        silent: list[str] = []
        for found in list(self._open.values()):
            if found.due <= self._log.now and not found.finishing:
                silent += found.collector.waiting
                self._go_on(found, late=True)
        return sorted(silent)

    def _go_on(self, found: OpenSum, *, late: bool = False) -> None:
        """Close the phase if it can be closed, or has to be."""
        collector = found.collector
        if found.finishing or not (late or collector.complete or collector.phase == "over"):
            return
        found.finishing = True
        self._workers.start(self._guarded(found))

    async def _guarded(self, found: OpenSum) -> None:
        """Close the phase, or the sum; an error costs the sum, and the run goes on."""
        try:
            await (self._finish(found) if found.collector.phase == "over" else self._close_phase(found))
        except Exception:
            log.exception("an error in a sum", extra={"task": found.command.task})
            self._fail(found, "an error at the controller, whose log tells more")

    async def _recovered(self, found: OpenSum) -> bool:
        """Return whether no further share is needed: else who is first with wrong ones would end the sum."""
        collector, before = found.collector, -1
        while collector.waiting and found.due > self._log.now and before != len(collector.answered):
            before = len(collector.answered)
            if await self._workers.run(lambda: collector.recovered):
                return True
        return not collector.waiting or found.due <= self._log.now

    async def _close_phase(self, found: OpenSum) -> None:
        task, collector = found.command.task, found.collector
        if collector.phase == "reveal" and not await self._recovered(found):
            found.finishing = False
            return  # some of the shares are wrong: one that is still to come may show which
        row = SumRow(task, "", CLOSED, b"", "")
        await self._log.in_writer(lambda: self._durable.journal.keep_sum_rows([row]))
        try:
            phase = found.collector.close()
        except SecureSumRefused as refused:
            self._fail(found, str(refused))
            return
        found.finishing = False
        log.info("a phase of a sum is over", extra={"task": task, "next": phase})
        self._tell(found)
        self._go_on(found)

    def _fail(self, found: OpenSum, reason: str) -> None:
        log.warning("a sum has failed", extra={"task": found.command.task, "reason": reason})
        self._log.note("controller", "no sum", task=found.command.task, reason=reason)
        self._log.post(Failed(found.command.task, reason, found.total.traffic))

    async def _finish(self, found: OpenSum) -> None:
        """Add up, remove the masks, and give the controller the result."""
        try:
            outcome, liars = await self._workers.run(lambda: self._outcome(found))
        except (SecureSumRefused, BeyondRange, ImpossibleScores) as refused:
            if isinstance(refused, WrongSecret):
                self._spoilers.append(refused.learner)
            self._fail(found, str(refused))
            return
        for name in liars:
            self._log.note(name, "gave wrong shares", task=found.command.task)
            log.warning("a learner gave wrong shares", extra={"learner": name, "task": found.command.task})
        self._log.post(outcome.event, None, outcome.delivery, moved=outcome.moved)

    def _outcome(self, found: OpenSum) -> tuple[SumOutcome, frozenset[str]]:
        """In a thread: what the sum leads to, and who gave wrong shares."""
        dtype = whole_type(found.total.bits)
        total = np.zeros(found.total.size, dtype)
        for name in sorted(found.collector.senders):
            total += np.frombuffer(self._numbers(found.masked[name]), dtype)
        total, liars = found.collector.unmask(total)
        return found.total.outcome(total, found.collector), liars

    def _numbers(self, row: SumRow) -> bytes:
        if row.blob:
            return self._durable.blobs.path(row.blob).read_bytes()
        return row.content[8 + int.from_bytes(row.content[:8], "little") :]

    async def close(self, task: int) -> None:
        """Drop an answered sum and its rows on disk."""
        found = self._open.pop(task, None)
        if found is None:
            return
        for name in found.command.learners:
            self._sessions[name].orders.pop(task, None)
        await self._log.in_writer(lambda: self._durable.journal.forget_sum(task))
        for row in found.masked.values():
            if row.blob:
                self._durable.blobs.unpin(row.blob)
                self._durable.blobs.path(row.blob).unlink(missing_ok=True)


class MaskedCheck:
    """Checks masked numbers as they arrive: any numbers are valid, so only their hash can show damage."""

    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        self.seen = 0
        self._digest = hashlib.sha256()

    def check(self, data: Buffer) -> None:
        self.seen += len(data)
        self._digest.update(data)

    def passed(self) -> int:
        """Return where the numbers begin; raise `InvalidUpdate` if their hash is not the announced one."""
        if self._digest.hexdigest() != self.expected.name:
            raise InvalidUpdate("the SHA-256 of the masked numbers is not the one that was announced")
        return 0

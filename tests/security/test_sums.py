"""A learner that lies in a secure sum, or a disk that fails, costs a sum, and neither the disk nor the run."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archipel.core.records import Refused
from archipel.core.types import AddUp
from archipel.federation.controller import secure_rounds
from archipel.federation.controller.secure_rounds import SecureRounds
from archipel.federation.controller.uploads import SMALL
from archipel.federation.learner.agent import Agent
from archipel.federation.learner.link import Link
from archipel.federation.learner.masked_updates import MaskedUpdates
from archipel.federation.security.tls import channel_credentials
from archipel.federation.wire import federation_pb2 as pb
from archipel.privacy.secure_sum.masking_learner import MaskingLearner
from archipel.privacy.secure_sum.sum_messages import Cohort
from tests.federation.in_one_process import Held, hold, study
from tests.federation.test_secure_rounds import papers as papers
from tests.waiting import reached

pytestmark = pytest.mark.slow

LIAR, FIRST = "03", "00"
"""FIRST: whose shares are among those that are tried first."""
SENT = 40


def sums(**sections: Any) -> dict[str, Any]:
    four = {
        "algorithms": [{"name": "fedavg", "privacy": "SecureSum(threshold=0.7)"}],
        "data": {"split": {"learners": 4}},
        "ending": {"rounds": 2},
    }
    return study(**{**four, **sections})


def audit_of(folder: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(folder / "state" / "journal.sqlite")) as base:
        return list(base.execute("SELECT who, what FROM audit"))


def audit(held: Held) -> list[tuple[str, str]]:
    return [(who, what) for _, _, who, what, *_ in held.federation.durable.journal.audit()]


def test_answers_in_a_loop_fill_neither_journal_nor_audit(
    tmp_path: Path, papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the code before, each was a row of the sum and one of the audit."""
    monkeypatch.setattr(secure_rounds, "UNASKED", SENT // 2)
    obey, going, codes, rows = Agent._obey, asyncio.Event(), list[bool](), list[int]()

    async def waits(agent: Agent, order: pb.Order) -> None:
        if order.WhichOneof("what") == "sum":
            if agent.island.learner.name == LIAR and not going.is_set():
                return
            if agent.island.learner.name == "00":
                await going.wait()  # the sum stays open meanwhile
        await obey(agent, order)

    async def floods(held: Held) -> None:
        federation = held.federation
        orders = federation.sessions[LIAR].orders
        await reached(lambda: any(isinstance(one, AddUp) for one in orders.values()), "a sum")
        (task,) = [task for task, one in orders.items() if isinstance(one, AddUp)]
        port = int(held.agents[LIAR].link.address.rpartition(":")[2])
        line = Link(f"localhost:{port}", channel_credentials(papers / LIAR))
        for sequence in range(SENT):
            portion = pb.Portion(head=pb.Head(task=task, sequence=1000 + sequence, failed="no"))
            try:
                await line._reply(portion)
                codes.append(True)
            except Exception:
                codes.append(False)
        await line.close()
        kept = await federation.log.in_writer(lambda: federation.durable.journal.sum_rows(task))
        rows.append(sum(row.learner == LIAR for row in kept))
        rows.append((await federation.log.in_writer(lambda: audit(held))).count((LIAR, "no part in the sum")))
        going.set()

    monkeypatch.setattr(Agent, "_obey", waits)
    held = hold(sums(), tmp_path, floods, papers=papers)
    assert held.run is not None
    assert len(held.run.commits) == 2
    assert rows == [1, 1]
    assert codes == [True] * (1 + SENT // 2) + [False] * (SENT - SENT // 2 - 1)


def test_numbers_that_do_not_count_are_not_kept(tmp_path: Path, papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the code before, a file as large as the model stayed for each of them, and was never removed."""
    answer = MaskedUpdates._answer

    def without_tags(updates: MaskedUpdates, step: pb.SumStep) -> tuple[pb.SumAnswer, np.ndarray | None]:
        told, numbers = answer(updates, step)
        if updates._name == LIAR and step.phase == "mask":
            told = pb.SumAnswer(phase="mask")
        return told, numbers

    monkeypatch.setattr(MaskedUpdates, "_answer", without_tags)
    held = hold(sums(model={"name": "mlp", "hidden": [1000]}, ending={"rounds": 1}), tmp_path, papers=papers)
    assert held.run is not None
    assert [commit.learners for _, commit in held.run.commits] == [("00", "01", "02")]
    assert 4 * held.hosting.layout.size > SMALL, "they came in pieces"
    assert not held.federation.durable.blobs._pins


def test_an_error_in_a_sum_does_not_hold_up_the_run(
    tmp_path: Path, papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before this was handled, the error was lost, and the sum stayed open for ever."""
    outcome, failures = SecureRounds._outcome, list[object]()

    def fails_once(rounds: SecureRounds, found: Any) -> Any:
        if not failures:
            failures.append(found)
            raise OSError(5, "Input/output error")
        return outcome(rounds, found)

    monkeypatch.setattr(SecureRounds, "_outcome", fails_once)
    held = hold(sums(), tmp_path, papers=papers)
    assert held.run is not None
    assert len(held.run.commits) == 1
    assert failures


def test_whoever_is_first_with_wrong_shares_is_named_and_costs_nothing(
    tmp_path: Path, papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the code before, the sum was closed with as many shares as are needed, wrong ones among them."""
    answer, obey, told = MaskedUpdates._answer, Agent._obey, set[int]()

    def lies(updates: MaskedUpdates, step: pb.SumStep) -> tuple[pb.SumAnswer, np.ndarray | None]:
        said, numbers = answer(updates, step)
        if updates._name == FIRST and step.phase == "reveal":
            wrong = pb.SumAnswer()
            wrong.CopyFrom(said)
            for share in (*wrong.given, *wrong.opened):
                share.data = bytes(33)
            return wrong, numbers
        return said, numbers

    async def meanwhile(held: Held) -> None:
        open_ = held.federation.sums._open

        async def after_the_liar(agent: Agent, order: pb.Order) -> None:
            if order.sum.phase == "reveal" and agent.island.learner.name != FIRST:
                task = order.sum.task
                await reached(lambda: task not in open_ or FIRST in open_[task].collector._revealed, "the wrong shares")
                told.add(task)
            await obey(agent, order)

        monkeypatch.setattr(Agent, "_obey", after_the_liar)

    monkeypatch.setattr(MaskedUpdates, "_answer", lies)
    held = hold(sums(), tmp_path, meanwhile, papers=papers)
    assert held.run is not None
    assert [len(commit.learners) for _, commit in held.run.commits] == [4, 4]
    assert len(told) == 2
    assert audit_of(tmp_path).count((FIRST, "gave wrong shares")) == 2


def test_who_shares_no_secret_of_its_own_rests(tmp_path: Path, papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can open a sum with it; on the code before, every sum failed until the run ended."""
    share = MaskingLearner.share

    def of_another(learner: MaskingLearner, cohort: Cohort) -> dict[str, bytes]:
        if learner.name == LIAR:
            learner._seed = bytes(32)
        return share(learner, cohort)

    monkeypatch.setattr(MaskingLearner, "share", of_another)
    held = hold(sums(ending={"rounds": 12}), tmp_path, papers=papers)
    assert held.run is not None
    commits = [commit.learners for _, commit in held.run.commits]
    assert commits == [("00", "01", "02")] * len(commits)
    assert len(commits) > 2
    reasons = [refused.reason for _, refused in held.run.of(Refused)]
    assert reasons.count(f"the shares of {LIAR}'s secret cannot be combined: too many of them are wrong.") in range(
        4, 40
    )

"""A learner that trains and is silent when others wait for it costs them little of their time.

On the code before, each question to a mute learner, and each phase of a secure sum with one, took the whole deadline,
round after round: only training tasks that failed led to a rest, and each update ended it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from archipel.core.records import Handed, Membership
from archipel.federation.controller.sessions import WAITED_FOR, LearnerSession
from archipel.federation.learner.agent import Agent
from archipel.federation.wire import federation_pb2 as pb
from tests.federation.hand_made import BAD, NAMES, study
from tests.federation.in_one_process import Held, hold
from tests.federation.in_one_process import study as digits
from tests.federation.light import Light
from tests.federation.scene import scene
from tests.federation.test_secure_rounds import papers as papers
from tests.waiting import reached


class Mute(Light):
    """Trains, and has no opinion."""

    async def _evaluate(self, order: pb.Evaluate) -> None:
        await asyncio.Event().wait()


def test_a_silent_learner_is_waited_for_once_and_then_for_a_fifth_of_the_time() -> None:
    session, now, waited = LearnerSession("a"), 0.0, 0.0
    for _ in range(1000):
        now, waited = now + 60.0, waited + 60.0
        session.count_wait(now, 60.0)
        session.count_success()
        now = max(now, session.rests_until)
    assert waited <= 2 * 60.0 + WAITED_FOR * now
    assert now < 1000 * 60.0 * 1.1 / WAITED_FOR, "it rests no longer than it has to"


def test_who_was_waited_for_once_does_not_rest() -> None:
    session = LearnerSession("a")
    assert not session.count_wait(100.0, 60.0)
    assert session.count_wait(170.0, 60.0)
    assert session.rests_until == pytest.approx(170.0 + (120.0 - 14.0 - 60.0) / WAITED_FOR)
    other = LearnerSession("b")
    assert not any(other.count_wait(100.0, 60.0) for _ in range(5)), "five questions at the same time"
    assert not other.count_wait(1000.0, 60.0)


@pytest.mark.slow
def test_a_learner_without_opinions_rests(tmp_path: Path) -> None:
    raw = study(
        algorithms={"name": "sync_dvw"},
        validation=0.2,
        ending={"commits": 1_000_000},
        federation={"opinion_deadline": 1.0},
    )

    async def go() -> None:
        async with scene(raw, tmp_path) as one:
            for name in NAMES[:2]:
                one.light(name, 0.001)
            one.light(BAD, 0.001, kind=Mute)
            session = one.federation.sessions[BAD]
            await one.until(lambda: session.rests_until > one.federation.log.now)
            await one.until(lambda: one.federation.status._learner(BAD)["state"] == "resting")
            version = one.version
            await one.until(lambda: one.version >= version + 5)
            records = [record for _, record in await one.records(object)]
            left = records.index(Membership(BAD, there=False))
            rejoined = Membership(BAD, there=True) in records[left:]
            handed = [r for r in records[left:] if isinstance(r, Handed) and r.learner == BAD]
            assert rejoined or not handed, "a resting learner gets no task"

    asyncio.run(go())


@pytest.mark.slow
def test_a_learner_that_is_mute_in_sums_rests(tmp_path: Path, papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    obey = Agent._obey

    async def mute(agent: Agent, order: pb.Order) -> None:
        if order.WhichOneof("what") != "sum" or agent.island.learner.name != "03":
            await obey(agent, order)

    monkeypatch.setattr(Agent, "_obey", mute)
    raw = digits(
        algorithms=[{"name": "fedavg", "privacy": "SecureSum(threshold=0.7)"}],
        data={"split": {"learners": 4}},
        ending={"rounds": 8},
        federation={"opinion_deadline": 1.0},
    )

    async def rests(held: Held) -> None:
        federation = held.federation
        await reached(lambda: federation.sessions["03"].rests_until > federation.log.now, "a rest")

    held = hold(raw, tmp_path, rests, papers=papers)
    assert held.run is not None
    assert len(held.run.commits) == 8
    assert all("03" not in commit.learners for _, commit in held.run.commits)

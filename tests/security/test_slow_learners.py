"""A mute, slow or failing learner costs its own update, and not the others' rounds.

On the code before, a mute learner held up a round for a day, and the rest after failures was waited for by everybody.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from archipel.core.records import Committed, Handed, Membership
from archipel.federation.controller import outbox
from archipel.federation.controller.outbox import LONGEST, SHORTEST, TaskDeadline
from archipel.federation.wire import federation_pb2 as pb
from tests.federation.hand_made import BAD, NAMES, study
from tests.federation.light import Light
from tests.federation.scene import Scene, scene

ENDLESS = {"commits": 1_000_000}


class Mute(Light):
    """Sends heartbeats, but never an answer."""

    async def _train(self, order: pb.Train) -> None:
        await asyncio.Event().wait()


class Failing(Light):
    """Fails at once, every time."""

    async def _train(self, order: pb.Train) -> None:
        self.sequence += 1
        await self.link.answer(pb.Head(task=order.task, sequence=self.sequence, failed="no"))


def test_the_default_deadline_follows_what_tasks_take() -> None:
    deadline = TaskDeadline(None)
    assert deadline.seconds == LONGEST
    for _ in range(10):
        deadline.record("a", 100.0)
    assert deadline.seconds == LONGEST, "one learner alone does not decide"
    deadline.record("b", 300.0)
    assert deadline.seconds == 2000.0
    deadline.record("c", 0.0)
    assert deadline.seconds == 1000.0, "one that answers at once does not make the others late"
    for name in "abc":
        deadline.record(name, 0.001)
    assert deadline.seconds == SHORTEST
    assert TaskDeadline(7.0).seconds == 7.0


async def rounds_of_the_others(one: Scene, more: int) -> list[Committed]:
    version = one.version
    await one.until(lambda: one.version >= version + more)
    return [commit for _, commit in await one.records(Committed) if commit.version > version]


@pytest.mark.slow
def test_a_mute_learner_is_given_up_and_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "SHORTEST", 0.2)

    async def go() -> None:
        async with scene(study(ending=ENDLESS), tmp_path) as one:
            for name in NAMES[:2]:
                one.light(name, 0.001)
            one.light(BAD, kind=Mute)
            await one.until(lambda: one.federation.status._learner(BAD)["state"] == "resting")
            assert all(BAD not in commit.learners for commit in await rounds_of_the_others(one, 10))

    asyncio.run(go())


@pytest.mark.slow
def test_a_failing_learner_gets_no_task_while_it_rests_and_is_asked_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(study(ending=ENDLESS), tmp_path) as one:
            for name in NAMES[:2]:
                one.light(name, 0.001)
            one.light(BAD, kind=Failing)
            session = one.federation.sessions[BAD]
            await one.until(lambda: session.failures >= 3)  # it has rested once, and was asked again
            await rounds_of_the_others(one, 5)
            rests, resting, handed, again = 0, False, list[int](), list[int]()
            for _, record in await one.records(object):
                if isinstance(record, Membership) and record.learner == BAD:
                    resting = not record.there
                    rests += resting
                if isinstance(record, Handed) and record.learner == BAD and rests:
                    (handed if resting else again).append(record.task)
            assert rests, "it has rested"
            assert not handed, "a resting learner gets no task"
            assert again, "it is asked again"

    asyncio.run(go())


@pytest.mark.slow
def test_a_round_that_asks_extra_learners_takes_the_first_answers(tmp_path: Path) -> None:
    method: dict[str, Any] = {"name": "fedavg", "protocol": "Rounds(fraction=0.67, extra=0.5)"}

    async def go() -> None:
        async with scene(study(algorithms=[method], ending=ENDLESS), tmp_path) as one:
            for name in NAMES[:2]:
                one.light(name, 0.001)
            one.light(BAD, kind=Mute)
            commits = await rounds_of_the_others(one, 5)
            assert all(set(commit.learners) == set(NAMES[:2]) for commit in commits)

    asyncio.run(go())


@pytest.mark.slow
def test_a_process_stopped_while_it_checks_takes_nobody_for_lost(tmp_path: Path) -> None:
    """On the code before, a stall between noticing stalls and looking for silent learners was held against them."""

    async def go() -> None:
        async with scene(study(ending=ENDLESS), tmp_path) as one:
            for name in NAMES:
                one.light(name, 0.001)
            await one.until(lambda: one.version >= 1)
            log, looks = one.federation.log, list[float]()
            note_repeats = log.note_repeats

            def stand_still() -> None:
                if not looks:
                    log._before += 100 * one.federation.terms.silence
                looks.append(log.now)
                note_repeats()

            log.note_repeats = stand_still  # type: ignore[method-assign]
            await one.until(lambda: len(looks) >= 3)
            version = one.version
            await one.until(lambda: one.version > version)
            assert [gone for _, gone in await one.records(Membership) if not gone.there] == []

    asyncio.run(go())

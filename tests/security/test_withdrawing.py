"""A learner that was withdrawn is given nothing more to do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from archipel.core.records import Handed, Membership
from archipel.core.types import Evaluate, Evaluated, Failed, Left
from archipel.federation.learner.link import TurnedAway
from archipel.federation.security.names import Identity
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.channel import NAME
from tests.federation.hand_made import study
from tests.federation.scene import Scene, scene
from tests.waiting import LIMIT

pytestmark = pytest.mark.slow

VICTIM = "site-2"


async def handed_after_leaving(one: Scene) -> list[int]:
    """Tasks that the victim was given after it had left, once the federation has continued without it."""
    gone = Membership(VICTIM, there=False)

    async def left() -> bool:
        return gone in [record for _, record in await one.records(Membership)]

    await one.until(left)
    version = one.version
    await one.until(lambda: one.version >= version + 3)
    records = [record for _, record in await one.records(object)]
    return [r.task for r in records[records.index(gone) :] if isinstance(r, Handed) and r.learner == VICTIM]


@pytest.mark.parametrize("algorithm", ["fedavg", "async_fedavg"])
def test_whoever_is_withdrawn_while_it_trains_is_given_no_new_task(algorithm: str, tmp_path: Path) -> None:
    raw = study(algorithms=algorithm, ending={"commits": 1_000_000})

    async def go() -> None:
        async with scene(raw, tmp_path) as one:
            for name in ("site-0", "site-1"):
                one.light(name, 0.02)
            one.light(VICTIM, 1000.0)
            task = await one.at_work(VICTIM)
            line = one.link("operator/alice")
            await line.steer("withdraw", VICTIM)
            await line.close()
            assert await handed_after_leaving(one) == []
            events = await one.events()
            lost = next(event for event in events if isinstance(event, Failed) and event.task == task)
            assert events.index(Left(VICTIM)) < events.index(lost)
            assert not one.federation.sessions[VICTIM].orders

    asyncio.run(go())


def test_whoever_is_withdrawn_while_it_owes_an_opinion_is_given_no_task(tmp_path: Path) -> None:
    """Its missing opinion lets an update be committed; by then it has left."""
    raw = study(
        algorithms={"name": "async_dvw"},
        validation=0.2,
        ending={"commits": 1_000_000},
        federation={"opinion_deadline": 1000.0},
    )

    async def go() -> None:
        async with scene(raw, tmp_path) as one:
            one.light("site-0", 0.02)
            one.light("site-1", 0.02)
            mute = one.light(VICTIM, 0.02)
            owes = asyncio.Event()

            async def say_nothing(order: Any) -> None:
                owes.set()
                await asyncio.Event().wait()

            mute._evaluate = say_nothing  # type: ignore[method-assign]
            await owes.wait()
            session = one.federation.sessions[VICTIM]
            await one.until(lambda: any(isinstance(order, Evaluate) for order in session.orders.values()))
            line = one.link("operator/alice")
            await line.steer("withdraw", VICTIM)
            await line.close()
            assert await handed_after_leaving(one) == []
            events = await one.events()
            asked = next(event for event in events if isinstance(event, Evaluated) and None in event.results)
            assert events.index(Left(VICTIM)) < events.index(asked)

    asyncio.run(go())


def test_the_open_calls_of_whoever_is_withdrawn_are_ended(tmp_path: Path) -> None:
    """Also one that is never read to its end, and one that never ends: neither would meet the gate again."""
    metadata = (("archipel-identity", f"learner/{VICTIM}"),)

    async def go() -> None:
        async with scene(study(ending={"commits": 1_000_000}), tmp_path) as one:
            theirs, operator = one.link(f"learner/{VICTIM}"), one.link("operator/alice")
            await theirs.join(one.hello())
            listen: Any = theirs.channel.unary_stream(f"/{NAME}/Listen")
            answer: Any = theirs.channel.stream_unary(f"/{NAME}/Answer")
            listening, answering = listen(b"", metadata=metadata), answer(metadata=metadata)
            await answering.write(pb.Portion(head=pb.Head(task=1)).SerializeToString())
            mine = Identity("learner", VICTIM)
            await one.until(lambda: len(one.federation.calls._open[mine]) == 2)
            await operator.steer("withdraw", VICTIM)
            async with asyncio.timeout(LIMIT):
                assert await listening.code() == await answering.code() == grpc.StatusCode.ABORTED
                assert await listening.details() == await answering.details() == "The caller was withdrawn."
            with pytest.raises(TurnedAway, match="has been withdrawn"):
                await theirs.look()
            await theirs.close()
            await operator.close()

    asyncio.run(go())

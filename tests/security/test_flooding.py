"""A caller that floods is slowed by its own quota, and neither starves the others nor fills the journal.

Before these limits, slots were given first come, first served, and before the caller was authorised; a caller could
have any number of calls open; messages were read before the caller was known; every refusal and every late answer was
a row; rejected callers were not in the audit.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from archipel.federation.controller import limiter, service
from archipel.federation.controller.answers import LATE_ANSWERS
from archipel.federation.controller.event_log import REFUSALS
from archipel.federation.controller.limiter import MOST_CALLS, Limiter, Quota
from archipel.federation.controller.sessions import FETCHES
from archipel.federation.security import gate
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.channel import NAME
from archipel.study.federate import host
from archipel.study.files import study_of
from tests.federation.hand_made import BAD, NAMES, hello, study
from tests.federation.scene import Scene, scene
from tests.waiting import LIMIT, reached

ENDLESS = {"commits": 1_000_000}


def endless() -> dict[str, Any]:
    return study(ending=ENDLESS)


# ------------------------------------------------------------------------------------------------------------- alone


def test_callers_take_turns_however_many_calls_each_has() -> None:
    async def go() -> None:
        slots, order = Limiter(1, 10 * LIMIT), list[str]()

        async def call(who: str) -> None:
            async with slots.slot(who):
                order.append(who)
                await asyncio.sleep(0)

        first = await slots.acquire("flood")
        calls = [asyncio.create_task(call("flood")) for _ in range(50)]
        await asyncio.sleep(0)
        calls += [asyncio.create_task(call("honest")) for _ in range(2)]
        await asyncio.sleep(0)
        first.release()
        await asyncio.gather(*calls)
        assert order.index("honest") == 1, "the second turn, behind one of fifty"
        assert [place for place, who in enumerate(order) if who == "honest"] == [1, 3]

    asyncio.run(go())


def test_a_caller_that_gives_up_its_place_in_line_takes_nobody_elses() -> None:
    async def go() -> None:
        slots = Limiter(1, 10 * LIMIT)
        first = await slots.acquire("a")
        gone, stays = (asyncio.create_task(slots.acquire("b")) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        first.release()
        (await asyncio.wait_for(stays, LIMIT)).release()
        (await asyncio.wait_for(slots.acquire("c"), LIMIT)).release()

    asyncio.run(go())


def test_a_quota_counts_what_it_does_not_admit() -> None:
    quota = Quota(3, told=True)
    assert [quota.admit("a", 0.0) for _ in range(5)] == [True] * 3 + [False] * 2
    assert quota.admit("b", 0.0)
    assert quota.ended(59.0) == []
    assert quota.ended(60.0) == [("a", 2)]
    assert quota.admit("a", 61.0)


def test_a_quota_begins_anew_each_minute() -> None:
    quota = Quota(1)
    assert [quota.admit("a", now) for now in (0.0, 1.0, 61.0, 62.0)] == [True, False, True, False]


def test_many_addresses_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter, "MOST_CALLERS", 3)
    quota = Quota(1, told=True)
    for number in range(100):
        quota.admit(f"address {number}", 0.0)
    assert len(quota.ended(60.0)) == 1
    assert quota._windows == {}


# --------------------------------------------------------------------------------------------------- in a federation


async def others_go_on(one: Scene, more: int = 3) -> None:
    version = one.version
    await one.until(lambda: one.version >= version + more)


def metadata(who: str) -> tuple[tuple[str, str], ...]:
    return (("archipel-identity", who),)


@pytest.mark.slow
def test_calls_without_a_message_hold_up_nobody(tmp_path: Path) -> None:
    """4,200 header-only calls took five sixths of the acknowledgements; a slot is taken behind the gate, in turn."""

    async def go() -> None:
        async with scene(endless(), tmp_path) as one:
            for name in NAMES:
                one.light(name, 0.01)
            await others_go_on(one)
            line = one.link(f"learner/{BAD}")
            reply: Any = line.channel.stream_unary(f"/{NAME}/Reply")
            silent = [reply(metadata=metadata(f"learner/{BAD}")) for _ in range(2 * MOST_CALLS)]
            await others_go_on(one, 10)
            for call in silent:
                call.cancel()
            await line.close()

    asyncio.run(go())


@pytest.mark.slow
def test_calls_of_one_caller_are_limited(tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(endless(), tmp_path) as one:
            apart = [("grpc.use_local_subchannel_pool", 1)]  # two connections, each of which may have as many calls
            lines = [grpc.aio.insecure_channel(f"127.0.0.1:{one.port}", apart) for _ in range(2)]
            codes = []

            async def call(number: int) -> None:
                reply: Any = lines[number % 2].stream_unary(f"/{NAME}/Stored")
                try:
                    await reply(metadata=metadata(f"learner/{BAD}"))
                except grpc.aio.AioRpcError as error:
                    codes.append(error.code())

            calls = [asyncio.create_task(call(number)) for number in range(MOST_CALLS + 20)]
            await one.until(lambda: len(codes) >= 20)
            assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 20
            for task in calls:
                task.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            for line in lines:
                await line.close()

    asyncio.run(go())


@pytest.mark.slow
def test_a_message_that_does_not_come_ends_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "READING", 0.05)

    async def go() -> None:
        async with scene(endless(), tmp_path) as one:
            line = one.link(f"learner/{BAD}")
            for method in ("Join", "Beat", "Stored", "Reply", "Steer", "Look"):
                make: Any = line.channel.stream_unary(f"/{NAME}/{method}")
                call = make(metadata=metadata(f"learner/{BAD}"))
                assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED, method
            await line.close()

    asyncio.run(go())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["Join", "Beat", "Stored", "Steer", "Look"])
def test_a_small_call_with_a_large_message_is_refused(method: str, tmp_path: Path) -> None:
    """A Join with a map of 2 MB blocked the event loop."""

    async def go() -> None:
        async with scene(endless(), tmp_path) as one:
            line = one.link(f"learner/{BAD}")
            hello = pb.Hello(study={f"key {number}": "x" * 50 for number in range(20_000)})
            call: Any = line.channel.unary_unary(f"/{NAME}/{method}")
            with pytest.raises(grpc.aio.AioRpcError, match="and such a call may have 65,536"):
                await call(hello.SerializeToString(), metadata=metadata(f"learner/{BAD}"), timeout=LIMIT)
            await line.close()

    asyncio.run(go())


@pytest.mark.slow
def test_a_second_listen_ends_the_first_even_if_that_is_never_read(tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(endless(), tmp_path) as one:
            line = one.link(f"learner/{BAD}")
            listen: Any = line.channel.unary_stream(f"/{NAME}/Listen")
            first = listen(b"", metadata=metadata(f"learner/{BAD}"))
            session = one.federation.sessions[BAD]
            await one.until(lambda: session.queue is not None)
            queue = session.queue
            second = listen(b"", metadata=metadata(f"learner/{BAD}"))
            await asyncio.wait_for(first.code(), LIMIT)
            await one.until(lambda: session.queue is not None and session.queue is not queue)
            second.cancel()
            await line.close()

    asyncio.run(go())


@pytest.mark.slow
def test_a_second_listen_ends_a_first_that_is_stuck_in_a_write(tmp_path: Path) -> None:
    """It would not notice that it has to end."""

    async def go() -> None:
        async with scene(endless(), tmp_path) as one:
            begun = list[str]()

            async def stuck(name: str) -> Any:
                begun.append(name)
                await asyncio.Event().wait()
                yield b""

            one.federation.orders.listen = stuck  # type: ignore[method-assign]
            line = one.link(f"learner/{BAD}")
            listen: Any = line.channel.unary_stream(f"/{NAME}/Listen")
            first = listen(b"", metadata=metadata(f"learner/{BAD}"))
            await one.until(lambda: len(begun) == 1)
            second = listen(b"", metadata=metadata(f"learner/{BAD}"))
            assert await asyncio.wait_for(first.code(), LIMIT) == grpc.StatusCode.ABORTED
            assert "another call of this caller" in (await first.details() or "")
            second.cancel()
            await line.close()

    asyncio.run(go())


@pytest.mark.slow
def test_callers_that_are_turned_away_are_in_the_audit_and_repeats_are_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "HELD_BACK", 0)

    async def go() -> None:
        async with scene(endless(), tmp_path) as one:
            line = one.link("learner/nobody")
            for _ in range(REFUSALS + 30):
                with pytest.raises(Exception, match="not on the study's list"):
                    await line.look()
            await line.close()
            one.federation.log._refusals._seconds = 0.0  # the minute is over

            async def rows() -> list[dict[str, Any]]:
                return [d for who, what, d in await one.audit() if what == "refused"]

            async def folded() -> bool:
                return any("more" in row for row in await rows())

            await one.until(folded)
            found = await rows()
            assert sum("address" in row for row in found) == REFUSALS
            assert [row["more"] for row in found if "more" in row] == [30]
            assert found[0]["address"].startswith("ipv4:127.0.0.1:")
            assert found[0]["reason"] == "nobody is not on the study's list of learners."

    asyncio.run(go())


@pytest.mark.slow
def test_a_caller_that_is_refused_again_and_again_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals in a loop took more than half of the controller's time before."""
    monkeypatch.setattr(gate, "DELAY", 10 * LIMIT)
    monkeypatch.setattr(gate, "HELD_BACK", 2)

    async def go() -> None:
        async with scene(endless(), tmp_path) as one:
            line = one.link("learner/nobody")
            for _ in range(REFUSALS):
                with pytest.raises(Exception, match="not on the study's list"):
                    await line.look()
            held = [asyncio.create_task(line.look()) for _ in range(3)]
            await reached(lambda: any(call.done() for call in held), "the third, which is not held back")
            assert [call.done() for call in held].count(False) == 2
            honest = one.link("operator/alice")
            assert (await honest.look()).told, "others are answered at once"
            for call in held:
                call.cancel()
            await asyncio.gather(*held, return_exceptions=True)
            await honest.close()
            await line.close()

    asyncio.run(go())


@pytest.mark.slow
def test_late_answers_do_not_fill_the_journal(tmp_path: Path) -> None:
    """One learner wrote 10,255 late answers, 7.5 MB, in 15 s."""

    async def go() -> None:
        async with scene(endless(), tmp_path) as one:
            for name in NAMES:
                one.light(name, 0.01)
            await others_go_on(one)
            (first, *_) = await one.updates(BAD)
            line = one.link(f"learner/{BAD}")
            reply = line._reply
            codes = []
            for sequence in range(10_000, 10_000 + LATE_ANSWERS + 50):
                head = pb.Head(task=first.task, sequence=sequence, failed="again")
                try:
                    await reply(pb.Portion(head=head), metadata=metadata(f"learner/{BAD}"), timeout=LIMIT)
                except grpc.aio.AioRpcError as error:
                    codes.append(error.code())
            await line.close()
            assert codes == [grpc.StatusCode.ABORTED] * 50
            written = [one for one in await one.lines() if one.answer is not None and one.answer.sequence >= 10_000]
            assert len(written) == LATE_ANSWERS

    asyncio.run(go())


def test_a_learner_is_sent_few_models_at_a_time(tmp_path: Path) -> None:
    """On the code before, a hundred unread calls held a piece of a model each."""

    async def go() -> None:
        hosting = host(study_of(endless()))
        federation = hosting.open(tmp_path)
        running = asyncio.create_task(federation.run())
        for name in NAMES:
            await federation.joining.join(name, hello(hosting))
        session = federation.sessions[BAD]
        await reached(lambda: session.orders, "a task")
        want = pb.Want(task=next(iter(session.orders)), layers=hosting.layout.names)
        calls = [federation.orders.fetch(BAD, want) for _ in range(5 * FETCHES)]
        pieces = [asyncio.ensure_future(anext(call)) for call in calls]
        await reached(lambda: sum(piece.done() for piece in pieces) == FETCHES, "the first pieces")
        other = federation.orders.fetch(
            NAMES[0], pb.Want(task=next(iter(federation.sessions[NAMES[0]].orders)), layers=[])
        )
        assert await anext(other), "others are not held up"
        assert sum(piece.done() for piece in pieces) == FETCHES
        for call, piece in zip(calls, pieces, strict=True):
            await piece
            await call.aclose()
        assert session.fetching == 0
        await other.aclose()
        running.cancel()
        await federation.close()

    asyncio.run(go())

"""A learner that does one thing in a loop: pausing itself, asking, failing, answering what nobody asked, fetching.

On the code before, each pause was a row of the audit and an event in the journal, without limit, and a call in a loop
was answered as fast as the controller could.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from archipel.core.types import Joined, Progress
from archipel.federation.controller import answers, joining, limiter, orders
from archipel.federation.controller.joining import JOINS
from archipel.federation.controller.limiter import Calls
from archipel.federation.controller.operators import WISHES
from archipel.federation.learner.link import Link, TurnedAway
from archipel.federation.security.names import Identity
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.channel import NAME as SERVICE
from archipel.study.federate import host
from archipel.study.files import study_of
from tests.federation.hand_made import BAD, NAMES, hello, study
from tests.federation.in_one_process import agent
from tests.federation.in_one_process import study as in_one_process
from tests.federation.scene import Scene, scene
from tests.waiting import LIMIT, reached

WHO = Identity("learner", BAD)
METADATA = (("archipel-identity", f"learner/{BAD}"),)


def with_a_line(folder: Path, act: Callable[[Scene, Link], Awaitable[None]]) -> None:
    """Have a learner that is listed call a controller by hand."""

    async def go() -> None:
        async with scene(study(ending={"commits": 1_000_000}), folder) as one:
            line = one.link(f"learner/{BAD}")
            await act(one, line)
            await line.close()

    asyncio.run(go())


async def code_of(call: Awaitable[Any]) -> grpc.StatusCode | None:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    except TurnedAway as error:
        return error.code
    return None


@pytest.mark.slow
def test_a_learner_that_pauses_itself_in_a_loop_fills_no_journal(tmp_path: Path) -> None:
    async def act(one: Scene, line: Link) -> None:
        codes = [await code_of(line.steer("pause", BAD)) for _ in range(WISHES + 20)]
        assert codes == [None] * WISHES + [grpc.StatusCode.ABORTED] * 20
        operator = one.link("operator/alice")
        for _ in range(WISHES + 1):
            await operator.steer("pause", BAD)
        await operator.close()
        rows = [who for who, what, _ in await one.audit() if what == "pause"]
        assert rows.count(f"learner/{BAD}") == WISHES

    with_a_line(tmp_path, act)


@pytest.mark.slow
def test_a_learner_that_joins_in_a_loop_fills_no_journal(tmp_path: Path) -> None:
    """A Join of a learner that says it has lost its state is an event each time."""

    async def act(one: Scene, line: Link) -> None:
        said = hello(one.hosting)
        said.fresh = True
        codes = [await code_of(line._once(line._join, said)) for _ in range(JOINS + 5)]
        assert codes == [None] * JOINS + [grpc.StatusCode.ABORTED] * 5
        assert sum(isinstance(event, Joined) for event in await one.events()) == JOINS
        assert [who for who, what, _ in await one.audit() if what == "joined"] == [BAD] * JOINS

    with_a_line(tmp_path, act)


@pytest.mark.slow
def test_steps_that_are_told_in_a_loop_fill_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "STEPS", 3)
    raw = study(algorithms={"name": "async_fedavg", "recall": "MedianStaleness(20)"}, ending={"commits": 1_000_000})

    async def go() -> None:
        async with scene(raw, tmp_path) as one:
            for name in NAMES:
                one.light(name, 0.02 if name != BAD else 1000.0)
            task = await one.at_work(BAD)
            line = one.link(f"learner/{BAD}")
            for steps in (1, 2, 3, 3, 3):
                await line.beat(pb.Pulse(steps=[pb.Steps(task=task, steps=steps)]))
            await line.close()
            state = one.federation.durable.controller.state
            then = state.version
            await one.until(lambda: state.version > then + 1)  # what came before is in the journal by now
            told = [event for event in await one.events() if isinstance(event, Progress)]
            assert told == [Progress(task, steps) for steps in (1, 2, 3)]

    asyncio.run(go())


@pytest.mark.slow
@pytest.mark.parametrize("quota", ["CALLS_A_MINUTE", "FAILURES_A_MINUTE"])
def test_calls_in_a_loop_are_held_back_and_others_are_not(
    quota: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter, quota, 5)
    monkeypatch.setattr(limiter, "PAUSE", 10 * LIMIT)

    async def act(one: Scene, line: Link) -> None:
        if quota == "CALLS_A_MINUTE":
            call: Callable[[], Awaitable[Any]] = line.look
            expected = None
        else:

            async def failing() -> None:
                stored: Any = line.channel.unary_unary(f"/{SERVICE}/Stored")
                await stored(b"\xff\xff\xff", metadata=METADATA, timeout=LIMIT)

            call, expected = failing, grpc.StatusCode.INVALID_ARGUMENT
        assert [await code_of(call()) for _ in range(5)] == [expected] * 5
        held = asyncio.ensure_future(code_of(call()))
        await reached(lambda: one.federation.calls._paused == 1, "the sixth call to be held back")
        other = one.link(f"learner/{NAMES[0]}")
        assert (await other.look()).told
        assert not held.done()
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        await other.close()

    with_a_line(tmp_path, act)


REFUSED = [("learner/nobody", "PERMISSION_DENIED"), (f"learner/{BAD}", "UNIMPLEMENTED")]


@pytest.mark.slow
@pytest.mark.parametrize(("who", "code"), REFUSED)
def test_unknown_methods_are_authorised_and_audited(who: str, code: str, tmp_path: Path) -> None:
    """Before, they were answered without a look at the caller, and without a row."""

    async def act(one: Scene, line: Link) -> None:
        for method in (f"/{SERVICE}/Shell", "/x/y"):
            call: Any = line.channel.unary_unary(method)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", metadata=(("archipel-identity", who),), timeout=LIMIT)
            assert caught.value.code().name == code

        async def noted() -> bool:
            return [row for row, what, _ in await one.audit() if what == "refused"] == [who] * 2

        await one.until(noted)

    with_a_line(tmp_path, act)


def test_delayed_calls_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter, "CALLS_A_MINUTE", 0)
    monkeypatch.setattr(limiter, "MOST_PAUSED", 2)
    monkeypatch.setattr(limiter, "PAUSE", 10 * LIMIT)

    async def go() -> None:
        calls = Calls()
        held = [asyncio.create_task(calls.pace(WHO, 0.0)) for _ in range(3)]
        await reached(lambda: held[2].done(), "the third call")
        assert [one.done() for one in held] == [False, False, True]
        for one in held:
            one.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        assert calls._paused == 0

    asyncio.run(go())


@pytest.mark.slow
@pytest.mark.parametrize("result", [{"scored": pb.Scored(count=1)}, {"failed": "no"}])
def test_answers_that_nobody_asked_for_are_counted(
    result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "UNASKED", 3)

    async def act(_: Scene, line: Link) -> None:
        async def answer(sequence: int) -> None:
            head = pb.Head(task=77, sequence=sequence, **result)
            await line._reply(pb.Portion(head=head), metadata=METADATA, timeout=LIMIT)

        codes = [await code_of(answer(sequence)) for sequence in range(5)]
        assert codes == [None] * 3 + [grpc.StatusCode.ABORTED] * 2

    with_a_line(tmp_path, act)


def test_a_model_is_fetched_only_so_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fetch costs a learner a few bytes, and the controller a whole model."""
    monkeypatch.setattr(orders, "FETCHED", 3)
    monkeypatch.setattr("archipel.federation.controller.sessions.FETCHED", 3)

    async def go() -> None:
        hosting = host(study_of(study(ending={"commits": 1_000_000})))
        federation = hosting.open(tmp_path)
        running = asyncio.create_task(federation.run())
        for name in NAMES:
            await federation.joining.join(name, hello(hosting))
        session = federation.sessions[BAD]
        await reached(lambda: session.orders, "a task")
        want = pb.Want(task=next(iter(session.orders)), layers=hosting.layout.names)

        async def fetch() -> int:
            return len([piece async for piece in federation.orders.fetch(BAD, want)])

        for _ in range(3):
            assert await fetch()
        with pytest.raises(Exception, match=r"has fetched task -?\d+'s model 3 times"):
            await fetch()
        session.orders.clear()
        assert session.count_fetched(10**6, 1, 1)
        assert list(session.fetched) == [10**6], "what is known of closed tasks is forgotten"
        running.cancel()
        await federation.close()

    asyncio.run(go())


@pytest.mark.slow
def test_two_processes_with_one_certificate_count_once(tmp_path: Path) -> None:
    """Each hangs up the other's Listen call; both may train a task, and its first answer is the one that counts."""

    async def go() -> None:
        async with scene(in_one_process(ending={"rounds": 1_000_000}), tmp_path) as one:
            for name in ("00", "01", "02"):
                one.agent(name)
            copied = agent(one.raw, "00", tmp_path / "copy", one.port)
            one.beside.append(asyncio.create_task(copied.run()))
            await one.until(lambda: copied.memory.trained > 1 and one.version > 5)
            updates = await one.updates("00")
            assert len({event.task for event in updates}) == len(updates) > 0

    asyncio.run(go())

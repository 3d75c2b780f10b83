"""Stopped learners, half-open connections, partitions: the round closes, and the run continues afterwards.

With ARCHIPEL_CHAOS=1 also the long form: a minute's partition with the heartbeats that a study has by default.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archipel.core.records import Handed
from archipel.core.types import Failed, Joined, Left
from archipel.federation.security.authority import create_authority, issue
from archipel.federation.storage.durable_controller import LATE
from tests.federation.fault_proxy import FaultProxy
from tests.federation.in_one_process import study
from tests.federation.network import network
from tests.federation.scene import HELD_LOSS, Scene, scene
from tests.waiting import LIMIT

pytestmark = pytest.mark.slow


def endless(**federation: Any) -> dict[str, Any]:
    """Endless rounds of three learners, two of which have to be present."""
    return study(
        algorithms=[{"name": "fedavg", "deadline": 2.0}],
        ending={"rounds": 100_000},
        evaluation={"every": 100_000},
        federation={"wait_for": 3, "keep_updates": True, "heartbeat": 0.5, "silence": 3.0, **federation},
    )


async def newest_task(one: Scene) -> int:
    """The newest task of all."""
    return max(int(record.task) for _, record in await one.records(Handed))


async def works_again(one: Scene, task: int) -> None:
    """Wait for an update of 02 to a task that was given after this one."""

    async def answered() -> bool:
        return any(event.task > task for event in await one.updates("02"))

    await one.until(answered)


def test_a_round_closes_though_a_learner_has_stopped(tmp_path: Path) -> None:
    """SIGSTOP: its connection stays open. After SIGCONT its answer is late, and then it takes part again."""

    async def go() -> None:
        raw = endless(silence=5 * LIMIT) | {"loss": HELD_LOSS}
        async with scene(raw, tmp_path) as one:
            one.light("00", 0.2)
            one.light("01", 0.2)
            site = one.site("02", held=True)
            await site.held()
            task = await one.at_work("02")
            site.send(signal.SIGSTOP)
            site.release()
            version = one.version
            await one.until(lambda: one.version >= version + 2)
            given_up = [event for event in await one.events() if isinstance(event, Failed) and event.task == task]
            assert [event.reason for event in given_up] == ["cancelled"]
            assert not await one.updates("02")
            site.send(signal.SIGCONT)
            await one.until(lambda: one.commits_of("02"))

    asyncio.run(go())


def test_a_learner_that_is_silent_for_too_long_is_gone_and_comes_back(tmp_path: Path) -> None:
    """The controller took it for lost while it was stopped; it is told so, and joins again."""

    async def go() -> None:
        async with scene(endless(silence=5 * LIMIT), tmp_path) as one:
            one.light("00", 0.2)
            one.light("01", 0.2)
            site = one.site("02")
            await one.until(lambda: one.commits_of("02"))
            site.send(signal.SIGSTOP)
            await one.lose("02")
            assert one.federation.status._learner("02")["state"] == "gone"
            site.send(signal.SIGCONT)

            async def joined() -> list[bool]:
                events = [event for event in await one.events() if isinstance(event, Joined)]
                return [event.fresh for event in events if event.learner == "02"]

            async def is_back() -> bool:
                return len(await joined()) == 2

            await one.until(is_back)
            await works_again(one, await newest_task(one))
            assert await joined() == [True, False]

    asyncio.run(go())


async def left(one: Scene) -> bool:
    return Left("02") in await one.events()


def test_a_connection_that_is_half_open(tmp_path: Path) -> None:
    """The connection stays dead without notice to either side: a new one has to be made."""

    async def go() -> None:
        async with scene(endless(), tmp_path) as one, FaultProxy(one.port) as proxy:
            one.light("00", 0.2)
            one.light("01", 0.2)
            one.agent("02", proxy.port)
            await one.until(lambda: one.commits_of("02"))
            assert proxy.abandon() >= 1
            await works_again(one, await newest_task(one))

    asyncio.run(go())


def test_a_connection_that_is_cut_again_and_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(endless(), tmp_path) as one, FaultProxy(one.port, delay=0.005) as proxy:
            one.light("00", 0.1)
            one.light("01", 0.1)
            one.agent("02", proxy.port)
            await one.until(lambda: one.commits_of("02"))
            for _ in range(5):
                proxy.cut()
                await works_again(one, await newest_task(one))
            answered = [line.answer.task for line in await one.lines() if line.answer is not None]
            assert len(answered) == len({*answered}), "every task was answered once"

    asyncio.run(go())


def test_a_controller_that_was_stopped_takes_nobody_for_lost(tmp_path: Path) -> None:
    """It received nothing meanwhile, as after a SIGSTOP of its own."""

    async def go() -> None:
        raw = endless(silence=1.5)
        del raw["algorithms"][0]["deadline"]  # an alarm that is due would be told at that moment
        async with scene(raw, tmp_path) as one:
            for name in ("00", "01", "02"):
                one.light(name, 0.1)
            await one.until(lambda: one.version >= 2)
            time.sleep(3)  # nothing runs meanwhile, on purpose
            version = one.version
            await one.until(lambda: one.version >= version + 2)
            assert not [event for event in await one.events() if isinstance(event, Left)]

    asyncio.run(go())


@pytest.mark.parametrize("way", ["up", "down", "both"])
def test_a_partition(way: str, tmp_path: Path) -> None:
    asyncio.run(parted(endless(), tmp_path, up=way != "down", down=way != "up"))


@pytest.mark.skipif("ARCHIPEL_CHAOS" not in os.environ, reason="takes two minutes: ARCHIPEL_CHAOS=1")
def test_a_partition_of_a_minute(tmp_path: Path) -> None:
    asyncio.run(parted(endless(heartbeat=5.0, silence=30.0), tmp_path, seconds=60.0))


async def parted(raw: dict[str, Any], folder: Path, up: bool = True, down: bool = True, seconds: float = 0.0) -> None:
    async with scene(raw, folder) as one, FaultProxy(one.port) as proxy:
        one.agent("02", proxy.port)
        await part(one, lambda: proxy.stall(up=up, down=down), proxy.heal, seconds, heard=not up)


def test_a_partition_between_two_networks(tmp_path: Path) -> None:
    asyncio.run(parted_by_the_kernel(endless(), tmp_path))


@pytest.mark.skipif("ARCHIPEL_CHAOS" not in os.environ, reason="takes two minutes: ARCHIPEL_CHAOS=1")
def test_a_partition_of_a_minute_between_two_networks(tmp_path: Path) -> None:
    asyncio.run(parted_by_the_kernel(endless(heartbeat=5.0, silence=30.0), tmp_path, seconds=60.0))


async def parted_by_the_kernel(raw: dict[str, Any], folder: Path, seconds: float = 0.0) -> None:
    with network() as net:
        papers = folder / "ca"
        create_authority(papers)
        issue(papers, "controller", hosts=["localhost", net.address])
        for name in ("00", "01", "02"):
            issue(papers, "learner", name)
        async with scene(raw, folder, papers) as one:
            with net.site(folder, raw, "02", one.port, papers / "02"):
                await part(one, net.cut, net.heal, seconds)


async def part(
    one: Scene, cut: Callable[[], None], heal: Callable[[], None], seconds: float, heard: bool = False
) -> None:
    """Cut the connection of 02, for at least these seconds; `heard`: its own messages still arrive."""
    one.light("00", 0.2)
    one.light("01", 0.2)
    await one.until(lambda: one.commits_of("02"))
    cut()
    version = one.version
    await asyncio.sleep(seconds)
    await one.until(lambda: one.version >= version + 2)  # the others go on meanwhile
    if not heard:
        await one.until(lambda: left(one))
    heal()
    await works_again(one, await newest_task(one))
    late = [event.reason for event in await one.events("02") if isinstance(event, Failed)]
    assert set(late) <= {LATE, "cancelled"}

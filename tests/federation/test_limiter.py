"""Limit concurrency; release a slot after a timeout, unless its caller keeps it."""

from __future__ import annotations

import asyncio

import pytest

from archipel.federation.controller.limiter import Limiter
from tests.waiting import LIMIT


async def refused(slots: Limiter) -> None:
    """One more does not get a slot, as often as the loop goes round."""
    waiting = asyncio.create_task(slots.acquire("a"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_a_released_slot_is_free_again() -> None:
    async def go() -> None:
        slots = Limiter(1, 10 * LIMIT)
        first = await slots.acquire("a")
        await refused(slots)
        first.release()
        first.release()  # once is enough: a second end frees nobody else's
        await slots.acquire("a")
        await refused(slots)

    asyncio.run(go())


def test_a_slow_caller_loses_its_slot() -> None:
    async def go() -> None:
        slots = Limiter(1, 0.01)
        await slots.acquire("a")
        async with slots.slot("a"):
            pass

    asyncio.run(go())


def test_a_kept_slot_has_no_timeout() -> None:
    async def go() -> None:
        slots = Limiter(1, 0.0)
        held = await slots.acquire("a")
        held.keep()  # before the event loop can run a timer
        await refused(slots)
        held.release()
        async with slots.slot("a"):
            pass

    asyncio.run(go())

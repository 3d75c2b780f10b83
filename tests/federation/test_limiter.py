"""So many at a time; who is slow does not keep others waiting, who stays does."""

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


def test_a_turn_is_free_again_when_it_ends() -> None:
    async def go() -> None:
        slots = Limiter(1, 10 * LIMIT)
        first = await slots.acquire("a")
        await refused(slots)
        first.release()
        first.release()  # once is enough: a second end frees nobody else's
        await slots.acquire("a")
        await refused(slots)

    asyncio.run(go())


def test_who_is_slow_loses_its_turn_and_who_stays_keeps_it() -> None:
    async def go() -> None:
        slots = Limiter(1, 0.01)
        await slots.acquire("a")
        second = await asyncio.wait_for(slots.acquire("a"), LIMIT)
        second.keep()
        await refused(slots)
        second.release()
        async with slots.slot("a"):
            pass

    asyncio.run(go())

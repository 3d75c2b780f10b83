"""So many at a time; who is slow does not keep others waiting, who stays does."""

from __future__ import annotations

import asyncio

import pytest

from archipel.federation.controller.limiter import Turns
from tests.waiting import LIMIT


async def refused(turns: Turns) -> None:
    """One more does not get a turn, as often as the loop goes round."""
    waiting = asyncio.create_task(turns.begin())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_a_turn_is_free_again_when_it_ends() -> None:
    async def go() -> None:
        turns = Turns(1, 10 * LIMIT)
        first = await turns.begin()
        await refused(turns)
        first.end()
        first.end()  # once is enough: a second end frees nobody else's
        await turns.begin()
        await refused(turns)

    asyncio.run(go())


def test_who_is_slow_loses_its_turn_and_who_stays_keeps_it() -> None:
    async def go() -> None:
        turns = Turns(1, 0.01)
        await turns.begin()
        second = await asyncio.wait_for(turns.begin(), LIMIT)
        second.stay()
        await refused(turns)
        second.end()
        async with turns.one():
            pass

    asyncio.run(go())

"""So many at a time; who is slow does not keep others waiting, who stays does."""

from __future__ import annotations

import asyncio

import pytest

from archipel.federation.controller.limiter import Turns


async def refused(turns: Turns) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(turns.begin(), 0.05)


def test_a_turn_is_free_again_when_it_ends() -> None:
    async def go() -> None:
        turns = Turns(1, 60)
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
        second = await asyncio.wait_for(turns.begin(), 5)
        second.stay()
        await refused(turns)
        second.end()
        async with turns.one():
            pass

    asyncio.run(go())

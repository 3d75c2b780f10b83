"""Turns: what takes memory is done by a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """So many at a time; who takes longer than a turn lasts keeps nobody waiting for it."""

    def __init__(self, count: int, seconds: float) -> None:
        self._free = asyncio.Semaphore(count)
        self._seconds = seconds

    async def begin(self) -> Turn:
        await self._free.acquire()
        return Turn(self._free, self._seconds)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        turn = await self.begin()
        try:
            yield
        finally:
            turn.end()


class Turn:
    """One that has begun."""

    def __init__(self, free: asyncio.Semaphore, seconds: float) -> None:
        self._free = free
        self._over = False
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def stay(self) -> None:
        """It lasts until its end from now on, however long that takes."""
        self._timer.cancel()

    def end(self) -> None:
        self._timer.cancel()
        if not self._over:
            self._over = True
            self._free.release()

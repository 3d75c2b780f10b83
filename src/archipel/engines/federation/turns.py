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

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        await self._free.acquire()
        over = False

        def end() -> None:
            nonlocal over
            if not over:
                over = True
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._seconds, end)
        try:
            yield
        finally:
            timer.cancel()
            end()

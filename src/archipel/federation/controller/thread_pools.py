"""Threads for work that would block the event loop: writing, hashing, reading and evaluating models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadPools:
    """A pool of threads for models, one thread for the home site, and tasks that run in the background."""

    def __init__(self) -> None:
        self._models = ThreadPoolExecutor(4, "models")
        self._at_home = ThreadPoolExecutor(1, "home")
        self._background: set[asyncio.Task[None]] = set()

    async def run(self, work: Callable[[], T]) -> T:
        """Run something in a thread; a cancelled caller waits until it is done, since its files are still in use."""
        done = asyncio.get_running_loop().run_in_executor(self._models, work)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait({done})
            raise

    async def run_at_home(self, work: Callable[[], T]) -> T:
        """Run something with the home site's network, one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._at_home, work)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background until it ends or everything is closed."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def cancel(self) -> None:
        """Cancel what runs in the background."""
        running = list(self._background)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def close(self) -> None:
        """End the threads."""
        for pool in (self._models, self._at_home):
            pool.shutdown(wait=True, cancel_futures=True)

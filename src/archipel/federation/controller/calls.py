"""The calls in progress, by caller: a quota for each, and a way to end them all."""

from __future__ import annotations

import asyncio
from collections import defaultdict

MOST = 100
"""Calls that one caller may have open: as many as one connection may, so that an honest one is never refused."""


class TooManyCalls(Exception):
    """A caller has more calls open than its quota allows; it may try again."""


class Calls:
    """Count and end the calls of each caller."""

    def __init__(self) -> None:
        self._open: defaultdict[str, set[asyncio.Task[object]]] = defaultdict(set)
        self._listening: dict[str, asyncio.Task[object]] = {}

    def begin(self, caller: str) -> None:
        """Count the current task as a call until it ends."""
        mine, call = self._open[caller], _current()
        if len(mine) >= MOST:
            raise TooManyCalls(f"{caller} has {len(mine)} calls open, and {MOST} are allowed.")
        mine.add(call)
        call.add_done_callback(mine.discard)

    def listen(self, caller: str) -> None:
        """Make the current call the only one through which the caller is told things; end the one before."""
        before, call = self._listening.get(caller), _current()
        if before is not None and before is not call:
            before.cancel()  # it may be stuck in a write that the caller never reads
        self._listening[caller] = call

    def drop(self, caller: str) -> None:
        """End all calls of a caller but the current one."""
        for call in self._open[caller] - {_current()}:
            call.cancel()


def _current() -> asyncio.Task[object]:
    call = asyncio.current_task()
    assert call is not None
    return call

"""Limits on concurrent calls of callers, and on their memory."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from archipel.federation.security.names import Identity

MOST_CALLS = 100
"""Calls that one caller may have open: as many as one connection, so that an honest caller is never refused."""

CALLS_A_MINUTE, FAILURES_A_MINUTE = 6_000, 300
"""Calls without an update, and failed calls, after which further ones of that caller are delayed."""
PAUSE, MOST_PAUSED = 1.0, 1000
"""Seconds of the delay, so that a loop takes little of the controller's time; and how many calls are delayed at once,
since each takes memory."""

MOST_CALLERS = 10_000
"""Callers that a quota distinguishes."""


class Limiter:
    """Limit concurrency; callers take turns, and a slot is released after a timeout.

    A caller with a hundred waiting calls gets a slot as often as one with a single call, and a slow caller does not
    delay the others.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self._free = count
        self._seconds = seconds
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By caller; the first one is next."""

    async def acquire(self, caller: str) -> Slot:
        """Wait for a slot."""
        if self._free:
            self._free -= 1
        else:
            granted = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(caller, deque()).append(granted)
            try:
                await granted
            except asyncio.CancelledError:
                if not granted.cancelled():  # the slot was granted just before the caller gave up
                    self._release()
                raise
        return Slot(self._release, self._seconds)

    @asynccontextmanager
    async def slot(self, caller: str) -> AsyncIterator[None]:
        """Hold a slot inside a block."""
        held = await self.acquire(caller)
        try:
            yield
        finally:
            held.release()

    def _release(self) -> None:
        """Grant the slot to the next caller, which then moves to the end of the queue."""
        while self._waiting:
            caller = next(iter(self._waiting))
            calls = self._waiting.pop(caller)
            granted = calls.popleft()
            if calls:
                self._waiting[caller] = calls
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1


class Slot:
    """A slot that was acquired."""

    def __init__(self, on_release: Callable[[], None], seconds: float) -> None:
        self._on_release = on_release
        self._released = False
        self._timer = asyncio.get_running_loop().call_later(seconds, self.release)

    def keep(self) -> None:
        """Hold it until it is released, without a timeout."""
        self._timer.cancel()

    def release(self) -> None:
        """Release it; a second call does nothing."""
        self._timer.cancel()
        if not self._released:
            self._released = True
            self._on_release()


class Backlog:
    """Count small updates that are in memory and not yet on disk."""

    def __init__(self, most: int) -> None:
        """Take the number of updates above which no further orders are sent: they would only bring more updates."""
        self._most = most
        self._count = 0
        self._room = asyncio.Event()

    def add(self, more: int) -> None:
        """Count more updates, or fewer."""
        self._count += more
        if self._count < self._most:
            self._room.set()
        else:
            self._room.clear()

    async def drained(self) -> None:
        """Wait until there is room for more."""
        while self._count >= self._most:
            await self._room.wait()


class TooManyCalls(Exception):
    """A caller has more calls open than its quota allows; it may try again."""


class Quota:
    """Allow each caller a number of something a minute, and count the excess."""

    def __init__(self, most: int, seconds: float = 60.0, *, told: bool = False) -> None:
        """told: somebody asks with `ended` who exceeded the quota, so that a minute is not forgotten before."""
        self._most = most
        self._renews = not told
        self._seconds = seconds
        self._windows: dict[str, tuple[float, int]] = {}
        """By caller: when its minute began, and how many came in it."""

    def admit(self, caller: str, now: float) -> bool:
        """Count one more; return whether it is within the quota."""
        if caller not in self._windows and len(self._windows) >= MOST_CALLERS:
            caller = "others"  # a caller with many addresses must not fill the memory
        began, count = self._windows.get(caller, (now, 0))
        if self._renews and now - began >= self._seconds:
            began, count = now, 0
        self._windows[caller] = (began, count + 1)
        return count < self._most

    def ended(self, now: float) -> list[tuple[str, int]]:
        """End the minutes that are over; return who exceeded the quota in them, and by how many."""
        over = {who: count for who, (began, count) in self._windows.items() if now - began >= self._seconds}
        for who in over:
            del self._windows[who]
        return [(who, count - self._most) for who, count in over.items() if count > self._most]


class Calls:
    """Count and end the calls of each caller."""

    def __init__(self) -> None:
        self._open: defaultdict[Identity, set[asyncio.Task[object]]] = defaultdict(set)
        self._ended: dict[asyncio.Task[object], str] = {}
        """Calls that were ended here, with the reason."""
        self._listening: dict[Identity, asyncio.Task[object]] = {}
        self._made, self._failed = Quota(CALLS_A_MINUTE), Quota(FAILURES_A_MINUTE)
        self._paused = 0

    async def pace(self, caller: Identity, now: float, *, failed: bool = False) -> None:
        """Count a call, and delay it if its caller has made many lately."""
        if (self._failed if failed else self._made).admit(str(caller), now) or self._paused >= MOST_PAUSED:
            return
        self._paused += 1
        try:
            await asyncio.sleep(PAUSE)
        finally:
            self._paused -= 1

    def begin(self, caller: Identity) -> None:
        """Count the current task as a call until it ends."""
        mine, call = self._open[caller], current_call()
        if len(mine) >= MOST_CALLS:
            raise TooManyCalls(f"{caller} has {len(mine)} calls open, and {MOST_CALLS} are allowed.")
        mine.add(call)
        call.add_done_callback(mine.discard)

    def listen(self, caller: Identity) -> None:
        """Make the current call the only one that sends the caller messages; end the previous one."""
        before, call = self._listening.get(caller), current_call()
        if before is not None and before is not call and not before.done():
            self._end(before, "Replaced by another call of this caller.")
        self._listening[caller] = call

    def drop(self, caller: Identity) -> None:
        """End all calls of a caller but the current one."""
        for call in self._open[caller] - {current_call()}:
            self._end(call, "The caller was withdrawn.")

    def why_ended(self) -> str | None:
        """Return why the current call was ended here; None if its caller hung up."""
        return self._ended.get(current_call())

    def _end(self, call: asyncio.Task[object], reason: str) -> None:
        self._ended[call] = reason
        call.add_done_callback(lambda call: self._ended.pop(call, None))
        call.cancel()  # it may be stuck in a write that the caller never reads


def current_call() -> asyncio.Task[object]:
    call = asyncio.current_task()
    assert call is not None
    return call

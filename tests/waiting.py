"""Wait for a state, not for a time: the limit only ends a test that hangs, and says what it waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

LIMIT = 300.0
"""Seconds after which a test is taken to hang; no verdict depends on it."""
PAUSE = 0.005

T = TypeVar("T")


def until(condition: Callable[[], T], what: str | Callable[[], str], limit: float = LIMIT) -> T:
    """Wait until the condition is true, and return its value; `what` completes "waited for"."""
    end = time.monotonic() + limit
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(_told(what, limit))
        time.sleep(PAUSE)
    return value


async def reached(condition: Callable[[], T], what: str | Callable[[], str], limit: float = LIMIT) -> T:
    """Wait until the condition is true while other coroutines run, and return its value."""
    end = time.monotonic() + limit
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(_told(what, limit))
        await asyncio.sleep(PAUSE)
    return value


def _told(what: str | Callable[[], str], limit: float) -> str:
    return f"waited {limit:g} s for {what if isinstance(what, str) else what()}"

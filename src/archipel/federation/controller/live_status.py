"""The status that a controller sends to its live page once a second: what is not in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from archipel.federation.controller.engine import Federation
from archipel.federation.security.names import Identity

EVERY = 1.0
"""Seconds between two statuses."""
VIEWER = Identity("operator", "live")
"""The page sees what operators see."""


async def tell_page(federation: Federation, tell: Callable[[dict[str, Any]], None], title: str, reach: str) -> None:
    """Send the page the status of the federation, until this is cancelled.

    title: the study's. reach: options with which a command on this machine reaches the controller.
    """
    while True:
        tell({**live_status(federation), "title": title, "reach": reach})
        await asyncio.sleep(EVERY)


def live_status(federation: Federation) -> dict[str, Any]:
    """Return an operator's status, and what the page shows beside it."""
    replay, state = federation.durable.replay, federation.log.state
    ending, now = federation.durable.controller.ending, federation.log.now
    moved = sum(n for kind, n in state.traffic.items() if kind.endswith("bytes") and not kind.startswith("score"))
    return {
        **federation.status.report(VIEWER),
        "name": federation.durable.controller.algorithm.name,
        "share": ending.share(now, state.rounds, state.version, moved),
        "tasks": len(state.out),
        "evidence": len(state.inquiries),
        # the writer's thread adds to them meanwhile
        "moved": {kind: dict(ledger) for kind, ledger in list(replay.moved.items())},
    }

"""Follow what the page shows, in a thread of its own, and tell when it has changed.

Nobody queues: a watcher waits for a change and then takes the state as it is. A slow one gets fewer, larger changes.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from archipel.live.run_folder import RunStage
from archipel.live.timeline import Timeline

TICK = 0.03
"""Seconds between two looks while somebody watches: with what follows them, more than 20 updates a second."""
REST = 2.0
"""Times as long as a look took does the follower rest before the next, so that it never takes a whole processor."""
IDLE = 1.0
"""Seconds between two looks while nobody does."""


class FollowedRun(Protocol):
    """A run that grows."""

    place: str
    about: dict[str, Any]
    share: float | None
    stage: RunStage
    generation: int
    timeline: Timeline


class Followed(Protocol):
    """What the page is about: a folder of results or a federation."""

    @property
    def title(self) -> str: ...
    @property
    def runs(self) -> Sequence[FollowedRun]: ...
    @property
    def federation(self) -> dict[str, Any] | None: ...
    def poll(self) -> bool: ...


class Follower:
    """Look again and again, and keep what watchers are told."""

    def __init__(self, followed: Followed) -> None:
        self.followed = followed
        self.server = secrets.token_hex(8)
        """Tells this server from one that was restarted: what a page has of the other one is void."""
        self.overview = ""
        self.sizes: dict[int, tuple[int, int, int]] = {}
        """By run: its generation, and the bytes of its curve and its events."""
        self.changes = 0
        self.watchers = 0
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread, and let watchers go."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def wait(self, seen: int, seconds: float) -> int:
        """Wait until there is something new since the change `seen`; return the number of the last change."""
        with self._changed:
            self._changed.wait_for(lambda: self.changes != seen or self.closed, seconds)
            return self.changes

    def look(self) -> bool:
        """Look once; return whether there may be more at once."""
        more = self.followed.poll()
        sizes = {
            number: (run.generation, run.timeline.curve.size, run.timeline.events.size)
            for number, run in enumerate(self.followed.runs)
        }
        overview = self._describe()
        if sizes != self.sizes or overview != self.overview:
            with self._changed:
                self.sizes, self.overview = sizes, overview
                self.changes += 1
                self._changed.notify_all()
        return more

    def _follow(self) -> None:
        while not self.closed:
            begun = time.monotonic()
            more = self.look()
            took = time.monotonic() - begun
            self._closed.wait(0 if more else max(TICK - took, REST * took) if self.watchers else IDLE)

    def _describe(self) -> str:
        """Return what the page says of the whole, as JSON."""
        runs = [
            {
                "place": run.place,
                **run.about,
                "stage": run.stage,
                "share": run.share,
                "metric": run.about.get("metric") or run.timeline.metric,
            }
            for run in self.followed.runs
        ]
        told = {"title": self.followed.title, "runs": runs, "federation": self.followed.federation}
        return json.dumps(told, separators=(",", ":"), ensure_ascii=False)

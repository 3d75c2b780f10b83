"""Poll the page's source in a thread, and notify watchers of changes.

There are no queues: a watcher waits for a change and then reads the current state. A slow one gets fewer, larger
changes.
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
"""Seconds between polls while there are watchers; allows more than 20 updates a second."""
REST = 2.0
"""Pause after a poll as a multiple of its duration, which limits the use of the processor."""
IDLE = 1.0
"""Seconds between polls without watchers."""


class FollowedRun(Protocol):
    """A run that grows."""

    place: str
    about: dict[str, Any]
    share: float | None
    stage: RunStage
    generation: int
    timeline: Timeline


class Followed(Protocol):
    """The source of the page: a folder of results or a federation."""

    @property
    def title(self) -> str: ...
    @property
    def runs(self) -> Sequence[FollowedRun]: ...
    @property
    def federation(self) -> dict[str, Any] | None: ...
    def poll(self) -> bool: ...


class Follower:
    """Polls the source and keeps the state for watchers."""

    def __init__(self, followed: Followed) -> None:
        self.followed = followed
        self.server = secrets.token_hex(8)
        """Identifies this server; a page discards the data of an earlier one."""
        self.overview = ""
        self.sizes: dict[int, tuple[int, int, int]] = {}
        """For each run: its generation, and the lengths in bytes of its curve and its events."""
        self.changes = 0
        self.watchers = 0
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and release watchers."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def wait(self, seen: int, seconds: float) -> int:
        """Wait for a change after number `seen`; return the number of the last change."""
        with self._changed:
            self._changed.wait_for(lambda: self.changes != seen or self.closed, seconds)
            return self.changes

    def look(self) -> bool:
        """Poll once; return whether more may be available immediately."""
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
        """Return the page's overview as JSON."""
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

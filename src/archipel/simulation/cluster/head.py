"""Talk to the head of a cluster in a thread of its own: a call does not return if the head is gone."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from archipel.simulation.cluster.connection import Cluster, head_listens

LOOK_EVERY = 1.0
"""Seconds between two checks of the free resources of the cluster."""


class Head:
    """Starts actors wherever there is room, and stops those that are given up."""

    def __init__(self, ray: Any, cluster: Cluster, start: Callable[[], Any], started: Iterable[Any] = ()) -> None:
        """start: starts an actor; returns its handle. started: handles of actors that are there already."""
        self.ray = ray
        self.cluster = cluster
        self.started = deque(started)
        """Handles of actors that the pool has not taken yet."""
        self.to_stop: deque[Any] = deque()
        self.may_start = True
        self._start = start
        self._seen = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def lost(self, silent: float) -> bool:
        """Return whether the head has not answered for so many seconds, and cannot be connected to."""
        return time.monotonic() - self._seen > silent and not head_listens(self.ray, self.cluster.address)

    def close(self, handles: Sequence[Any], seconds: float) -> None:
        """Stop these actors and the thread; leave them to Ray if the head does not answer within so many seconds."""
        self.to_stop.extend([*handles, *self.started])
        self._closed.set()
        self._thread.join(seconds)

    def look(self) -> None:
        """Stop and start actors once."""
        self._stop_some()
        free = self.ray.available_resources()
        self._seen = time.monotonic()
        if self.may_start and not self.started:
            self._start_where_there_is_room(free)

    def _watch(self) -> None:
        while not self._closed.is_set():
            with suppress(Exception):  # a head that does not answer shows in `lost`
                self.look()
            self._closed.wait(LOOK_EVERY)
        with suppress(Exception):
            self._stop_some()

    def _start_where_there_is_room(self, free: Mapping[str, float]) -> None:
        room = int(free.get("CPU", 0.0) / self.cluster.cpus)
        if self.cluster.gpus:
            room = min(room, int(free.get("GPU", 0.0) / self.cluster.gpus))
        self.started.extend([self._start() for _ in range(room)])
        if room:
            self.may_start = False

    def _stop_some(self) -> None:
        while self.to_stop:
            self.ray.kill(self.to_stop.popleft(), no_restart=True)

"""Actors on the nodes of a cluster: where they are started, which of them can work, and which are lost.

Nothing waits for an actor. One that has not started yet is not counted on, and one that is silent for longer than
`SILENT` is lost, whatever Ray knows of its node.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from archipel.core.checks import ArchipelWarning
from archipel.simulation.cluster.connection import Cluster, ClusterError, head_listens
from archipel.simulation.cluster.fingerprint import fingerprint

SILENT = 4.0
"""Seconds without an answer to a ping after which an actor is lost."""
PING_EVERY = 1.0
STARTING = 30.0
"""Seconds in which an actor may be expected to start; after that nobody reckons with it, but it may still come."""
LOOK_EVERY = 1.0
"""Seconds between two looks at the free resources of the cluster."""
WATCH = "watch"
"""The concurrency group of pings: they are answered beside a training."""


class ActorStage(Enum):
    """How far an actor is."""

    INSPECTING = auto()
    STARTING = auto()
    READY = auto()
    LOST = auto()


@dataclass(eq=False)
class PooledActor:
    """One actor."""

    handle: Any
    reply: Any
    """Of `inspect` or `start`, until it is ready."""
    asked: float
    """When it was asked for."""
    stage: ActorStage = ActorStage.INSPECTING
    node: str = ""
    process: int = 0
    ping: Any = None
    silence: float = 0.0
    """Seconds since the ping that is out was sent, as far as this process was watching."""
    last_ping: float = 0.0
    work: list[Any] = field(default_factory=list)
    """What it was given and has not answered."""
    learners: dict[int, object] = field(default_factory=dict)
    """Learners whose examples it has, by identity,"""
    parts: dict[int, object] = field(default_factory=dict)
    """and parts."""


class ActorPool:
    """Starts actors wherever the cluster has room, and finds out which are lost."""

    def __init__(
        self,
        ray: Any,
        cluster: Cluster,
        kind: type,
        start: Sequence[Any] = (),
        heard: Callable[[PooledActor, Any], None] = lambda actor, reply: None,
    ) -> None:
        """kind: a class with the methods `inspect`, `start` and `ping`.

        start: arguments of `start`. heard: called with what `ping` returns.
        """
        self.ray = ray
        self.cluster = cluster
        self.actors: list[PooledActor] = []
        self.gone: str | None = None
        """Why the whole cluster is lost."""
        self._start = tuple(start)
        self._heard = heard
        asked = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus, "max_restarts": 0}
        actor = ray.remote(**asked, concurrency_groups={WATCH: 1})(kind)
        self._head = _Head(ray, cluster, actor.remote)
        self._differences: set[str] = set()
        """Of nodes that were allowed to differ."""
        self._began = self._last_tick = time.monotonic()

    @property
    def ready(self) -> list[PooledActor]:
        """Return the actors that can be given work."""
        return [actor for actor in self.actors if actor.stage is ActorStage.READY]

    @property
    def expected(self) -> bool:
        """Return whether an actor is starting that may be ready soon."""
        if self.gone:
            return False
        now = time.monotonic()
        starting = [actor.asked for actor in self.actors if actor.stage is not ActorStage.READY]
        return any(now - asked < STARTING for asked in starting or [self._began])

    def replies(self) -> list[Any]:
        """Return the references that become available when an actor has news."""
        return [reference for actor in self.actors for reference in (actor.reply, actor.ping) if reference]

    def tick(self) -> list[PooledActor]:
        """Look at all actors and at the cluster; return the actors that were lost since the last look."""
        now = time.monotonic()
        # a pause of this process says nothing about the others
        passed, self._last_tick = min(now - self._last_tick, PING_EVERY), now
        for actor in list(self.actors):
            if actor.stage is ActorStage.READY:
                self._check_ping(actor, now, passed)
            elif actor.stage is not ActorStage.LOST:
                self._follow_start(actor)
        lost = [actor for actor in self.actors if actor.stage is ActorStage.LOST]
        self.actors = [actor for actor in self.actors if actor.stage is not ActorStage.LOST]
        self._welcome(now)
        if self._head.silent_for(now) > SILENT and not head_listens(self.ray):
            self.gone = "its head node does not answer any more"
            lost, self.actors = [*lost, *self.actors], []
        return lost

    def _check_ping(self, actor: PooledActor, now: float, passed: float) -> None:
        if actor.ping is None:
            if now - actor.last_ping >= PING_EVERY:
                actor.ping, actor.last_ping, actor.silence = self._ping(actor), now, 0.0
            return
        if self._is_there(actor.ping):
            reply = self._get(actor, actor.ping)
            if reply is not _LOST:
                actor.ping = None
                self._heard(actor, reply)
            return
        actor.silence += passed
        if actor.silence > SILENT:
            self.lose(actor)

    def _follow_start(self, actor: PooledActor) -> None:
        if not self._is_there(actor.reply):
            return
        reply = self._get(actor, actor.reply)
        if reply is _LOST:
            return
        if actor.stage is ActorStage.INSPECTING:
            actor.node, actor.process, found = reply
            self._compare(actor.node, found)
            actor.stage = ActorStage.STARTING
            actor.reply = actor.handle.start.remote(*self._start)
        else:
            actor.stage, actor.reply = ActorStage.READY, None

    def _compare(self, node: str, found: Any) -> None:
        different = fingerprint().differences(found)
        if not different:
            return
        sentence = f"node {node} computes other bits than this machine: {'; '.join(different)}"
        if not self.cluster.mixed:
            raise ClusterError(
                f"cluster: {sentence}. Install the same versions on all nodes, or allow it with --mixed; such a run "
                "is recorded as one of mixed machines."
            )
        if sentence not in self._differences:
            self._differences.add(sentence)
            warnings.warn(f"cluster: {sentence}.", ArchipelWarning, stacklevel=2)

    def _welcome(self, now: float) -> None:
        """Take up actors that were started; have no others started before these are placed."""
        while self._head.started:
            handle = self._head.started.popleft()
            self.actors.append(PooledActor(handle, handle.inspect.remote(), now))
        self._head.may_start = not any(actor.stage is ActorStage.INSPECTING for actor in self.actors)

    def pause(self, seconds: float) -> None:
        """Wait for the next look at the cluster."""
        self._head.pause(seconds)

    def lose(self, actor: PooledActor) -> None:
        """Give a actor up; a late answer of it is ignored."""
        actor.stage = ActorStage.LOST
        self._head.to_stop.append(actor.handle)

    def close(self) -> None:
        """Stop all actors."""
        self._head.close([actor.handle for actor in self.actors])
        self.actors = []

    def _ping(self, actor: PooledActor) -> Any:
        return actor.handle.ping.options(concurrency_group=WATCH).remote()

    def _is_there(self, reference: Any) -> bool:
        return bool(self.ray.wait([reference], timeout=0, fetch_local=False)[0])

    def _get(self, actor: PooledActor, reference: Any) -> Any:
        """Return an available value; lose the actor if it died."""
        try:
            return self.ray.get(reference, timeout=SILENT)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.GetTimeoutError):
            self.lose(actor)
            return _LOST
        except self.ray.exceptions.RayTaskError as error:
            where = actor.node or "of the cluster"
            raise ClusterError(f"cluster: an actor cannot start on node {where}: {error}") from None


_LOST = object()


class _Head:
    """Talks to the head of the cluster in a thread of its own: a call does not return if the head is gone."""

    def __init__(self, ray: Any, cluster: Cluster, start: Callable[[], Any]) -> None:
        self.ray = ray
        self.cluster = cluster
        self.start = start
        self.started: deque[Any] = deque()
        """Handles of actors that nobody has taken up yet."""
        self.to_stop: deque[Any] = deque()
        self.may_start = True
        self._seen = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def silent_for(self, now: float) -> float:
        """Return the seconds since the head has answered."""
        return now - self._seen

    def pause(self, seconds: float) -> None:
        """Wait this long, or until it is closed."""
        self._closed.wait(seconds)

    def close(self, handles: Sequence[Any]) -> None:
        """Stop these actors and the thread; leave them to Ray if the head does not answer."""
        self.to_stop.extend([*handles, *self.started])
        self._closed.set()
        self._thread.join(SILENT)

    def _watch(self) -> None:
        while not self._closed.is_set():
            with suppress(Exception):  # a head that does not answer shows in `silent_for`
                self._stop_some()
                free = self.ray.available_resources()
                self._seen = time.monotonic()
                if self.may_start and not self.started:
                    self._start_where_there_is_room(free)
            self._closed.wait(LOOK_EVERY)
        with suppress(Exception):
            self._stop_some()

    def _start_where_there_is_room(self, free: Mapping[str, float]) -> None:
        room = int(free.get("CPU", 0.0) / self.cluster.cpus)
        if self.cluster.gpus:
            room = min(room, int(free.get("GPU", 0.0) / self.cluster.gpus))
        self.started.extend([self.start() for _ in range(room)])
        if room:
            self.may_start = False

    def _stop_some(self) -> None:
        while self.to_stop:
            self.ray.kill(self.to_stop.popleft(), no_restart=True)

"""Actors on the nodes of a cluster: where they are started, which of them can work, and which are lost.

Nothing waits for an actor. One that has not started yet is not counted on, and one that is silent for longer than
`SILENT` is lost, whatever Ray knows of its node. Replies come in through Ray's own threads and are handled in the
thread that calls `wait`, one after the other.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from archipel.core.checks import ArchipelWarning
from archipel.simulation.cluster.actor import WATCH
from archipel.simulation.cluster.connection import Cluster, ClusterError
from archipel.simulation.cluster.fingerprint import Fingerprint, fingerprint
from archipel.simulation.cluster.head import Head

SILENT = 3.0
"""Seconds without an answer to a ping after which an actor is lost."""
PING_EVERY = 1.0
LOOK_EVERY = 0.25
"""Seconds between two checks of all actors; with the two above, a loss is noticed within five seconds."""
STARTING = 30.0
"""Seconds in which an actor is expected to start; it may also start later."""


class ActorStage(Enum):
    """The stage of an actor."""

    INSPECTING = auto()
    STARTING = auto()
    READY = auto()
    LOST = auto()


@dataclass(eq=False)
class PooledActor:
    """One actor."""

    handle: Any
    asked: float
    """When it was requested."""
    stage: ActorStage = ActorStage.INSPECTING
    node: str = ""
    process: int = 0
    different: str = ""
    """How it differs from this machine, where that is allowed."""
    pinged: bool = False
    """Whether a ping is unanswered."""
    silence: float = 0.0
    """Seconds since that was sent, as far as this process was watching."""
    last_ping: float = 0.0
    work: list[Any] = field(default_factory=list)
    """Tasks that it has not answered."""
    results: list[Any] = field(default_factory=list)
    """Tasks that it has answered, whose results are only on its node."""
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

        start: arguments of `start`, which returns what differs there. heard: called with what `ping` returns.
        """
        self.ray = ray
        self.cluster = cluster
        self.actors: list[PooledActor] = []
        self.gone: str | None = None
        """Why the whole cluster is lost; empty if it is not."""
        self._start = tuple(start)
        self._heard = heard
        self._news: SimpleQueue[tuple[_Awaited, Future[Any]]] = SimpleQueue()
        self._lost: list[PooledActor] = []
        """Actors that were lost and not reported yet."""
        self.differences: dict[str, None] = {}
        """Of nodes that were allowed to differ, in the order in which they were found."""
        self._began = self._last_tick = time.monotonic()
        asked = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus, "max_restarts": 0}
        self._head = Head(ray, cluster, ray.remote(**asked, concurrency_groups={WATCH: 1})(kind).remote)

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

    def expect(
        self,
        actor: PooledActor,
        reference: Any,
        handle: Callable[[Any], None],
        failed: Callable[[ClusterError], None] | None = None,
    ) -> None:
        """Have `wait` call `handle` with the value of a reference once it is there, unless the actor is lost before.

        failed: called with the error if there is no value; without it `wait` raises the error.
        """
        awaited = _Awaited(actor, handle, failed)
        reference.future().add_done_callback(lambda future: self._news.put((awaited, future)))

    def wait(self, seconds: float) -> None:
        """Handle the replies that are there; wait at most so many seconds for the first."""
        with suppress(Empty):
            self._handle(*self._news.get(timeout=seconds))
            while True:
                self._handle(*self._news.get_nowait())

    def tick(self) -> list[PooledActor]:
        """Check all actors and the cluster if it is time; return the actors lost since the last call."""
        now = time.monotonic()
        if now - self._last_tick >= LOOK_EVERY:
            # a pause of this process says nothing about the others
            passed, self._last_tick = min(now - self._last_tick, PING_EVERY), now
            self._welcome(now)
            for actor in self.ready:
                self._check_ping(actor, now, passed)
            if self._head.lost(SILENT):
                self.gone = "its head node no longer answers"
                for actor in list(self.actors):
                    self.lose(actor)
        lost, self._lost = self._lost, []
        return lost

    def lose(self, actor: PooledActor) -> None:
        """Give an actor up; a late answer of it is ignored."""
        if actor.stage is not ActorStage.LOST:
            actor.stage = ActorStage.LOST
            self.actors.remove(actor)
            self._lost.append(actor)
            self._head.to_stop.append(actor.handle)

    def close(self) -> None:
        """Stop all actors."""
        self._head.close([actor.handle for actor in self.actors], SILENT)
        self.actors = []

    def _welcome(self, now: float) -> None:
        """Take up actors that were started; have no others started before these are placed."""
        while self._head.started:
            actor = PooledActor(self._head.started.popleft(), now)
            self.actors.append(actor)
            self.expect(actor, actor.handle.inspect.remote(), partial(self._inspected, actor))
        self._head.may_start = not any(actor.stage is ActorStage.INSPECTING for actor in self.actors)

    def _inspected(self, actor: PooledActor, found: tuple[str, int, Fingerprint]) -> None:
        actor.node, actor.process, there = found
        self._compare(actor, fingerprint().differences(there))
        actor.stage = ActorStage.STARTING
        self.expect(actor, actor.handle.start.remote(*self._start), partial(self._started, actor))

    def _started(self, actor: PooledActor, differences: list[str]) -> None:
        self._compare(actor, differences)
        actor.stage = ActorStage.READY

    def _compare(self, actor: PooledActor, different: Sequence[str]) -> None:
        if not different:
            return
        sentence = f"node {actor.node} computes other bits than this machine: {'; '.join(different)}"
        if not self.cluster.mixed:
            raise ClusterError(
                f"cluster: {sentence}. Install the same versions on all nodes, or allow it with --mixed; such a run "
                "is recorded as one of mixed machines."
            )
        actor.different = "; ".join(filter(None, (actor.different, sentence)))
        if sentence not in self.differences:
            self.differences[sentence] = None
            warnings.warn(f"cluster: {sentence}.", ArchipelWarning, stacklevel=2)

    def _check_ping(self, actor: PooledActor, now: float, passed: float) -> None:
        if actor.pinged:
            actor.silence += passed
            if actor.silence > SILENT:
                self.lose(actor)
        elif now - actor.last_ping >= PING_EVERY:
            actor.pinged, actor.last_ping, actor.silence = True, now, 0.0
            reference = actor.handle.ping.remote()
            self.expect(actor, reference, partial(self._pinged, actor))

    def _pinged(self, actor: PooledActor, reply: Any) -> None:
        actor.pinged = False
        self._heard(actor, reply)

    def _handle(self, awaited: _Awaited, future: Future[Any]) -> None:
        """Handle one reply, or the error in its place."""
        actor, error = awaited.actor, future.exception()
        if actor.stage is ActorStage.LOST:
            return
        if error is None:
            awaited.handle(future.result())
            return
        errors = self.ray.exceptions
        if isinstance(error, (errors.RayActorError, errors.ObjectLostError)):
            self.lose(actor)
            return
        told = self._told(actor, error)
        if awaited.failed is None:
            raise told from error
        awaited.failed(told)

    def _told(self, actor: PooledActor, error: BaseException) -> ClusterError:
        """Return an actor's error as a sentence for users."""
        errors, node = self.ray.exceptions, actor.node or "of the cluster"
        if isinstance(error, errors.OutOfMemoryError):
            return ClusterError(
                f"cluster: node {node} ran out of memory, and Ray ended an actor. Give each actor more of a node "
                f"with --per-actor (it has {self.cluster.share}), or use nodes with more memory. Ray reports: {error}"
            )
        starting = actor.stage is not ActorStage.READY
        return ClusterError(f"cluster: an actor {'cannot start' if starting else 'failed'} on node {node}: {error}")


@dataclass(frozen=True)
class _Awaited:
    """The handlers of a reply."""

    actor: PooledActor
    handle: Callable[[Any], None]
    failed: Callable[[ClusterError], None] | None

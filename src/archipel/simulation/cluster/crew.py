"""The actors of a run: how many there are, which of them work, and which are lost.

Nothing waits for an actor. One that has not started yet is not counted on, and one that is silent for longer than
`SILENT` is lost, whatever Ray knows of its node.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from archipel.core.checks import ArchipelWarning
from archipel.learner.learner import Learner
from archipel.learner.probes import Parts
from archipel.simulation.cluster.actor import TrainingActor
from archipel.simulation.cluster.connection import Cluster, ClusterError, head_listens
from archipel.simulation.cluster.fingerprint import fingerprint
from archipel.simulation.cluster.requests import Blueprint

SILENT = 4.0
"""Seconds without an answer to a ping after which an actor is lost."""
PING_EVERY = 1.0
STARTING = 30.0
"""Seconds in which an actor may be expected to start; after that nobody reckons with it, but it may still come."""
LOOK_EVERY = 1.0
"""Seconds between two looks at the resources of the cluster."""
WATCH = "watch"
"""The concurrency group of pings: they are answered beside a training."""


class Stage(Enum):
    """How far an actor is."""

    INSPECTING = auto()
    STARTING = auto()
    READY = auto()
    LOST = auto()


@dataclass(eq=False)
class Member:
    """One actor."""

    handle: Any
    reply: Any
    """Of `inspect` or `start`, until it is ready."""
    asked: float
    """When it was asked for."""
    stage: Stage = Stage.INSPECTING
    node: str = ""
    ping: Any = None
    silence: float = 0.0
    """Seconds since the ping that is out was sent, as far as this process was watching."""
    last_ping: float = 0.0
    load: float = 0.0
    """Cost of the messages it has not answered."""
    messages: list[Any] = field(default_factory=list)
    learners: dict[int, Learner] = field(default_factory=dict)
    """Learners whose examples it has, by identity."""
    parts: dict[int, Parts] = field(default_factory=dict)
    """Parts whose examples it has, by identity."""


class Crew:
    """Starts actors wherever the cluster has room, and finds out which are lost."""

    def __init__(
        self,
        ray: Any,
        blueprint: Blueprint,
        examples: Sequence[Any],
        cluster: Cluster,
    ) -> None:
        """examples: inputs and targets, as references or as paths."""
        self.ray = ray
        self.blueprint = ray.put(blueprint)
        self.examples = tuple(examples)
        self.cluster = cluster
        self.members: list[Member] = []
        self.differences: set[str] = set()
        """Of nodes that were allowed to differ."""
        self.gone: str | None = None
        """Why the whole cluster is lost."""
        asked = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus, "max_restarts": 0, "concurrency_groups": {WATCH: 1}}
        self._actor = ray.remote(**asked)(TrainingActor)
        self._last_tick = time.monotonic()
        self._resources = _Resources(ray)

    @property
    def ready(self) -> list[Member]:
        """Return the actors that can be given work."""
        return [member for member in self.members if member.stage is Stage.READY]

    @property
    def expected(self) -> bool:
        """Return whether an actor is starting that may be ready soon."""
        if self.gone:
            return False
        if not self.members and self._resources.recent is None:
            return time.monotonic() - self._resources.began < STARTING
        now = time.monotonic()
        return any(member.stage is not Stage.READY and now - member.asked < STARTING for member in self.members)

    def replies(self) -> list[Any]:
        """Return the references that become available when a member has news."""
        return [reference for member in self.members for reference in (member.reply, member.ping) if reference]

    def tick(self) -> list[Member]:
        """Look at all members and at the cluster; return the members that were lost since the last look."""
        now = time.monotonic()
        # a pause of this process says nothing about the others
        passed, self._last_tick = min(now - self._last_tick, PING_EVERY), now
        for member in list(self.members):
            if member.stage is Stage.READY:
                self._check_ping(member, now, passed)
            else:
                self._follow_start(member)
        lost = [member for member in self.members if member.stage is Stage.LOST]
        self.members = [member for member in self.members if member.stage is not Stage.LOST]
        self._grow(now)
        if not self.members and self._resources.silent_for(now) > SILENT and not head_listens(self.ray):
            self.gone = "its head node does not answer any more"
        return lost

    def _check_ping(self, member: Member, now: float, passed: float) -> None:
        if member.ping is None:
            if now - member.last_ping >= PING_EVERY:
                member.ping, member.last_ping, member.silence = self._call(member, "ping", WATCH), now, 0.0
            return
        if self._is_there(member.ping):
            if self._get(member, member.ping, None) is not _LOST:
                member.ping = None
            return
        member.silence += passed
        if member.silence > SILENT:
            self.lose(member)

    def _follow_start(self, member: Member) -> None:
        if not self._is_there(member.reply):
            return
        reply = self._get(member, member.reply, None)
        if reply is _LOST:
            return
        if member.stage is Stage.INSPECTING:
            member.node, found = reply
            self._compare(member.node, found)
            member.stage = Stage.STARTING
            member.reply = member.handle.start.remote(self.blueprint, *self.examples)
        else:
            member.stage, member.reply = Stage.READY, None

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
        if sentence not in self.differences:
            self.differences.add(sentence)
            warnings.warn(f"cluster: {sentence}.", ArchipelWarning, stacklevel=2)

    def _grow(self, now: float) -> None:
        """Ask for actors where there is room; what cannot be placed at once waits at the cluster, not here."""
        free = self._resources.recent
        if free is None or any(member.stage is Stage.INSPECTING for member in self.members):
            return
        room = int(free.get("CPU", 0.0) / self.cluster.cpus)
        if self.cluster.gpus:
            room = min(room, int(free.get("GPU", 0.0) / self.cluster.gpus))
        self._resources.recent = None  # the next look shows what these have taken
        for _ in range(room):
            handle = self._actor.remote()
            self.members.append(Member(handle, handle.inspect.remote(), now))

    def pause(self, seconds: float) -> None:
        """Wait for the next look at the cluster."""
        self._resources.pause(seconds)

    def lose(self, member: Member) -> None:
        """Give a member up; a late answer of it is ignored."""
        member.stage = Stage.LOST
        with suppress(Exception):
            self.ray.kill(member.handle, no_restart=True)

    def close(self) -> None:
        """Stop all actors."""
        self._resources.close()
        for member in self.members:
            with suppress(Exception):
                self.ray.kill(member.handle, no_restart=True)
        self.members = []

    def _call(self, member: Member, method: str, group: str) -> Any:
        return getattr(member.handle, method).options(concurrency_group=group).remote()

    def _is_there(self, reference: Any) -> bool:
        return bool(self.ray.wait([reference], timeout=0, fetch_local=False)[0])

    def _get(self, member: Member, reference: Any, default: Any) -> Any:
        """Return an available value; lose the member if it died."""
        try:
            found = self.ray.get(reference, timeout=SILENT)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.GetTimeoutError):
            self.lose(member)
            return _LOST
        return default if found is None else found


_LOST = object()


class _Resources:
    """Looks at the cluster's free resources in a thread of its own: Ray's call does not return if its head is gone."""

    def __init__(self, ray: Any) -> None:
        self.recent: dict[str, float] | None = None
        """None until the next look."""
        self.began = self._seen = time.monotonic()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, args=(ray.available_resources,), daemon=True).start()

    def silent_for(self, now: float) -> float:
        """Return the seconds since Ray has answered."""
        return now - self._seen

    def pause(self, seconds: float) -> None:
        """Wait this long."""
        self._closed.wait(seconds)

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()

    def _watch(self, look: Callable[[], dict[str, float]]) -> None:
        while not self._closed.is_set():
            with suppress(Exception):  # a cluster that does not answer shows in `silent_for`
                self.recent = look()
                self._seen = time.monotonic()
            self._closed.wait(LOOK_EVERY)

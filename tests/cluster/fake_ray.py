"""Ray in one thread and without time: actors answer in an order that is drawn, when the driver waits for news.

Everything that travels is pickled on its way, so that a test sees what is sent, how large it is, and that nothing is
shared by accident.
"""

from __future__ import annotations

import random
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty
from typing import Any

import numpy as np
import pytest

from archipel.simulation.cluster import actor_pool, head, opening
from archipel.simulation.cluster.fingerprint import Fingerprint, fingerprint
from archipel.simulation.cluster.head import Head

real: Any = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
cloudpickle, exceptions = real.cloudpickle, real.exceptions
PLACED = Ellipsis
"""In the place of a reference among arguments."""


@dataclass(eq=False)
class FakeReference:
    """A value in the object store of a node, or one that is not there yet."""

    actor: FakeActor | None = None
    """Whose node has it; None: the driver's."""
    value: Any = None
    there: bool = False
    error: Exception | None = None
    waiting: list[Future[Any]] = field(default_factory=list)

    def future(self) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append(future)
        if self.there:
            self.deliver()
        return future

    def deliver(self) -> None:
        self.there = True
        if self.error is None and self.actor is not None and not self.actor.alive:
            self.error = exceptions.ObjectLostError("00", None, "")
        for future in self.waiting:
            if self.actor is not None and self.actor.stopped:
                continue  # for ever
            future.set_exception(self.error) if self.error else future.set_result(self.value)
        self.waiting.clear()


@dataclass(eq=False)
class FakeActor:
    """One actor, on a node of its own."""

    ray: FakeRay
    number: int
    thing: Any
    cores: float
    alive: bool = True
    stopped: bool = False
    """As by SIGSTOP: it does not answer, and nobody knows why."""
    calls: deque[tuple[str, bytes, list[FakeReference], list[FakeReference]]] = field(default_factory=deque)

    def __getattr__(self, name: str) -> FakeMethod:
        if name.startswith("_"):
            raise AttributeError(name)
        return FakeMethod(self, name)

    def serve(self) -> None:
        """Answer the first call."""
        name, packed, arguments, results = self.calls.popleft()
        if name == "inspect":
            answer: Any = f"machine {self.number}", self.number, self.ray.fingerprint
        else:
            given = [arguments.pop(0).value if one is PLACED else one for one in cloudpickle.loads(packed)]
            try:
                answer = getattr(self.thing, name)(*given)
            except Exception as error:
                for result in results:
                    result.error = exceptions.RayTaskError(name, traceback.format_exc(), error)
                    result.deliver()
                return
        parts = answer if len(results) > 1 else (answer,)
        for result, part in zip(results, parts, strict=True):
            result.value = read_only(part)
            result.deliver()

    def die(self, error: Exception | None = None) -> None:
        """End, as by SIGKILL: the results that only its node has are gone."""
        self.alive = False
        for _, _, _, results in self.calls:
            for result in results:
                result.error = error or exceptions.RayActorError()
                result.deliver()
        self.calls.clear()


@dataclass
class FakeMethod:
    actor: FakeActor
    name: str

    def remote(self, *given: Any) -> Any:
        references = [one for one in given if isinstance(one, FakeReference)]
        packed = cloudpickle.dumps([PLACED if isinstance(one, FakeReference) else one for one in given])
        self.actor.ray.sent.append((self.name, len(packed)))
        returns = getattr(getattr(self.actor.thing, self.name), "__ray_num_returns__", 1)
        results = [FakeReference(self.actor) for _ in range(returns)]
        if not self.actor.alive:
            for result in results:
                result.error = exceptions.RayActorError()
                result.deliver()
        elif self.name == "ping":
            if not self.actor.stopped:
                results[0].value = self.actor.thing.ping()
                results[0].there = True
        else:
            self.actor.calls.append((self.name, packed, references, results))
        return results[0] if returns == 1 else results


class FakeRay:
    """What Archipel uses of Ray's module."""

    cloudpickle = cloudpickle
    exceptions = exceptions

    def __init__(self, seed: int = 0, *, cores: float = 2, gpus: float = 0) -> None:
        self.random = random.Random(seed)
        self.cores, self.gpus = cores, gpus
        self.actors: list[FakeActor] = []
        self.puts: list[Any] = []
        self.sent: list[tuple[str, int]] = []
        """Methods that were called, and the bytes of their arguments without models."""
        self.now = 100.0
        self.head_answers = True
        self.fingerprint: Fingerprint = fingerprint()
        self.trouble: Callable[[FakeRay], None] = lambda ray: None
        """Called before every answer."""
        self.asked: dict[str, Any] = {}
        """The last actor's resources."""

    @property
    def alive(self) -> list[FakeActor]:
        return [actor for actor in self.actors if actor.alive]

    def put(self, value: Any) -> FakeReference:
        self.puts.append(value)
        kept = value if isinstance(value, (np.ndarray, np.generic)) else cloudpickle.loads(cloudpickle.dumps(value))
        return FakeReference(value=read_only(kept), there=True)

    def remote(self, **asked: Any) -> Callable[[type], Any]:
        self.asked = asked

        def decorate(kind: type) -> Any:
            return FakeKind(self, kind, asked["num_cpus"])

        return decorate

    def kill(self, handle: FakeActor, *, no_restart: bool = True) -> None:
        handle.die()

    def nodes(self) -> list[dict[str, Any]]:
        has = {"CPU": self.cores, "GPU": self.gpus, "memory": 1e9, "object_store_memory": 1e9}
        return [{"Alive": True, "NodeID": "0123456789", "NodeManagerHostname": "one", "Resources": has}]

    def available_resources(self) -> dict[str, float]:
        if not self.head_answers:
            raise ConnectionError("the head is gone")
        return {"CPU": self.cores - sum(actor.cores for actor in self.alive), "GPU": self.gpus}

    def step(self) -> bool:
        """Let one actor answer one call; return False if none can."""
        self.now += self.random.choice((0.0, 0.01, 0.3))
        self.trouble(self)
        able = [actor for actor in self.alive if actor.calls and not actor.stopped]
        if able:
            self.random.choice(able).serve()
        return bool(able)

    def monotonic(self) -> float:
        return self.now


@dataclass
class FakeKind:
    ray: FakeRay
    kind: type
    cores: float

    def remote(self) -> FakeActor:
        actor = FakeActor(self.ray, len(self.ray.actors), self.kind(), self.cores)
        self.ray.actors.append(actor)
        return actor


class FakeHead(Head):
    """Looks at the cluster whenever the pool asks, instead of in a thread."""

    def _watch(self) -> None:
        pass

    def close(self, handles: Sequence[Any], seconds: float) -> None:
        super().close(handles, seconds)
        self._stop_some()

    def lost(self, silent: float) -> bool:
        try:
            self.look()
        except ConnectionError:
            return super().lost(silent)
        return False


def read_only(value: Any) -> Any:
    """Return a copy of what an actor answers, whose arrays cannot be written to, as Ray hands them out."""
    if isinstance(value, np.ndarray):
        array = value.copy()
        array.flags.writeable = False
        return array
    if isinstance(value, list):
        return [read_only(item) for item in value]
    return cloudpickle.loads(cloudpickle.dumps(value))


def installed(monkeypatch: pytest.MonkeyPatch, ray: FakeRay) -> FakeRay:
    """Have simulations run on a fake cluster."""

    class News:
        """Lets actors answer until there is news; time passes where nobody can."""

        def __init__(self) -> None:
            self.items: deque[Any] = deque()
            self.put = self.items.append

        def get(self, timeout: float) -> Any:
            while not self.items and ray.step():
                pass
            if not self.items:
                ray.now += timeout
            return self.get_nowait()

        def get_nowait(self) -> Any:
            if not self.items:
                raise Empty
            return self.items.popleft()

    @contextmanager
    def connected(address: str) -> Iterator[FakeRay]:
        yield ray

    monkeypatch.setattr(opening, "connected", connected)
    monkeypatch.setattr(actor_pool, "Head", FakeHead)
    monkeypatch.setattr(actor_pool, "SimpleQueue", News)
    monkeypatch.setattr(actor_pool, "time", ray)
    monkeypatch.setattr(head, "time", ray)
    monkeypatch.setattr(head, "head_listens", lambda *_: ray.head_answers)
    return ray

"""Protocol: when to aggregate, and which model goes to whom.

After every event the controller asks its protocol for decisions until there are none. A protocol decides from the state
alone and never sees the event, so it cannot miss one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Literal, TypeAlias

from archipel.core.checks import at_least, more_than, one_of, share
from archipel.core.parts.part import Composition, Part
from archipel.core.state import Update, View
from archipel.core.types import Model


@dataclass(frozen=True, slots=True)
class Send:
    """Give this learner this model to train; `travels` keeps the result in its slot instead of offering it."""

    learner: str
    model: Model
    slot: int = 0
    travels: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer the models of a complete relay for commit."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Make these offered updates a new version."""

    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Count:
    """Count this many more local-training rounds."""

    rounds: int = 1


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop waiting for these tasks."""

    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Later:
    """Ask the protocol again after this many seconds."""

    after: float
    tag: str


Choose: TypeAlias = Callable[[Sequence[str], int, str], list[str]]
"""(candidates, count, the draw's name) -> the learners that the algorithm's selection picks, in order."""

Decision: TypeAlias = Send | Offer | Commit | Count | GiveUp | Later


VERSIONS_PER_TASK = 100


class Protocol(Part):
    @property
    def updates_per_commit(self) -> int | None:
        """How many updates a commit usually holds; None: as many as take part."""
        return None

    @property
    def commits_while_training(self) -> bool:
        """Whether versions are committed while tasks are out, so that a task can grow stale."""
        return False

    @property
    def versions_per_task(self) -> int:
        """Upper bound of the new versions during one learner's task: others may be faster, or chosen more often."""
        return VERSIONS_PER_TASK

    def versions(self, rounds: int, learners: int) -> int:
        """Return the most versions that this many local-training rounds of this many learners can make."""
        return rounds

    def decide(self, view: View, choose: Choose) -> list[Decision]:
        """Return the next decisions; an empty list: wait for the next event."""
        raise NotImplementedError

    def woke(self, view: View, tag: str) -> None:
        """Record that a `Later` is due."""

    def wasted(self, view: View) -> None:
        """Record a training task without a result: it failed, or its update was refused."""


def participants(fraction: float, minimum: int, learners: int) -> int:
    """Return m <- max(C K, 1) (RADFed Alg. 1, line 2), at least the minimum and at most everyone."""
    # 0.29 * 100 is 28.999999999999996
    return min(learners, max(int(fraction * learners + 1e-9), minimum))


@dataclass(slots=True)
class RoundsMemory:
    number: int = 0
    """Rounds that ended."""
    open: bool = False
    overdue: bool = False
    """Whether the deadline of the open round has passed."""
    wanted: int = 0
    """Number of updates at which the open round gives up its other tasks; 0: it waits for all."""


@dataclass(frozen=True)
class Rounds(Protocol):
    """Synchronous rounds: a share of the learners trains, the controller waits for all of them, then commits."""

    fraction: float = 1.0
    """Share C of the active learners in a round."""
    at_least: int = 1
    """Fewest learners of a round; with fewer it waits for more to join."""
    deadline: float | None = None
    """Seconds after which a round accepts no more updates; it still waits for opinions on those received."""
    extra: float = 0.0
    """Share of learners asked beyond those that a round needs; it uses the first answers and gives up the rest."""

    def __post_init__(self) -> None:
        share("Rounds", "fraction", self.fraction)
        at_least(0, "Rounds", extra=self.extra)
        at_least(1, "Rounds", at_least=self.at_least)
        if self.deadline is not None:
            more_than(0, "Rounds", deadline=self.deadline)

    @property
    def versions_per_task(self) -> int:
        everybody = self.fraction == 1 and self.deadline is None and not self.extra
        return 1 if everybody else VERSIONS_PER_TASK

    def asked(self, learners: int) -> int:
        """Return how many of so many learners a round asks."""
        return min(learners, math.ceil((1 + self.extra) * participants(self.fraction, self.at_least, learners) - 1e-9))

    def decide(self, view: View, choose: Choose) -> list[Decision]:
        memory = view.memory(RoundsMemory)
        if not memory.open:
            return self._open(view, memory, choose)
        if memory.overdue:
            memory.overdue = False
            return [GiveUp(tuple(sorted(view.out)))]
        if memory.wanted and len(view.queue) >= memory.wanted:
            surplus = tuple(sorted(task for task, assignment in view.out.items() if not assignment.cancelled))
            if surplus:
                return [GiveUp(surplus)]
        if view.out or not all(update.ready for update in view.queue):
            return []
        memory.open = False
        memory.number += 1
        return [Count(), Commit(tuple(update.task for update in view.queue))]

    def _open(self, view: View, memory: RoundsMemory, choose: Choose) -> list[Decision]:
        idle = view.idle()
        if len(idle) < self.at_least:
            return []
        count, asked = participants(self.fraction, self.at_least, len(idle)), self.asked(len(idle))
        memory.wanted = count if asked > count else 0
        chosen = choose(idle, asked, f"round {memory.number}")
        memory.open = True
        sends: list[Decision] = [Send(learner, view.start(learner)) for learner in sorted(chosen)]
        if sends and self.deadline is not None:
            sends.append(Later(self.deadline, f"round {memory.number}"))
        return sends

    def woke(self, view: View, tag: str) -> None:
        memory = view.memory(RoundsMemory)
        if memory.open and tag == f"round {memory.number}":
            memory.overdue = True


@dataclass(slots=True)
class StreamMemory:
    buffers: int = 0
    """Number of buffers committed."""
    timer: bool = False
    """Whether the open buffer's `max_wait` is running."""
    overdue: bool = False
    """Whether the open buffer's `max_wait` has passed."""
    reply: bool = False
    """Whether the last commit's contributors still have to get the new version."""
    ended: int = 0
    """Tasks of the open local-training round that ended, committed or wasted."""
    workers: int = 0
    """Concurrent learners when that round began; it has as many tasks."""


@dataclass(frozen=True)
class Stream(Protocol):
    """Asynchronous: learners come and go on their own; every `buffer` updates are a commit.

    Contributors wait for the commit, then only they get the new model (Fed2A section 3.2). A commit also happens
    after `max_wait` seconds, or when no task is open.
    """

    buffer: int = 1
    """Updates of a commit (K of Fed2A)."""
    max_wait: float | None = None
    """Seconds after which a buffer that is not full is committed."""
    concurrency: int | None = None
    """Most concurrent learners; None: all (Metis). Fewer limit the staleness (RADFed section IV.E)."""
    order: Literal["arrival", "ready"] = "arrival"
    """Commit updates in order of arrival (Metis), or as soon as their evidence is complete."""

    def __post_init__(self) -> None:
        at_least(1, "Stream", buffer=self.buffer)
        if self.max_wait is not None:
            more_than(0, "Stream", max_wait=self.max_wait)
        if self.concurrency is not None:
            at_least(1, "Stream", concurrency=self.concurrency)
        one_of("Stream", "order", self.order, ("arrival", "ready"))

    @property
    def updates_per_commit(self) -> int:
        return self.buffer

    @property
    def commits_while_training(self) -> bool:
        return True

    def versions(self, rounds: int, learners: int) -> int:
        return rounds * learners

    def decide(self, view: View, choose: Choose) -> list[Decision]:
        memory, active = view.memory(StreamMemory), len(view.active())
        limit = active if self.concurrency is None else min(self.concurrency, active)
        sends = self._sends(view, choose, limit)
        # send a contributor the version that its update made, even if the next commit is ready (Metis Alg. 1)
        reply, memory.reply = memory.reply, False
        if reply and sends:
            return sends
        due = self._due(view, memory, sends)
        rounds = self._rounds_done(memory, len(due), max(limit, 1))
        counted: list[Decision] = [Count(rounds)] if rounds else []
        if due:
            memory.buffers += 1
            memory.reply, memory.timer, memory.overdue = True, False, False
            return [*counted, Commit(tuple(update.task for update in due))]
        if self.max_wait is not None and view.queue and not memory.timer:
            memory.timer = True
            counted.append(Later(self.max_wait, f"buffer {memory.buffers}"))
        return [*counted, *sends]

    @staticmethod
    def _rounds_done(memory: StreamMemory, ended: int, workers: int) -> int:
        """Count the completed rounds: each has as many tasks as there were concurrent learners when it began."""
        memory.ended += ended
        memory.workers = memory.workers or workers
        rounds = 0
        while memory.ended >= memory.workers:
            memory.ended -= memory.workers
            memory.workers = workers
            rounds += 1
        return rounds

    def _sends(self, view: View, choose: Choose, limit: int) -> list[Decision]:
        free = limit - len(view.out)
        idle = view.idle() if free > 0 else []
        if not idle:
            return []
        chosen = choose(idle, free, f"task {view.state.next_task}")
        return [Send(learner, view.start(learner)) for learner in sorted(chosen[:free])]

    def _due(self, view: View, memory: StreamMemory, sends: Sequence[Decision]) -> list[Update]:
        """Return the updates to commit now."""
        ready = list(islice(self._ready(view.queue), self.buffer))
        if len(ready) == self.buffer:
            return ready
        nothing_to_wait_for = not view.out and not sends and all(update.ready for update in view.queue)
        return ready if memory.overdue or nothing_to_wait_for else []

    def _ready(self, queue: Iterable[Update]) -> Iterator[Update]:
        if self.order == "ready":
            return (update for update in queue if update.ready)
        return takewhile(lambda update: update.ready, queue)

    def wasted(self, view: View) -> None:
        view.memory(StreamMemory).ended += 1

    def woke(self, view: View, tag: str) -> None:
        memory = view.memory(StreamMemory)
        if tag == f"buffer {memory.buffers}":  # ignore timers of earlier buffers
            memory.overdue = True


@dataclass(slots=True)
class RelayMemory:
    slots: int = 0
    """Slots of the current relay; 0: there is none."""
    hop: int = 0
    """Hops it has made."""
    number: int = 0
    """Hops of all relays so far."""


@dataclass(frozen=True)
class Relay(Protocol):
    """RADFed: models travel through several learners before one aggregation (Alg. 1).

    There are as many slots as a share C of the learners; in each of `hops` rounds every slot's model goes to another
    learner. After a lost hop a slot keeps its last model; with too few learners, the slots with the most hops wait.
    """

    fraction: float = 0.1
    """Share C of the active learners: the number of slots."""
    hops: int = 15
    """Redistribution rounds S before an aggregation."""
    at_least: int = 1
    """Fewest slots."""

    def __post_init__(self) -> None:
        share("Relay", "fraction", self.fraction)
        at_least(1, "Relay", hops=self.hops)
        at_least(1, "Relay", at_least=self.at_least)

    def conflicts(self, algorithm: Composition) -> str | None:
        if not algorithm.merge.needs.single_models:
            return None
        merge, protocol = type(algorithm.merge).__name__, type(self).__name__
        return (
            f"{protocol} does not go with {merge}, which keeps each learner's own latest model: a {protocol} trains "
            "each model at several learners. Use Mean()."
        )

    def decide(self, view: View, choose: Choose) -> list[Decision]:
        memory = view.memory(RelayMemory)
        if view.out:
            return []
        if not memory.slots:
            idle = view.idle()
            if len(idle) < self.at_least:
                return []
            memory.slots = participants(self.fraction, self.at_least, len(idle))
            memory.hop = 0
        if memory.hop < self.hops:
            return self._hop(view, memory, choose)
        if view.state.travelling:
            return [Offer()]
        if not all(update.ready for update in view.queue):
            return []
        memory.slots = 0
        return [Count(self.hops), Commit(tuple(update.task for update in view.queue))]

    def _hop(self, view: View, memory: RelayMemory, choose: Choose) -> list[Decision]:
        chosen = choose(view.idle(), memory.slots, f"round {memory.number}")
        if not chosen:
            return []
        memory.hop += 1
        memory.number += 1
        travelling = view.state.travelling
        far = {slot: len(update.path) for slot, update in travelling.items()}
        slots = sorted(range(memory.slots), key=lambda slot: (far.get(slot, 0), slot))
        sends: list[Decision] = []
        for slot, learner in sorted(zip(slots, chosen, strict=False)):
            model = travelling[slot].model if slot in travelling else view.model
            sends.append(Send(learner, model, slot, travels=True))
        return sends

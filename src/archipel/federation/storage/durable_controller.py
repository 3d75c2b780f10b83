"""A controller that survives crashes: events are written to disk before it handles them, and replayed afterwards.

    take    events are written down; whoever sent one may now be told that it is safe
    handle  the controller is told of what was taken, and says what to do
            (the digests of new versions are on disk before anybody hears of them)
    open    the last snapshot, and the events behind it, bring a new process to where the old one was

Law: what `handle` gives follows from the events alone, in their order, so a crash between any two lines of this file
changes nothing that anybody was told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from archipel.core import members, records, state, types
from archipel.core.controller import Controller
from archipel.core.layout import Layout
from archipel.core.records import Record, Scores, Stamped
from archipel.core.state import State
from archipel.core.types import (
    AddUp,
    Cancel,
    Command,
    Evaluate,
    Evaluated,
    Event,
    Failed,
    Finish,
    Keep,
    Pooled,
    Progress,
    RolledBack,
    Stop,
    Summed,
    Train,
    Trained,
    Wake,
    Woke,
)
from archipel.federation.storage.blobs import Blobs, Buffer
from archipel.federation.storage.journal import Answer, Journal, Line
from archipel.federation.storage.stored_models import Delivery, StoredModels
from archipel.storage.dataclass_codec import Codec

LATE = "late: the task was closed before"
REFUSED = "refused: "
"""How the reason of an update begins that was refused before it reached the controller."""
REPLAY = 1 << 28
"""Numbers of updates since the last snapshot after which there is another, however few commits they made: telling them
again takes about a second."""

Make: TypeAlias = Callable[[StoredModels, State | None], Controller]
"""A controller as the study has it: at the beginning, or with a state that was saved."""
Moved: TypeAlias = dict[str, dict[str, int]]
"""Bytes put on the wire, by kind and layer."""
Verdict: TypeAlias = Literal["kept", "late", "refused", "another"]
"""What becomes of an answer; "another": the same answer came before with other contents."""


@dataclass(frozen=True, slots=True)
class IncomingEvent:
    """An event on its way into the durable."""

    event: Event
    answer: Answer | None = None
    """Whose answer it is; None for what the engine has to say itself."""
    delivery: Delivery | None = None
    """What came with it: its file is pinned until it is written down here."""
    body: Buffer = b""
    """A delivery that is small and not on disk yet: those of a batch go into one file."""
    moved: Moved = field(default_factory=dict)
    note: Note | None = None
    """For the audit, which also says what became of it: no update is acknowledged without its row."""


@dataclass(frozen=True, slots=True)
class Note:
    """A row for the audit."""

    who: str
    what: str
    detail: dict[str, object]


@dataclass(frozen=True, slots=True)
class Taken:
    verdict: Verdict
    reason: str = ""


@dataclass(slots=True)
class Out:
    """An open task."""

    command: Train | Evaluate | AddUp
    since: float
    finishing: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Alarm:
    due: float
    tag: str


CODEC = Codec(types, records, members, state, Delivery, Out, Alarm)


class ReplayDiffers(Exception):
    """A replay of the same events has led to another model."""


class CannotBeTold(Exception):
    """A part of the method fails at an event that is in the journal, and would fail at it again."""


class Replay:
    """The run as far as the controller was told of it."""

    def __init__(self, controller: Controller, models: StoredModels) -> None:
        self.controller = controller
        self.models = models
        self.out: dict[int, Out] = {}
        self.alarms: list[Alarm] = []
        self.moved: Moved = {}
        self.stopped: str | None = None

    def tell(self, line: Line) -> tuple[list[Command], list[Record]]:
        """Tell the controller of an event: what to do, and what to write down."""
        event: Event = CODEC.value(line.event)
        beside = CODEC.value(line.beside)
        self._receive(event, beside)
        try:
            commands = self.controller.handle(event)
        except OSError:  # the disk's, which is no fault of the event
            raise
        except Exception as error:
            sender = "" if line.answer is None else f" from {line.answer.learner}, to task {line.answer.task}"
            raise CannotBeTold(
                f"Event {line.number} of the journal ({type(event).__name__}{sender}) cannot be handled: "
                f"{type(error).__name__}: {error}. Nothing that was acknowledged is lost; mend the code that fails, "
                "and the same command continues from there."
            ) from error
        if self.models.fresh:
            self.models.file_older_ones()
        kept: list[Record] = []
        for command in commands:
            match command:
                case Train(task) | Evaluate(task) | AddUp(task):
                    self.out[task] = Out(command, line.time)
                case Finish(task) if task in self.out:
                    self.out[task].finishing = True
                case Cancel(task) if task in self.out:
                    self.out[task].cancelled = True
                case Wake(after, tag):
                    self.alarms.append(Alarm(line.time + after, tag))
                case Keep(record):
                    kept.append(record)
                case Stop(reason):
                    self.stopped = reason
        return commands, kept

    def _receive(self, event: Event, beside: dict[str, Any]) -> None:
        """Take up what came beside an event: models, and the bytes that were moved."""
        match event:
            case Trained(task, model):
                out = self.out.pop(task).command
                if model:
                    assert isinstance(out, Train)
                    self.models.adopt(model, out.model.name, beside["delivery"])
            case Summed(task, model):
                out = self.out.pop(task).command
                assert isinstance(out, AddUp)
                self.models.adopt(model, out.start, beside["delivery"])
            case RolledBack(_, model):
                self.models.adopt(model, self.controller.state.model.name, beside["delivery"])
            case Evaluated(task) | Pooled(task) | Failed(task):
                self.out.pop(task, None)
            case Woke(tag):
                self.alarms.remove(next(alarm for alarm in self.alarms if alarm.tag == tag))
        for kind, layers in beside["moved"].items():
            ledger = self.moved.setdefault(kind, {})
            for layer, amount in layers.items():
                ledger[layer] = ledger.get(layer, 0) + amount

    def save(self) -> dict[str, Any]:
        return {
            "state": self.controller.state,
            "models": self.models.save(),
            "out": self.out,
            "alarms": self.alarms,
            "moved": self.moved,
            "stopped": self.stopped,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """All but the state and the models, which the controller is made with."""
        self.out, self.alarms, self.moved = saved["out"], saved["alarms"], saved["moved"]
        self.stopped = saved["stopped"]


class DurableController:
    """The journal of a federation and the controller it is about. One thread at a time may use it."""

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        make: Make,
        *,
        snapshot_every: int = 100,
        keep_updates: bool = False,
        memories: Sequence[type] = (),
    ) -> None:
        """Open the durable in a folder, or begin one.

        snapshot_every: commits between two snapshots; keep_updates: never remove an event or an update's file, so
        that the whole run can be told again from its beginning; memories: dataclasses that the algorithm's
        parts may remember, which are in snapshots.
        """
        self._codec = CODEC.also(*memories)
        self.blobs = Blobs(folder / "blobs")
        self.journal = Journal(folder / "journal.sqlite")
        self.layout = layout
        self._every = snapshot_every
        self._keep_updates = keep_updates
        self._models = StoredModels(layout, self.blobs)
        self._waiting: list[Line] = []
        """Taken, and not handled yet."""
        self._closing: set[int] = set()
        """Tasks that those answer."""
        self._commits = 0
        self._numbers = 0
        self.number, self.time = self.journal.last()
        self.replay = self._open(make)

    @property
    def controller(self) -> Controller:
        return self.replay.controller

    @property
    def models(self) -> StoredModels:
        return self._models

    @property
    def out(self) -> dict[int, Out]:
        return self.replay.out

    # ---------------------------------------------------------------------------------------------- the three doors

    def take(self, entries: Sequence[IncomingEvent], notes: Sequence[Note], now: float) -> list[Taken]:
        """Write events down; when this returns, they are safe. What an answer's sender may be told, one for each."""
        self.time = max(self.time, now)
        pinned = [entry.delivery.blob for entry in entries if entry.delivery is not None and entry.delivery.blob]
        entries = self._packed(entries)
        number, waiting, closing = self.number, list(self._waiting), set(self._closing)
        try:
            with self.journal.write():
                taken = [self._take(entry) for entry in entries]
                for entry, told in zip(entries, taken, strict=True):
                    if (note := entry.note) is not None:
                        detail = {**note.detail, "verdict": told.verdict, "reason": told.reason}
                        self.journal.note(note.who, note.what, detail)
                for note in notes:
                    self.journal.note(note.who, note.what, note.detail)
        except BaseException:
            self.number, self._waiting, self._closing = number, waiting, closing
            raise
        for blob in pinned:
            self.blobs.unpin(blob)
        return taken

    def handle(self) -> list[Command]:
        """Tell the controller of what was taken; its commands, which may be carried out now."""
        lines, self._waiting = self._waiting, []
        self._closing.clear()
        commands = list(self._tell(lines))
        if self._commits >= self._every or self._numbers >= REPLAY:
            self.snapshot()
        return commands

    def snapshot(self) -> None:
        """Write to disk what a new process needs to continue from here."""
        assert not self._waiting, "what was taken is to be handled first"
        saved = self.replay.save()
        with self.journal.write():
            self.journal.snapshot(self.number, self._codec.text(saved))
            if not self._keep_updates:
                self.journal.compact(self.number)
            self.journal.pack(self.number)
        self._commits = self._numbers = 0
        if not self._keep_updates:
            needed = {run[2] for kept in saved["models"].values() for run in kept["runs"]}
            self.blobs.collect(needed)

    def records(self) -> Iterator[Stamped]:
        for time, text in self.journal.records():
            yield Stamped(time, CODEC.value(text))

    def last_scores(self) -> Scores | None:
        backwards = map(CODEC.value, self.journal.records_backwards())
        return next((record for record in backwards if isinstance(record, Scores)), None)

    def close(self) -> None:
        self.journal.close()

    # -------------------------------------------------------------------------------------------------- small things

    def _packed(self, entries: Sequence[IncomingEvent]) -> Sequence[IncomingEvent]:
        """Have the small bodies on disk, all in one file: bringing one to the disk takes as long as bringing many."""
        bodies = [entry.body for entry in entries if entry.body]
        if not bodies:
            return entries
        blob, place = self.blobs.put(bodies), 0
        packed = []
        for entry in entries:
            if entry.body and entry.delivery is not None:
                delivery = replace(entry.delivery, blob=blob, start=place + entry.delivery.start)
                place += len(entry.body)
                entry = replace(entry, delivery=delivery, body=b"")
            packed.append(entry)
        return packed

    def _take(self, entry: IncomingEvent) -> Taken:
        event, answer = entry.event, entry.answer
        # a task that is out has no answer yet: of most answers the journal need not be asked
        if answer is not None and (answer.task in self._closing or answer.task not in self.out):
            before = self.journal.answered(answer.learner, answer.task, answer.sequence)
            if before is not None:
                same = before.answer is not None and before.answer.print == answer.print
                return (
                    _told(CODEC.value(before.event)) if same else Taken("another", "conflicts with an earlier answer")
                )
        if isinstance(event, Trained | Evaluated | Pooled | Summed | Failed | Progress):
            out = None if event.task in self._closing else self.out.get(event.task)
            if out is None and answer is None:
                return Taken("late")  # the engine was overtaken: there is nothing to write
            if out is None:
                event = Failed(event.task, LATE)
            elif out.cancelled and answer is not None:
                event = Failed(event.task, "cancelled")
            if not isinstance(event, Progress):
                self._closing.add(event.task)
        self.number += 1
        delivery = entry.delivery if isinstance(event, Trained | Summed | RolledBack) else None
        beside = CODEC.text({"delivery": delivery, "moved": entry.moved})
        line = Line(self.number, self.time, CODEC.text(event), beside, answer)
        self.journal.append(line)
        self._waiting.append(line)
        return _told(event)

    def _tell(self, lines: Sequence[Line]) -> Iterator[Command]:
        follows: list[Command] = []
        kept: list[tuple[Line, list[Record]]] = []
        versions: list[tuple[str, int, str]] = []
        handed: list[tuple[int, str]] = []
        for line in lines:
            commands, noted = self.replay.tell(line)
            follows += commands
            handed += [(command.task, command.learner) for command in commands if isinstance(command, Train)]
            kept.append((line, noted))
            versions += [(name, line.number, digest) for name, digest in self._models.fresh.items()]
            self._models.fresh.clear()
            if line.answer is not None:
                self._numbers += self.layout.size
        self._commits += len(versions)
        if versions or handed or any(noted for _, noted in kept):
            with self.journal.write():
                for task, learner in handed:
                    self.journal.hand(task, learner)
                for name, number, digest in versions:
                    _compare(name, self.journal.commit(name, number, digest), digest)
                for line, noted in kept:
                    for place, record in enumerate(noted):
                        self.journal.record(line.number, place, line.time, CODEC.text(record))
        yield from follows

    def _open(self, make: Make) -> Replay:
        found = self.journal.last_snapshot()
        if found is None:
            self.replay = Replay(make(self._models, None), self._models)
            self._models.fresh.clear()
            self.snapshot()
            after = 0
        else:
            after, content = found
            saved = self._codec.value(content)
            self._models.load(saved["models"])
            self.replay = Replay(make(self._models, saved["state"]), self._models)
            self.replay.load(saved)
        for _ in self._tell([*self.journal.events(after)]):
            pass  # what has to be done is in `out` and `alarms`: the engine begins with that
        return self.replay


def replay(folder: Path, layout: Layout, make: Make) -> Replay:
    """Tell a controller that never was a whole journal, and compare every version with the one that was written."""
    journal = Journal(folder / "journal.sqlite")
    try:
        models = StoredModels(layout, Blobs(folder / "blobs"))
        replayed = Replay(make(models, None), models)
        models.fresh.clear()
        written = journal.commits()
        for expected, line in enumerate(journal.events(), 1):
            if line.number != expected:
                raise ReplayDiffers(
                    f"Event {expected} is not in the journal, the next one is {line.number}: at snapshots events are "
                    "removed. A run can be told again from its beginning if it was begun with "
                    "federation.keep_updates = true."
                )
            replayed.tell(line)
            for name, digest in models.fresh.items():
                # the last events may have been written and not told before the process ended
                _compare(name, written.pop(name, digest), digest)
            models.fresh.clear()
        if written:
            raise ReplayDiffers(
                f"The journal names the version {next(iter(written))}, and its events do not lead there: some are gone."
            )
        return replayed
    finally:
        journal.close()


def _told(event: Event) -> Taken:
    """Return what the sender of an answer is told."""
    if not isinstance(event, Failed):
        return Taken("kept")
    if event.reason.startswith(REFUSED):
        return Taken("refused", event.reason.removeprefix(REFUSED))
    return Taken("late", event.reason) if event.reason in (LATE, "cancelled") else Taken("kept")


def _compare(version: str, written: str, digest: str) -> None:
    if written != digest:
        raise ReplayDiffers(
            f"Version {version} has the digest {digest}, the journal says {written}. The same events gave another "
            "model: is this another version of Archipel, torch or the machine than the one that wrote the journal?"
        )

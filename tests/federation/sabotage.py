"""Controllers that break a law, so that the checker can be seen to find it: `sabotage.py CRIME controller …`.

acknowledge-first   the receipt leaves before the update is in the journal
payload-last        the receipt leaves before the update's file is on disk
apply-twice         the first update after a restart is told and taken in twice

The first two are committed in the first life, which then stands still until it is killed; later ones are honest.
"""

from __future__ import annotations

import copy
import hashlib
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from archipel.cli import main
from archipel.core.types import Trained
from archipel.federation.storage import blobs
from archipel.federation.storage.durable_controller import CODEC, DurableController, IncomingEvent, Note, Replay, Taken
from archipel.federation.storage.journal import Line


def in_the_first_life(commit: Callable[[], None]) -> None:
    """Have the crime begin when a journal without events is opened."""
    opened = DurableController._open

    def open_(self: DurableController, make: Any) -> Replay:
        if self.number == 0:
            commit()
        return opened(self, make)

    DurableController._open = open_  # type: ignore[method-assign]


def stand_still() -> None:
    threading.Event().wait()


def acknowledge_first() -> None:
    """`take` reports success without writing to the journal."""
    take, handle = DurableController.take, DurableController.handle
    acknowledged: list[IncomingEvent] = []

    def take_later(
        self: DurableController, entries: Sequence[IncomingEvent], notes: Sequence[Note], now: float
    ) -> list[Taken]:
        if not any(isinstance(entry.event, Trained) for entry in entries):
            return take(self, entries, notes, now)
        acknowledged.extend(entries)
        return [Taken("kept") for _ in entries]

    def handle_later(self: DurableController) -> Any:
        if acknowledged:
            stand_still()
        return handle(self)

    DurableController.take, DurableController.handle = take_later, handle_later  # type: ignore[method-assign]


def payload_last() -> None:
    """An update is journalled and acknowledged, and its file is never written."""
    finish, packed, tell = blobs.Parcel.finish, DurableController._packed, Replay.tell
    missing: set[str] = set()

    def finish_never(self: blobs.Parcel, name: str) -> None:
        if self.path.name.startswith("own."):
            finish(self, name)
            return
        self.discard()
        missing.add(name)

    def put_never(pieces: Sequence[blobs.Buffer]) -> str:
        name = hashlib.sha256(b"".join(pieces)).hexdigest()
        missing.add(name)
        return name

    def packed_never(self: DurableController, entries: Sequence[IncomingEvent]) -> Sequence[IncomingEvent]:
        self.blobs.put = put_never  # type: ignore[method-assign]
        try:
            return packed(self, entries)
        finally:
            del self.blobs.put

    def tell_never(self: Replay, line: Line) -> Any:
        if missing:
            stand_still()
        return tell(self, line)

    blobs.Parcel.finish, DurableController._packed, Replay.tell = finish_never, packed_never, tell_never  # type: ignore[method-assign]


def apply_twice() -> None:
    """A retry after the restart is not recognised: it is journalled, acknowledged and merged again."""
    take, tell, opened = DurableController._take, Replay.tell, DurableController._open
    again: set[int] = set()

    def open_(self: DurableController, make: Any) -> Replay:
        if self.number > 0:
            again.add(-1)
        return opened(self, make)

    def take_again(self: DurableController, entry: IncomingEvent) -> Taken:
        taken = take(self, entry)
        if -1 in again and isinstance(entry.event, Trained) and taken.verdict == "kept":
            again.clear()
            again.add(entry.event.task)
            before = self._waiting[-1]
            self.number += 1
            line = Line(self.number, self.time, before.event, before.beside)
            self.journal.append(line)
            self._waiting.append(line)
        return taken

    def tell_again(self: Replay, line: Line) -> Any:
        event = CODEC.value(line.event)
        mine = isinstance(event, Trained) and event.task in again and event.task in self.out
        if not mine:
            return tell(self, line)
        out, assignment = self.out[event.task], copy.deepcopy(self.controller.state.out[event.task])
        told = tell(self, line)
        again.discard(event.task)
        self.out[event.task], self.controller.state.out[event.task] = out, assignment
        return told

    DurableController._open, DurableController._take, Replay.tell = open_, take_again, tell_again  # type: ignore[method-assign]


CRIMES: dict[str, Callable[[], None]] = {
    "acknowledge-first": partial(in_the_first_life, acknowledge_first),
    "payload-last": partial(in_the_first_life, payload_last),
    "apply-twice": apply_twice,
}

if __name__ == "__main__":
    CRIMES[sys.argv.pop(1)]()
    main()

"""Controllers that break a law, so that the checker can be seen to find it: `sabotage.py CRIME controller …`.

acknowledge-first   the receipt leaves before the update is in the journal
payload-last        the receipt leaves before the update's file is on disk
apply-twice         the first update after a restart is told and taken in twice
"""

from __future__ import annotations

import copy
import hashlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from archipel.cli import main
from archipel.core.types import Trained
from archipel.federation.storage import blobs
from archipel.federation.storage.durable_controller import CODEC, Book, Course, Entry, Note, Taken
from archipel.federation.storage.journal import Line

GAP = 0.1
"""Seconds between the receipt and what should have come before it."""


def acknowledge_first() -> None:
    """`take` says that all is well and only remembers; the journal hears of it a little later, in `handle`."""
    take, handle = Book.take, Book.handle
    remembered: list[tuple[Sequence[Entry], Sequence[Note], float]] = []

    def take_later(self: Book, entries: Sequence[Entry], notes: Sequence[Note], now: float) -> list[Taken]:
        if not any(isinstance(entry.event, Trained) for entry in entries):
            return take(self, entries, notes, now)
        remembered.append((entries, notes, now))
        return [Taken("kept") for _ in entries]

    def handle_later(self: Book) -> Any:
        if remembered:
            time.sleep(GAP)
        for entries, notes, now in remembered:
            take(self, entries, notes, now)
        remembered.clear()
        return handle(self)

    Book.take, Book.handle = take_later, handle_later  # type: ignore[method-assign]


def payload_last() -> None:
    """An update's file comes to the disk only after the journal and the receipt."""
    finish, packed, tell = blobs.Parcel.finish, Book._packed, Course.tell
    waiting: set[str] = set()

    def later(self: blobs.Blobs, name: str, content: bytes) -> str:
        waiting.add(name)

        def write() -> None:
            time.sleep(GAP)
            self.path(name).write_bytes(content)
            waiting.discard(name)

        threading.Thread(target=write, daemon=True).start()
        return name

    def finish_later(self: blobs.Parcel, name: str) -> None:
        if self.path.name.startswith("own."):
            finish(self, name)
            return
        content = self.path.read_bytes()
        self.discard()
        later(self.blobs, name, content)

    def put_later(self: blobs.Blobs, pieces: Sequence[blobs.Buffer]) -> str:
        content = b"".join(pieces)
        return later(self, hashlib.sha256(content).hexdigest(), content)

    def packed_later(self: Book, entries: Sequence[Entry]) -> Sequence[Entry]:
        self.blobs.put = partial(put_later, self.blobs)  # type: ignore[method-assign]
        try:
            return packed(self, entries)
        finally:
            del self.blobs.put

    def tell_later(self: Course, line: Line) -> Any:
        """As a controller would that still has the update in memory."""
        while waiting:
            time.sleep(0.001)
        return tell(self, line)

    blobs.Parcel.finish, Book._packed, Course.tell = finish_later, packed_later, tell_later  # type: ignore[method-assign]


def apply_twice() -> None:
    """As if a retry after the restart had not been known for one: journalled, told and taken in again."""
    take, tell, opened = Book._take, Course.tell, Book._open
    again: set[int] = set()

    def open_(self: Book, make: Any) -> Course:
        if self.number > 0:
            again.add(-1)
        return opened(self, make)

    def take_again(self: Book, entry: Entry) -> Taken:
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

    def tell_again(self: Course, line: Line) -> Any:
        event = CODEC.value(line.event)
        mine = isinstance(event, Trained) and event.task in again and event.task in self.out
        if not mine:
            return tell(self, line)
        out, assignment = self.out[event.task], copy.deepcopy(self.controller.state.out[event.task])
        told = tell(self, line)
        again.discard(event.task)
        self.out[event.task], self.controller.state.out[event.task] = out, assignment
        return told

    Book._open, Book._take, Course.tell = open_, take_again, tell_again  # type: ignore[method-assign]


CRIMES: dict[str, Callable[[], None]] = {
    "acknowledge-first": acknowledge_first,
    "payload-last": payload_last,
    "apply-twice": apply_twice,
}

if __name__ == "__main__":
    CRIMES[sys.argv.pop(1)]()
    main()

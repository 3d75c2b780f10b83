"""A controller that breaks one of the laws, so that the checker can be seen to find it: `sabotage.py CRIME controller …`.

    acknowledge-first   the receipt leaves before the update is in the journal
    payload-last        the receipt leaves before the update's file is on disk
    apply-twice         the first update after a restart is told and taken in twice
"""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from archipel.cli import main
from archipel.durability import blobs
from archipel.durability.book import CODEC, Book, Course, Entry, Note, Taken
from archipel.durability.journal import Line
from archipel.types import Trained

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
    """An update's file gets its name on disk only after the journal and the receipt."""
    finish = blobs.Parcel.finish

    def finish_later(self: blobs.Parcel) -> str:
        if self.path.name.startswith("own."):
            return finish(self)
        digest, content = self.digest(), self.path.read_bytes()
        self.discard()
        waiting[digest] = content

        def write() -> None:
            time.sleep(GAP)
            self.blobs.path(digest).write_bytes(content)
            waiting.pop(digest, None)

        threading.Thread(target=write, daemon=True).start()
        return digest

    waiting: dict[str, bytes] = {}
    fill = Course.tell

    def tell(self: Course, line: Line) -> Any:
        """Wait for the file, as a controller with a cache of files in memory would not have to."""
        while waiting:
            time.sleep(0.001)
        return fill(self, line)

    blobs.Parcel.finish, Course.tell = finish_later, tell  # type: ignore[method-assign]


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

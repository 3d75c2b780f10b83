"""The journal: everything that happened, in order, in SQLite with WAL mode and synchronous FULL.

    events     what the controller was told, and by whom; written before it is told, removed behind a snapshot unless
               the run is to be replayed from its beginning
    tasks      who was given which training task
    commits    the digest of every version, checked when events are told again
    records    what the controller had written down
    snapshots  where events need not be told again from the beginning
    audit      who sent what and when, each row carrying the hash of the one before
    sums       messages of the secure sum that is out, removed when it is answered
    facts      what was settled once: the study, the statistics of features
    packed     older rows of tasks, records and audit, compressed many at a time

When `write` returns, what it was given survives the machine's sudden end.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from archipel.storage.packed_rows import TABLE, read_blocks, write_blocks

TABLES = f"""
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, time REAL NOT NULL, event TEXT NOT NULL, beside TEXT NOT NULL,
    learner TEXT, task INTEGER, sequence INTEGER, print TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS answers ON events (learner, task, sequence) WHERE learner IS NOT NULL;
CREATE TABLE IF NOT EXISTS tasks (task INTEGER PRIMARY KEY, learner TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS commits (version TEXT PRIMARY KEY, number INTEGER NOT NULL, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS records (
    number INTEGER, place INTEGER, time REAL NOT NULL, record TEXT NOT NULL, PRIMARY KEY (number, place)
    ) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS snapshots (number INTEGER PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS audit (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, detail TEXT NOT NULL,
    hash TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS sums (
    number INTEGER PRIMARY KEY, task INTEGER NOT NULL, learner TEXT NOT NULL, kind TEXT NOT NULL, content BLOB NOT NULL,
    blob TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
{TABLE}
"""

AT_ONCE = 64
"""Rows in one statement; SQLite takes 32,766 values, older ones 999."""
NOTHING = hashlib.sha256(b"").hexdigest()
"""The hash before the first row of the audit."""


@dataclass(frozen=True, slots=True)
class Line:
    """One event as it is written."""

    number: int
    time: float
    event: str
    beside: str
    """What the engine needs to tell it again."""
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Whose answer to which task an event is."""

    learner: str
    task: int
    sequence: int
    """The learner's own count of its answers."""
    print: str
    """Hash of all that was said: the same answer again has the same."""


@dataclass(frozen=True, slots=True)
class SumRow:
    """A message of a learner in a secure sum, or the end of a phase."""

    task: int
    learner: str
    kind: str
    content: bytes
    blob: str
    """File of masked numbers, where they are many."""


class AuditBroken(Exception):
    """The audit was changed after it was written."""


class Journal:
    def __init__(self, path: Path) -> None:
        # it may hold the controller's secret; SQLite gives its other files the same mode
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        # one thread at a time uses it, not always the same one
        self._base = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = FULL")
            self._base.executescript(TABLES)
            last = self._base.execute("SELECT hash FROM audit ORDER BY number DESC LIMIT 1").fetchone()
        except sqlite3.Error:  # a damaged file is not held open
            self._base.close()
            raise
        self._chain: str = last[0] if last else NOTHING
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        """By where they belong: what is to be inserted before anybody reads, or the transaction ends."""

    def close(self) -> None:
        self._base.close()

    @contextmanager
    def write(self) -> Iterator[None]:
        """All that is written inside is on the disk when this is left, or none of it."""
        link = self._chain
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._insert()
            self._base.execute("COMMIT")
        except BaseException:
            self._chain = link
            self._rows.clear()
            if self._base.in_transaction:  # where the disk is full, SQLite has gone back already
                self._base.execute("ROLLBACK")
            raise

    def _add(self, insert: str, *row: Any) -> None:
        self._rows.setdefault(insert, []).append(row)

    def _insert(self) -> None:
        """Many rows in one statement: at the end of each, this thread has to wait for Python's lock."""
        for insert, rows in self._rows.items():
            for first in range(0, len(rows), AT_ONCE):
                some = rows[first : first + AT_ONCE]
                row = f"({', '.join('?' * len(some[0]))})"
                self._base.execute(f"{insert} VALUES {', '.join([row] * len(some))}", list(chain(*some)))
        self._rows.clear()

    # -------------------------------------------------------------------------------------------------------- events

    def append(self, line: Line) -> None:
        answer = line.answer
        whose = (None,) * 4 if answer is None else (answer.learner, answer.task, answer.sequence, answer.print)
        self._add("INSERT INTO events", line.number, line.time, line.event, line.beside, *whose)

    def events(self, after: int = 0) -> Iterator[Line]:
        rows = self._base.execute("SELECT * FROM events WHERE number > ? ORDER BY number", (after,))
        yield from map(_line, rows)

    def last(self) -> tuple[int, float]:
        """Return the number and the time of the last event; (0, 0.0) if there is none."""
        found = self._base.execute("SELECT number, time FROM events ORDER BY number DESC LIMIT 1").fetchone()
        return (found[0], found[1]) if found else (0, 0.0)

    def answered(self, learner: str, task: int, sequence: int) -> Line | None:
        """Return what was written of this answer, if it came before."""
        self._insert()
        row = self._base.execute(
            "SELECT * FROM events WHERE learner = ? AND task = ? AND sequence = ?", (learner, task, sequence)
        ).fetchone()
        return None if row is None else _line(row)

    # ------------------------------------------------------------------------------------------- what follows from it

    def commit(self, version: str, number: int, digest: str) -> str:
        """Write a version's digest; the one that is written, which is another if the two do not agree."""
        self._base.execute("INSERT OR IGNORE INTO commits VALUES (?, ?, ?)", (version, number, digest))
        (written,) = self._base.execute("SELECT digest FROM commits WHERE version = ?", (version,)).fetchone()
        return str(written)

    def hand(self, task: int, learner: str) -> None:
        self._add("INSERT OR REPLACE INTO tasks", task, learner)

    def handed_to(self, task: int) -> str | None:
        """Who was given a training task, whenever that was."""
        found = self._base.execute("SELECT learner FROM tasks WHERE task = ?", (task,)).fetchone()
        if found is not None:
            return str(found[0])
        block = next(read_blocks(self._base, "tasks", task), None)  # tasks are numbered as they are handed out
        return None if block is None else dict(block.rows()).get(task)

    def commits(self) -> dict[str, str]:
        return dict(self._base.execute("SELECT version, digest FROM commits ORDER BY number"))

    def record(self, number: int, place: int, time: float, text: str) -> None:
        self._add("INSERT OR REPLACE INTO records", number, place, time, text)

    def records(self) -> Iterator[tuple[float, str]]:
        for block in read_blocks(self._base, "records"):
            for _, _, time, text in block.rows():
                yield time, text
        yield from self._base.execute("SELECT time, record FROM records ORDER BY number, place")

    def records_backwards(self) -> Iterator[str]:
        for (text,) in self._base.execute("SELECT record FROM records ORDER BY number DESC, place DESC"):
            yield text
        for block in read_blocks(self._base, "records", backwards=True):
            for _, _, _, text in reversed(block.rows()):
                yield text

    def snapshot(self, number: int, content: str) -> None:
        """Write one; those before it are not needed any more."""
        self._base.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", (number, content))
        self._base.execute("DELETE FROM snapshots WHERE number < ?", (number,))

    def compact(self, number: int) -> None:
        """Remove the events before this one; of each learner the last answer stays, since it may be given again."""
        self._base.execute(
            "DELETE FROM events WHERE number < ? AND number NOT IN "
            "(SELECT MAX(number) FROM events WHERE learner IS NOT NULL GROUP BY learner)",
            (number,),
        )

    def pack(self, number: int) -> None:
        """Compress what is older than this event, which has been handled: nobody writes those rows again.

        Of every table the last row stays: the next one's number and hash follow from it.
        """
        self._insert()
        before = "number < MIN(?, (SELECT MAX(number) FROM records))"
        self._pack("records", ("number", "place"), "time, record", before, number)
        self._pack("tasks", ("task",), "learner", "task < (SELECT MAX(task) FROM tasks)")
        self._pack("audit", ("number",), "at, who, what, detail, hash", "number < (SELECT MAX(number) FROM audit)")

    def _pack(self, kind: str, key: tuple[str, ...], columns: str, condition: str, *values: int) -> None:
        keys = ", ".join(key)
        query = f"SELECT {keys}, {columns} FROM {kind} WHERE {condition} ORDER BY {keys}"
        rows = self._base.execute(query, values).fetchall()
        # of a chain only each block's last link is written: the others follow from the rows
        hashes = [row[5] for row in rows] if kind == "audit" else []
        if written := write_blocks(self._base, kind, [row[:5] for row in rows], hashes):
            last = rows[written - 1][: len(key)]
            self._base.execute(f"DELETE FROM {kind} WHERE ({keys}) <= ({', '.join('?' * len(key))})", last)

    def last_snapshot(self) -> tuple[int, str] | None:
        found = self._base.execute("SELECT number, content FROM snapshots ORDER BY number DESC LIMIT 1").fetchone()
        return (found[0], found[1]) if found else None

    # ---------------------------------------------------------------------------------------------------- secure sums

    def keep_sum_rows(self, rows: Sequence[SumRow]) -> None:
        with self.write():
            for row in rows:
                values = (row.task, row.learner, row.kind, row.content, row.blob)
                self._add("INSERT INTO sums (task, learner, kind, content, blob)", *values)

    def sum_rows(self, task: int) -> list[SumRow]:
        query = "SELECT task, learner, kind, content, blob FROM sums WHERE task = ? ORDER BY number"
        return [SumRow(*row) for row in self._base.execute(query, (task,))]

    def sum_rows_of(self, kind: str) -> list[SumRow]:
        query = "SELECT task, learner, kind, content, blob FROM sums WHERE kind = ? ORDER BY number"
        return [SumRow(*row) for row in self._base.execute(query, (kind,))]

    def forget_sum(self, task: int) -> None:
        """Remove the rows of a sum and of all before it of its kind; sums of scores are numbered downwards."""
        with self.write():
            self._base.execute("PRAGMA secure_delete = ON")
            if task >= 0:
                self._base.execute("DELETE FROM sums WHERE task BETWEEN 0 AND ?", (task,))
            else:
                self._base.execute("DELETE FROM sums WHERE task BETWEEN ? AND -1", (task,))

    # --------------------------------------------------------------------------------------------------------- facts

    def fact(self, name: str) -> str | None:
        found = self._base.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(found[0]) if found else None

    def store_fact(self, name: str, value: str) -> None:
        self._base.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    # --------------------------------------------------------------------------------------------------------- audit

    def note(self, who: str, what: str, detail: dict[str, object]) -> None:
        """Add a row to the audit."""
        at, text = datetime.now(UTC).isoformat(timespec="milliseconds"), json.dumps(detail, sort_keys=True)
        self._chain = _link(self._chain, (at, who, what, text))
        self._add("INSERT INTO audit (at, who, what, detail, hash)", at, who, what, text, self._chain)

    def audit(self) -> Iterator[tuple[int, str, str, str, str, str]]:
        chain = NOTHING
        for block in read_blocks(self._base, "audit"):
            for number, *row in block.rows():
                chain = _link(chain, row)
                at, who, what, detail = row
                yield number, at, who, what, detail, block.hash if number == block.last else chain
            chain = block.hash
        yield from self._base.execute("SELECT number, at, who, what, detail, hash FROM audit ORDER BY number")

    def check_audit(self) -> int:
        """How many rows it has; raises if one was changed, taken out or put in between."""
        chain, count = NOTHING, 0
        for number, *row, written in self.audit():
            chain, count = _link(chain, row), count + 1
            if number != count or chain != written:
                raise AuditBroken(f"Row {number} of the audit is not as it was written, or one before it is missing.")
        return count


def _line(row: tuple[Any, ...]) -> Line:
    number, time, event, beside, learner, task, sequence, told = row
    return Line(number, time, event, beside, None if learner is None else Answer(learner, task, sequence, told))


def _link(before: str, row: Sequence[str] | Iterable[str]) -> str:
    return hashlib.sha256(json.dumps([before, *row]).encode()).hexdigest()

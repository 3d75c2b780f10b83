"""Follow a federation by its journal, an SQLite database that can be read while the controller writes.

The controller itself sends what is not in the journal, such as silent learners and expiring certificates.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from archipel.live.run_folder import RunStage
from archipel.live.timeline import Timeline
from archipel.storage.packed_rows import read_blocks

JOURNAL = "journal.sqlite"
AT_ONCE = 5000
"""Most records read by one poll."""
SHOWN = 50
"""Rows of the audit log that are shown."""
BLOCKS = 4
"""Packed blocks of the audit log that are searched for them."""


class FederationState:
    """The run of a federation, as far as its journal has been read; the only run of its page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = ""
        self.generation = 0
        self.title = folder.resolve().name
        self.about: dict[str, Any] = {"name": "federation", "seed": None, "settings": {}, "metric": ""}
        self.share: float | None = None
        self.stage: RunStage = "running"
        self.timeline = Timeline()
        self.runs = [self]
        self.federation: dict[str, Any] = {}
        """The controller's status, and the last rows of the audit log."""
        self._base: sqlite3.Connection | None = None
        self._place = (-1, -1)
        self._audited = 0

    def poll(self) -> bool:
        """Read new records; return whether more may be available immediately."""
        if self._base is None:
            if not (self.folder / JOURNAL).exists():
                return False
            address = f"{(self.folder / JOURNAL).resolve().as_uri()}?mode=ro"
            self._base = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
        self._base.execute("BEGIN")  # one snapshot: rows may be moved into packed blocks between reads
        try:
            rows, more = self._next_records()
            self._read_audit()
        finally:
            self._base.execute("COMMIT")
        for number, place, time, text in rows:
            kind, fields = json.loads(text)
            self.timeline.record(time, kind, {name: plain(value) for name, value in fields.items()})
            self._place = (number, place)
        self.timeline.flush()
        return more

    def tell(self, status: dict[str, Any]) -> None:
        """Store the controller's status."""
        self.federation |= status
        self.about |= {"name": status["name"], "metric": status["metric"] or ""}
        self.timeline.metric = self.about["metric"]
        self.title = status["title"]
        self.share = status["share"]
        self.stage = "finished" if status["stopped"] else "running"
        self.about["reason"] = status["stopped"]
        for one in status["learners"]:
            self.timeline.learner(one["name"], examples=one["examples"])
        self.timeline.time = max(self.timeline.time, status["seconds"])
        self.timeline.layers(status["seconds"], status["moved"])

    def _next_records(self) -> tuple[list[Any], bool]:
        """Return the records after the last one read, and whether there may be more."""
        assert self._base is not None
        for block in read_blocks(self._base, "records", self._place[0]):
            rows = [row for row in block.rows() if (row[0], row[1]) > self._place]
            if rows:
                return rows, True
        query = "SELECT number, place, time, record FROM records WHERE (number, place) > (?, ?) ORDER BY number, place "
        found = self._base.execute(f"{query} LIMIT {AT_ONCE}", self._place).fetchall()
        return found, len(found) == AT_ONCE

    def _read_audit(self) -> None:
        """Read the last rows of the audit log and, separately, the last refusals."""
        assert self._base is not None
        query = "SELECT number, at, who, what, detail FROM audit WHERE number > ? {} ORDER BY number DESC LIMIT ?"
        blocks = islice(read_blocks(self._base, "audit", self._audited + 1, backwards=True), BLOCKS)
        packed = [row for block in blocks for row in reversed(block.rows()) if row[0] > self._audited]
        for name, condition in (("log", ""), ("refusals", "AND what = 'refused'")):
            rows = self._base.execute(query.format(condition), (self._audited, SHOWN)).fetchall()
            older = [row for row in packed if name == "log" or row[3] == "refused"]
            self.federation[name] = [*map(list, rows), *older, *self.federation.get(name, [])][:SHOWN]
        self._audited = max((row[0] for row in self.federation["log"]), default=0)


def plain(value: Any) -> Any:
    """Convert a value of the journal, which stores collections as [kind, contents], to plain JSON."""
    if not isinstance(value, list):
        return value
    kind, content = value
    if kind == "dict":
        keys: Iterable[str] = content[0]
        return {key: plain(item) for key, item in zip(keys, content[1], strict=True)}
    return [plain(item) for item in content]

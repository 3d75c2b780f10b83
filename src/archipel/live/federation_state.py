"""Follow a federation by its journal, which SQLite lets others read while the controller writes.

What is not in the journal (who is silent, which certificates end soon) the controller itself tells, line by line.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from archipel.live.run_folder import RunStage
from archipel.live.timeline import Timeline

JOURNAL = "journal.sqlite"
AT_ONCE = 5000
"""Records that one look reads."""
SHOWN = 50
"""Rows of the audit that are shown."""


class FederationState:
    """The run of a federation, as far as its journal has been read. It is the only run of its page."""

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
        """The controller's own words, and the last rows of the audit."""
        self._base: sqlite3.Connection | None = None
        self._place = (-1, -1)
        self._audited = 0

    def poll(self) -> bool:
        """Read on; return whether there may be more at once."""
        if self._base is None:
            if not (self.folder / JOURNAL).exists():
                return False
            address = f"{(self.folder / JOURNAL).resolve().as_uri()}?mode=ro"
            self._base = sqlite3.connect(address, uri=True, check_same_thread=False)
        rows = self._base.execute(
            "SELECT number, place, time, record FROM records WHERE (number, place) > (?, ?) ORDER BY number, place "
            f"LIMIT {AT_ONCE}",
            self._place,
        ).fetchall()
        for number, place, time, text in rows:
            kind, fields = json.loads(text)
            self.timeline.record(time, kind, {name: plain(value) for name, value in fields.items()})
            self._place = (number, place)
        self._read_audit()
        self.timeline.flush()
        return len(rows) == AT_ONCE

    def tell(self, status: dict[str, Any]) -> None:
        """Take over what the controller says of itself."""
        self.federation |= status
        self.about |= {"name": status["name"], "metric": status["metric"] or ""}
        self.timeline.metric = self.about["metric"]
        self.title = status["title"]
        self.share = status["share"]
        self.stage = "finished" if status["stopped"] else "running"
        self.about["reason"] = status["stopped"]
        for one in status["learners"]:
            self.timeline.learner(one["name"], examples=one["examples"])
        moved = {one["name"]: one["movement"] for one in status["learners"] if one["movement"]}
        norms = {name: (one["norm"], one["medians"], one["clipped"]) for name, one in moved.items()}
        self.timeline.time = max(self.timeline.time, status["seconds"])
        self.timeline.norms(status["seconds"], norms)
        self.timeline.layers(status["seconds"], status["moved"])

    def _read_audit(self) -> None:
        """Keep the last rows of the audit, and the last refusals apart: many rows may follow them."""
        assert self._base is not None
        query = "SELECT number, at, who, what, detail FROM audit WHERE number > ? {} ORDER BY number DESC LIMIT ?"
        for name, condition in (("log", ""), ("refusals", "AND what = 'refused'")):
            rows = self._base.execute(query.format(condition), (self._audited, SHOWN)).fetchall()
            self.federation[name] = [*map(list, rows), *self.federation.get(name, [])][:SHOWN]
        self._audited = max((row[0] for row in self.federation["log"]), default=0)


def plain(value: Any) -> Any:
    """Return a value of the journal, where collections stand as [kind, contents], as JSON has it."""
    if not isinstance(value, list):
        return value
    kind, content = value
    if kind == "dict":
        keys: Iterable[str] = content[0]
        return {key: plain(item) for key, item in zip(keys, content[1], strict=True)}
    return [plain(item) for item in content]

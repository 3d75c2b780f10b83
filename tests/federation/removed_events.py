"""Events that a controller removes behind its snapshots, kept by a trigger for the checker, which replays them all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from archipel.federation.storage.journal import Journal

TRIGGER = """
CREATE TABLE removed AS SELECT * FROM events WHERE 0;
CREATE TRIGGER keep_removed BEFORE DELETE ON events BEGIN INSERT INTO removed SELECT * FROM events
    WHERE number = OLD.number; END;
CREATE VIEW all_events AS SELECT * FROM events UNION ALL SELECT * FROM removed;
"""
BACK = "DROP TRIGGER keep_removed; INSERT INTO events SELECT * FROM removed; DELETE FROM removed;"


def keep_removed_events(state: Path) -> None:
    """Create a journal that keeps removed events, in the same transaction."""
    state.mkdir(mode=0o700)
    Journal(state / "journal.sqlite").close()
    with closing(sqlite3.connect(state / "journal.sqlite")) as base:
        base.executescript(TRIGGER)


def put_events_back(state: Path) -> int:
    """Make the journal one from which nothing was removed; return how many events had been."""
    with closing(sqlite3.connect(state / "journal.sqlite")) as base:
        if not base.execute("SELECT 1 FROM sqlite_master WHERE name = 'keep_removed'").fetchone():
            return 0
        (removed,) = base.execute("SELECT COUNT(*) FROM removed").fetchone()
        base.executescript(BACK)
        return int(removed)

"""Old rows of a journal, as compressed blocks in a separate table.

A thousand similar rows take a tenth of the space when compressed together. A block holds at most `MOST` rows, so that
reading one row of it takes milliseconds.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

TABLE = """
CREATE TABLE IF NOT EXISTS packed (
    block INTEGER PRIMARY KEY, kind TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    hash TEXT NOT NULL, content BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS packed_rows ON packed (kind, last);
"""
FEWEST, MOST = 1024, 4096
"""Rows in a block: fewer than these wait for others."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows by the number in their first column, which rises or stays."""

    first: int
    last: int
    hash: str
    """The hash that the last row had, of a kind whose rows are chained."""
    content: bytes

    def rows(self) -> list[list[Any]]:
        try:
            rows: list[list[Any]] = json.loads(zlib.decompress(self.content))
        except (zlib.error, ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"The journal's rows {self.first} to {self.last} are damaged: {error}") from None
        return rows


def write_blocks(base: sqlite3.Connection, kind: str, rows: Sequence[Sequence[Any]], hashes: Sequence[str] = ()) -> int:
    """Write rows as blocks, if there are enough; return how many rows were written."""
    written = 0
    while len(rows) - written >= FEWEST:
        some = rows[written : written + MOST]
        written += len(some)
        link = hashes[written - 1] if hashes else ""
        content = zlib.compress(json.dumps(some, separators=(",", ":")).encode())
        insert = "INSERT INTO packed (kind, first, last, hash, content) VALUES (?, ?, ?, ?, ?)"
        base.execute(insert, (kind, some[0][0], some[-1][0], link, content))
    return written


def read_blocks(base: sqlite3.Connection, kind: str, since: int = -1, *, backwards: bool = False) -> Iterator[Block]:
    """Yield the blocks of a kind that reach to a row's number or beyond."""
    order = "DESC" if backwards else "ASC"
    query = f"SELECT first, last, hash, content FROM packed WHERE kind = ? AND last >= ? ORDER BY block {order}"
    for row in base.execute(query, (kind, since)):
        yield Block(*row)

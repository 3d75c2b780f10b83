"""Tables as CSV files that a spreadsheet opens without running what is in them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins so is a formula to a spreadsheet."""


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table; text that a spreadsheet would take for a formula gets an apostrophe before it."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([_as_text(cell) for cell in header])
        writer.writerows([_as_text(cell) for cell in row] for row in rows)


def _as_text(cell: object) -> object:
    """Return a cell that is a formula to no spreadsheet, and does not end its row."""
    if not isinstance(cell, str):
        return cell
    formula = cell.startswith(FORMULA) and not _is_number(cell)
    return ("'" if formula else "") + cell.replace("\r", " ")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

"""Measure real time, of one call or of all work in a folder, interruptions left out."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from archipel.storage.atomic_files import write_text

FILE = "seconds.json"


@contextlib.contextmanager
def timed(folder: Path) -> Iterator[None]:
    """Add the time in this context to the folder's total, also after an exception."""
    began = time.monotonic()
    try:
        yield
    finally:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FILE, json.dumps(seconds_spent(folder) + time.monotonic() - began) + "\n")


def seconds_spent(folder: Path) -> float:
    """Return the real seconds of all work in a folder so far."""
    path = folder / FILE
    return float(json.loads(path.read_text())) if path.exists() else 0.0


def seconds_of(work: Callable[[], object]) -> float:
    """Return the real seconds of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

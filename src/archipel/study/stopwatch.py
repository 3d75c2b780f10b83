"""How long work took: one call, or all in a folder over the times that it was begun, stopped and taken up again."""

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
    """What is done meanwhile counts, also if it is broken off."""
    began = time.monotonic()
    try:
        yield
    finally:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FILE, json.dumps(seconds_spent(folder) + time.monotonic() - began) + "\n")


def seconds_spent(folder: Path) -> float:
    """Real seconds so far."""
    path = folder / FILE
    return float(json.loads(path.read_text())) if path.exists() else 0.0


def seconds_of(work: Callable[[], object]) -> float:
    """Real seconds of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

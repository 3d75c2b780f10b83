"""Tell a state file that was restored from a backup from the one that this machine wrote last.

The change time of a file cannot be set: a copy has the time at which it was made. A snapshot of a whole disk keeps it,
but is put back with a restart of the machine. Not noticed are a copy that is put back within `LONGEST` seconds, and a
machine that is put back with its memory.
"""

from __future__ import annotations

import time
from pathlib import Path

LONGEST = 120.0
"""Seconds that writing a file may take."""
BOOT = Path("/proc/sys/kernel/random/boot_id")


def mark() -> str:
    """Return what to write into a file, to recognise it by."""
    return f"{time.time():.3f} {_boot()}"


def is_restored(path: Path, marked: str) -> bool:
    """Return whether a file with this mark is a copy, or was written before the machine was started."""
    written, _, boot = marked.partition(" ")
    return not written or boot != _boot() or abs(path.stat().st_ctime - float(written)) > LONGEST


def _boot() -> str:
    """Return what names the time since the machine was started; empty where the system does not say."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""

"""What the figures were measured on: facts without a name or a path."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path


def facts() -> dict[str, object]:
    """Cores, CPU, memory and the versions on the measuring side."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _first("/proc/cpuinfo", "model name"),
        "cache": _first("/proc/cpuinfo", "cache size"),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("archipel", "torch", "numpy")},
    }


def load() -> float:
    """Processes that wanted a core in the last minute: with more than were started here, others were at work."""
    return round(os.getloadavg()[0], 2)


def _first(path: str, field: str) -> str:
    lines = Path(path).read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field)), "unknown")

"""Describe a failed allocation: the requested and the available memory."""

from __future__ import annotations

from pathlib import Path

import torch

SIGNS = ("out of memory", "can't allocate memory", "not enough memory")
"""In the messages of torch's allocators, which raise RuntimeError on a CPU."""


def out_of_memory(error: Exception) -> str:
    """Return what was asked for and what this machine has; empty if the error is another one."""
    text = str(error)
    if not (isinstance(error, MemoryError) or any(sign in text.lower() for sign in SIGNS)):
        return ""
    asked = " ".join(text.split()).rstrip(".") or "an allocation failed"
    return f"{asked}. This machine has {_has()}."


def _has() -> str:
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return f"{free / 2**20:,.0f} MB free of {total / 2**20:,.0f} MB on the GPU"
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available, whole = (int(lines[name].split()[0]) // 2**10 for name in ("MemAvailable", "MemTotal"))
    return f"{available:,} MB free of {whole:,} MB"

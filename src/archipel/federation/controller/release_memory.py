"""Return unused memory of a controller to the system.

Measured with 1,000 learners (`benchmarks.federation.throughput`): the peak is 383 MB of 400 allowed, and would be about
470 MB with the code pages of the start, and 17 MB more at the end with the holes that closed connections leave.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import sys
from pathlib import Path

GLIBC = sys.platform == "linux" and "glibc" in platform.libc_ver()
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Constants of glibc's mallopt."""
APART = (1 << 20) + (1 << 14)
"""Bytes above which memory is mapped separately. Pieces of models are just below: for each mapping the system would
have to clear new pages."""

MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")
CODE = re.compile(r" r-xp .* /")
"""Of /proc/self/smaps: the lines that begin a mapping, and those among them of a file's code."""


def limit_heap() -> None:
    """Have freed memory returned to the system at once.

    A thousand connections leave holes in the heap that add up to as much as they use.
    """
    if GLIBC:
        library = ctypes.CDLL(None)
        for setting, value in ((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, APART), (M_TRIM_THRESHOLD, 1 << 22)):
            library.mallopt(setting, value)


def trim_heap() -> None:
    """Return the free pages between those in use."""
    if GLIBC:
        ctypes.CDLL(None).malloc_trim(0)


def release_startup_code() -> None:
    """Return the pages of code that only the start needed, most of it torch's; a page that is used again is reloaded.

    Only mappings whose pages all equal their file are released: a changed page would be lost.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    begin = end = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := MAPPING.match(line):
            begin, end = (int(place, 16) for place in found.groups()) if CODE.search(line) else (0, 0)
        elif begin and line.startswith("Anonymous:") and line.split()[1] == "0":
            library.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)

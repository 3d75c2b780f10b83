"""What a controller does not need goes back to the system: the code of its start, and memory that was freed."""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import sys
from pathlib import Path

GLIBC = sys.platform == "linux" and "glibc" in platform.libc_ver()
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""What glibc's mallopt calls them."""
APART = (1 << 20) + (1 << 14)
"""Bytes from which on memory comes from the system itself. Pieces of models are just below: for each, the system would
have to clear as many new pages."""

MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")
CODE = re.compile(r" r-xp .* /")
"""Of Linux' smaps: the lines that begin a new place in memory, and those among them where a file's code is."""


def give_memory_back() -> None:
    """Have freed memory go back to the system at once: a thousand connections leave holes in it that add up to as much
    as they use."""
    if GLIBC:
        library = ctypes.CDLL(None)
        for setting, value in ((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, APART), (M_TRIM_THRESHOLD, 1 << 22)):
            library.mallopt(setting, value)


def forget_holes() -> None:
    """Give back the pages between what is in use."""
    if GLIBC:
        ctypes.CDLL(None).malloc_trim(0)


def forget_the_start() -> None:
    """Give back the code that was run to start, most of it torch's: what is called again comes back from its file.

    Only code of which every page is as in its file; a page that was changed would be lost.
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

"""A text that grows on disk: any number of readers take what they miss, whenever they like.

So a reader that is slow, or gone, costs the writer nothing, and the text costs no memory.
"""

from __future__ import annotations

import os
import tempfile

AT_ONCE = 1 << 22
"""Most bytes that one reading returns."""


class GrowingText:
    """Lines in an unnamed file. One thread appends; others read what is complete."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="archipel-live-")  # noqa: SIM115 (open as long as this object)
        self.size = 0
        """Bytes that can be read."""
        self._waiting: list[str] = []

    def append(self, line: str) -> None:
        """Append a line; it can be read after `flush`."""
        self._waiting.append(line)

    def flush(self) -> None:
        """Make the lines that were appended readable."""
        if self._waiting:
            data = ("\n".join(self._waiting) + "\n").encode()
            self._waiting.clear()
            os.pwrite(self._file.fileno(), data, self.size)
            self.size += len(data)

    def read(self, start: int) -> bytes:
        """Return the next bytes, up to a limit."""
        return os.pread(self._file.fileno(), max(0, min(self.size - start, AT_ONCE)), start)

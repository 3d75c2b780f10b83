"""An append-only text on disk, which any number of readers read at their own pace.

Slow or vanished readers cost the writer nothing, and the text takes no memory.
"""

from __future__ import annotations

import os
import tempfile

AT_ONCE = 1 << 22
"""Most bytes returned by one read."""


class GrowingText:
    """Lines in an unnamed file. One thread appends; others read the flushed part."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="archipel-live-")  # noqa: SIM115 (open as long as this object)
        self.size = 0
        """Number of bytes that can be read."""
        self._waiting: list[str] = []

    def append(self, line: str) -> None:
        """Append a line; it can be read after `flush`."""
        self._waiting.append(line)

    def flush(self) -> None:
        """Make the appended lines readable."""
        if self._waiting:
            data = ("\n".join(self._waiting) + "\n").encode()
            self._waiting.clear()
            os.pwrite(self._file.fileno(), data, self.size)
            self.size += len(data)

    def read(self, start: int) -> bytes:
        """Return the bytes from `start`, up to a limit."""
        return os.pread(self._file.fileno(), max(0, min(self.size - start, AT_ONCE)), start)

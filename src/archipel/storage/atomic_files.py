"""Write files so that a crash leaves the old one or the new one, never half of one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file atomically: to a temporary name, fsync, then rename. It never has more permissions than mode."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.unlink(missing_ok=True)  # what a crash has left has the mode that it has
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file of these lines atomically, without all of them in memory."""
    unfinished = path.with_name(path.name + ".unfinished")
    with open(unfinished, "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def fsync_directory(folder: Path) -> None:
    """Fsync a directory, so that the names in it survive a crash."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

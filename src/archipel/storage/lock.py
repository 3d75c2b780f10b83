"""Lock a folder for one process, and restrict who may read it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder; raise at once if another process has the lock. It is released when the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{folder} is in use by another process. Wait for it, or give another folder.") from None
        yield


def closed(folder: Path) -> Path:
    """Restrict a folder, and all files that this process writes from now on, to their owner."""
    os.umask(0o077)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):  # owned by another user, such as the root of a container's volume
        folder.chmod(0o700)
    return folder

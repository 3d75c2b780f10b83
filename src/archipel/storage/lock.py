"""One process at a time in a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder, or refuse at once if another process does; the lock goes with the process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{folder} is at work in another process. Wait for it, or give another folder.") from None
        yield


def closed(folder: Path) -> Path:
    """Let nobody but the owner read this folder, nor what this process writes from now on."""
    os.umask(0o077)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):  # somebody else's, as the root of a container's volume
        folder.chmod(0o700)
    return folder

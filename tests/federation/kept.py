"""The controller's own process, which the command's process keeps."""

from __future__ import annotations

import contextlib
from pathlib import Path


def controllers_of(keeper: int) -> list[int]:
    """Ids of the controllers that a keeper has started and not yet reaped: one, or none while starting."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        return [int(one) for one in children if Path(f"/proc/{one}/comm").read_text() == "archipel\n"]
    return []

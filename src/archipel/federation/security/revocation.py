"""Serial numbers of certificates that count no longer, in a file that is read again whenever it changes.

One serial number a line, in hexadecimal as `archipel ca list` shows it; what follows a # is for people. A list that was
read stays in force if its file vanishes or is damaged: nobody is let in by losing it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path

REVOKED = "revoked.txt"
"""The list's name in the folders of an authority and of a controller's state."""
SERIAL = re.compile(r"[0-9a-f]{1,40}")

log = logging.getLogger("archipel.federation")


def read_serials(path: Path) -> frozenset[str]:
    found = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        serial = line.partition("#")[0].strip().lower().replace(":", "")
        if serial:
            if SERIAL.fullmatch(serial) is None:
                raise ValueError(
                    f"{path}, line {number}: {serial[:50]!r} is no serial number. There should be one a line, in "
                    f"hexadecimal, as `archipel ca list` shows it."
                )
            found.add(serial.lstrip("0") or "0")
    return frozenset(found)


def written_serials(names: Mapping[str, str], serials: Collection[str]) -> bytes:
    """Return the file's content; names: whose certificates they are."""
    return "".join(f"{serial}  # {names.get(serial, '')}\n" for serial in sorted(serials)).encode()


class RevocationList:
    """The list that a running controller goes by."""

    def __init__(self, path: Path | None = None) -> None:
        """Without a file nothing is revoked; a file that is not there yet is waited for."""
        self._path = path
        self._seen = self._state()
        self._serials = read_serials(path) if path is not None and self._seen is not None else frozenset[str]()

    def __contains__(self, serial: str) -> bool:
        return serial in self._serials

    def refresh(self) -> bool:
        """Read the file again if it has changed; return whether what is revoked has changed."""
        if self._path is None or (state := self._state()) == self._seen:
            return False
        self._seen = state
        try:
            serials = read_serials(self._path)
        except (OSError, ValueError) as error:
            log.error("the revocation list cannot be read; the last one stays in force", extra={"reason": str(error)})
            return False
        changed, self._serials = serials != self._serials, serials
        log.info("the revocation list was read", extra={"revoked": len(serials)})
        return changed

    def _state(self) -> tuple[int, int, int] | None:
        """Return what changes with the file; None if it is not there."""
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

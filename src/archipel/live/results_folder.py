"""Follow a folder of results: a study with all its runs, or a single run."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archipel.live.run_folder import DESCRIPTION, LIVE, RunFolder

RUNS, STUDY = "runs.json", "study.toml"
SCAN = 1.0
"""Seconds between scans for new runs."""


class ResultsFolder:
    """The runs below a folder, in the order of the study."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: list[RunFolder] = []
        self.federation: dict[str, Any] | None = None
        """None: this is not a federation."""
        self._scanned = -SCAN

    @property
    def title(self) -> str:
        """The study's title, or the folder's name."""
        path = self.folder / STUDY
        name = self.folder.resolve().name
        return str(tomllib.loads(path.read_text(encoding="utf-8")).get("title", name)) if path.exists() else name

    def poll(self) -> bool:
        """Read new data of all runs; return whether more may be available immediately."""
        if time.monotonic() - self._scanned >= SCAN:
            self._scan()
            self._scanned = time.monotonic()
        more = [run.poll() for run in self.runs]
        return any(more)

    def _scan(self) -> None:
        known = {run.place for run in self.runs}
        self.runs += [RunFolder(self.folder / place, place) for place in self._places() if place not in known]

    def _places(self) -> Sequence[str]:
        """Return the study's runs in its order, then other runs in the folder, such as tuning."""
        planned: list[str] = []
        if (self.folder / RUNS).exists():
            planned = json.loads((self.folder / RUNS).read_text())
        found = {
            str(path.parent.relative_to(self.folder))
            for name in (DESCRIPTION, LIVE)
            for path in self.folder.rglob(name)
        }
        return list(dict.fromkeys([*planned, *sorted(found)]))

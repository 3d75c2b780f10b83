"""Follow a run on disk: its records while it runs (live.jsonl) and when finished (records.jsonl, run.json)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, BinaryIO, Literal

from archipel.live.timeline import Timeline

LIVE, RECORDS, DESCRIPTION, ERROR = "live.jsonl", "records.jsonl", "run.json", "error.txt"
AT_ONCE = 1 << 21
"""Most bytes read by one poll, so that many runs progress together."""
QUIET = 30.0
"""Seconds without a new line before an unfinished run counts as stopped."""

RunStage = Literal["waiting", "running", "stopped", "failed", "finished"]


class RunFolder:
    """The run in a folder, as far as it has been read."""

    def __init__(self, folder: Path, place: str) -> None:
        self.folder = folder
        self.place = place
        """Its path in the study's folder."""
        self.about: dict[str, Any] = {}
        """Name, seed, settings, metric, and why it ended."""
        self.share: float | None = None
        """The share of its budget that is used."""
        self.stage: RunStage = "waiting"
        self.generation = 0
        """Incremented when the run is read again from its beginning."""
        self._begin()

    def _begin(self) -> None:
        self.timeline = Timeline()
        self._file: BinaryIO | None = None
        self._rest = b""
        self._whole = False
        """Whether everything was read."""

    def poll(self) -> bool:
        """Read new records; return whether more may be available immediately."""
        if self._whole:
            return False
        finished = (self.folder / DESCRIPTION).exists()  # checked before reading, so that the read is then complete
        if self._file is None:
            self._open(finished)
        read = self._file.read(AT_ONCE) if self._file is not None else b""
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            self._line(json.loads(line))
        if finished and not read:
            self._finish()
        elif not read and self._resumed():
            self.generation += 1
            self._begin()
        self.timeline.flush()
        self.stage = self._stage()
        return bool(read)

    def _open(self, finished: bool) -> None:
        """Open the file of a running run, if any; it stays readable when the run removes it."""
        path = self.folder / (RECORDS if finished else LIVE)
        if finished:
            self._describe(json.loads((self.folder / DESCRIPTION).read_text()))
        if path.exists():
            self._file = path.open("rb")

    def _resumed(self) -> bool:
        """Return whether the run was resumed and so writes a new file from its first record on."""
        path = self.folder / LIVE
        return (
            self._file is not None
            and path.exists()
            and not os.path.samestat(path.stat(), os.fstat(self._file.fileno()))
        )

    def _line(self, line: dict[str, Any]) -> None:
        if "record" in line:
            self.timeline.record(line["time"], line["record"], line)
        elif "about" in line:
            self._describe(line["about"])
        else:
            progress = line["progress"]
            self.share = progress["share"]
            self.timeline.layers(progress["time"], progress["layers"])

    def _describe(self, about: dict[str, Any]) -> None:
        """Store the run's description."""
        wanted = ("name", "seed", "fold", "settings", "tuned", "metric", "algorithm")
        self.about = {name: about.get(name) for name in wanted}
        self.timeline.metric = about["metric"]
        for one in about["participants"]:
            self.timeline.learner(one["name"], one["group"], one["role"], one["examples"])

    def _finish(self) -> None:
        about = json.loads((self.folder / DESCRIPTION).read_text())
        self.timeline.layers(about["seconds"], about["bytes_by_layer"])
        self.timeline.time = max(self.timeline.time, about["seconds"])
        self.about |= {name: about.get(name) for name in ("reason", "seconds", "final_score", "fingerprint")}
        self.share, self._whole = 1.0, True
        if self._file is not None:
            self._file.close()

    def _stage(self) -> RunStage:
        if self._whole:
            return "finished"
        if (self.folder / ERROR).exists():
            return "failed"
        if self._file is None:
            return "waiting"
        try:
            age = time.time() - (self.folder / LIVE).stat().st_mtime
        except FileNotFoundError:  # the run has just finished
            return "running"
        return "running" if age < QUIET else "stopped"

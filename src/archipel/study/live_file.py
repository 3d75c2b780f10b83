"""A run's records in a file that grows while it runs, for the live page: live.jsonl in the run's folder.

    {"about": ...}      the run: name, seed, metric, learners
    {"time": ..., "record": ...}     a record, as in records.jsonl
    {"progress": ...}   how far it is: share of the budget, bytes by layer

The run writes and never reads or waits, so its bits are the same with and without the file.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from archipel.core.records import Stamped
from archipel.live.run_folder import LIVE
from archipel.runs.record_lines import record_line
from archipel.runs.run import Run
from archipel.simulation.simulate import participants
from archipel.simulation.simulator import Simulator


class LiveFile:
    """A tracker that writes the file; it is removed when the run is finished, as records.jsonl has everything then."""

    def __init__(self, simulator: Simulator, about: Mapping[str, object]) -> None:
        """Take the run, and what the study adds: settings, tuned settings, fold."""
        self._simulator = simulator
        controller = simulator.controller
        self._about = {
            "name": controller.algorithm.name,
            "algorithm": repr(controller.algorithm),
            "seed": controller.state.seed,
            "metric": controller.evaluation.metric if controller.evaluation else "",
            "participants": [dataclasses.asdict(one) for one in participants(simulator.sites)],
            **about,
        }

    def begin(self, name: str, settings: Mapping[str, object], folder: Path) -> None:
        """Begin a new file, also on resume: readers notice that the file was replaced."""
        self._path = folder / LIVE
        self._path.unlink(missing_ok=True)
        self._file = self._path.open("w", encoding="utf-8")
        self._write({"about": self._about})

    def record(self, stamped: Stamped) -> None:
        """Write a record."""
        self._file.write(record_line(stamped) + "\n")

    def look(self, share: float) -> None:
        """Write the progress, and flush, so that readers see everything so far."""
        simulator = self._simulator
        progress = {"time": simulator.clock.now, "share": share, "layers": simulator.wire.moved}
        self._write({"progress": progress})
        self._file.flush()

    def end(self, run: Run | None) -> None:
        """Close the file; remove it if the run is finished."""
        self._file.close()
        if run is not None:
            self._path.unlink()

    def _write(self, line: Mapping[str, object]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

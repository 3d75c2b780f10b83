"""The laps of a run, sorted: which can be compared, and what is to be said of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.entries import ENTRIES
from benchmarks.measures import Laps, Line, other_work
from benchmarks.workloads import WORKLOADS


class Sorted:
    """laps: all that came to an end, by workload, entry and repeat; remarks: on those that should not be compared."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        self.laps: dict[str, dict[str, dict[int, Line]]] = {}
        self.remarks: dict[tuple[str, str], str] = {}
        for lap in results["laps"]:
            workload, entry = lap["workload"], lap["entry"]
            lines = self.laps.setdefault(workload, {}).setdefault(entry, {})
            for trouble in ("failed", "cannot"):
                if trouble in lap:
                    self.remarks[workload, entry] = f"{trouble}: {lap[trouble]}"
                    break
            else:
                lines[lap["repeat"]] = lap
        for workload in self.laps:
            self._look_for_other_work(workload)

    @property
    def comparable(self) -> Laps:
        """Laps of entries without a remark."""
        return {
            workload: {name: lines for name, lines in rows.items() if (workload, name) not in self.remarks}
            for workload, rows in self.laps.items()
        }

    def _look_for_other_work(self, workload: str) -> None:
        rows = self.laps[workload]
        own = {entry.name: entry for entry in ENTRIES}
        bare = [line["loss"] for name in rows if own[name].contender == "bare" for line in rows[name].values()]
        for name, lines in rows.items():
            reference = median(bare) if bare and not own[name].limit else None
            for line in lines.values():
                asked = replace(WORKLOADS[workload], rounds=line["asked"] or WORKLOADS[workload].rounds)
                difference = other_work(line, asked, reference)
                if difference is not None:
                    self.remarks[workload, name] = f"other work: {difference}"

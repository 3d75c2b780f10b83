"""Run or resume the studies of a reproduction, and return their runs by method."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from archipel.data.fetch import fetch
from archipel.data.sources.catalogue import FILES, wanted
from archipel.papers.studies import ScaledStudies, ScaleName, StudyPart
from archipel.report.measures import Marks, marks
from archipel.runs.run import Run
from archipel.storage.atomic_files import write_text
from archipel.study.files import put, read_study, study_of
from archipel.study.results import Results, Watcher, load_results, run_study
from archipel.study.schema import Study
from archipel.study.stopwatch import timed

PICTURES = importlib.util.find_spec("matplotlib") is not None
"""Matplotlib is an extra; without it there are figures in numbers only."""


class FinishedRuns:
    """The runs that figures are computed from, read when they are first needed."""

    def __init__(self, studies: ScaledStudies, scale: ScaleName, folder: Path) -> None:
        self.studies, self.scale, self.folder = studies, scale, folder
        self._results: dict[str, Results] = {}

    # ------------------------------------------------------------------------------------------------- to gather it

    def gather(self, processes: int | None = None, watcher: Watcher | None = None) -> bool:
        """Run or resume all studies, each with its report; return False if one did not end."""
        self._fetch()
        for part in self.trained():
            with timed(self.folder):
                results = run_study(self.study(part), self.folder / part.name, processes=processes, watcher=watcher)
                if results.unfinished:
                    return False
                # at smoke, reports would take longer than the runs, and there is nothing to see
                if PICTURES and self.scale != "smoke" and not (results.folder / "report").exists():
                    results.report()
            self._results[part.name] = results
        return True

    def _fetch(self) -> None:
        """Download the data of all studies before the first one starts, not hours later."""
        for part in self.trained():
            if not (self.folder / part.name / "study.toml").exists():
                source = self.study(part).data.source
                files = wanted(source.name, source.given) if source.name in FILES else None
                if files is not None:
                    fetch(files)

    def study(self, part: StudyPart) -> Study:
        """Return the study of a part at this scale."""
        at = self.studies.scales[self.scale]
        raw = copy.deepcopy(read_study(self.studies.folder / part.file).raw)
        raw["title"] = self.title(part.name)
        for changes in (part.changes, at.changes, at.files.get(part.file, {})):
            for key, value in changes.items():
                put(raw, key, copy.deepcopy(value))
        return study_of(raw, f"{self.studies.name}, {part.name}, {self.scale}", code="any")  # its own

    def title(self, part: str) -> str:
        """Return the title of the study of a part."""
        return f"{self.studies.name} {part}, {self.scale}"

    # ---------------------------------------------------------------------------------------------- to take from it

    def has(self, part: str) -> bool:
        """Return whether this scale runs a part."""
        return part in [one.name for one in self.studies.parts_at(self.scale)]

    def trained(self) -> list[StudyPart]:
        """Return the parts that have runs."""
        return [part for part in self.studies.parts_at(self.scale) if part.trained]

    def results(self, part: str) -> Results:
        if part not in self._results:
            self._results[part] = load_results(self.folder / part)
        return self._results[part]

    def runs(self, part: str, method: str) -> list[Run]:
        """Return the runs of a method, one for each seed and fold; none if the study lacks it at this scale."""
        return [run for run in self.results(part) if run.name == method]

    def marks(self, part: str) -> Marks:
        """Return where the methods of a part are compared."""
        results = self.results(part)
        at = results.compared
        return marks(results.runs, target=at.target, seconds=at.seconds, rounds=at.rounds)

    def once(self, name: str, find: Callable[[], Any]) -> Any:
        """Return what a function computes as JSON data; stored in the folder, so that it is computed once."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            with timed(self.folder):
                found = find()
            write_text(path, json.dumps(found) + "\n")
        return json.loads(path.read_text())

    def seeds(self) -> Sequence[int]:
        parts = self.studies.parts_at(self.scale)
        return sorted({seed for part in parts for seed in self.study(part).seeds})

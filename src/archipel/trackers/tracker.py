"""The interface of trackers, and the rows of charts that they get from a run's records.

Law: a tracker gets all records of a run from the first one on, also when it is resumed, since the checkpoint holds
them. So it stores only the id of its own run, and what a killed process has lost is sent again.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from types import ModuleType
from typing import Protocol

from archipel.core.checks import require
from archipel.core.records import Committed, Divergence, Refused, Returned, Scores, Shadow, Stamped
from archipel.runs.run import Run

SECONDS, ROUNDS, MEGABYTES = "axis/seconds", "axis/rounds", "axis/megabytes"
"""Charts of a version's cost: methods are compared at equal values of these, not at equal versions."""


class Tracker(Protocol):
    """Shows runs in another tool, one at a time."""

    def begin(self, name: str, settings: Mapping[str, object], folder: Path) -> None:
        """Start or resume a run; the same folder leads to the same run of the tracker."""

    def record(self, stamped: Stamped) -> None:
        """Record what happened; what an earlier process has sent of this run does not show twice."""

    def end(self, run: Run | None) -> None:
        """End the run; None if it was stopped and may be resumed, so that it does not count as finished."""


# ---------------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class ChartRow:
    """What one record adds to the charts."""

    version: int
    axes: Mapping[str, float]
    """Seconds, local rounds and megabytes at the version's commit."""
    values: Mapping[str, float]
    """By chart."""
    first: bool
    """Whether it is the first row of its version."""

    @property
    def points(self) -> Mapping[str, float]:
        """Return the values by chart, the axes once a version, for tools that keep charts apart."""
        return {**self.axes, **self.values} if self.first else self.values


class Charts:
    """Converts a run's records to rows, in order. The same records give the same rows, also in another process."""

    def __init__(self) -> None:
        self.axes: list[Mapping[str, float]] = [{SECONDS: 0.0, ROUNDS: 0.0, MEGABYTES: 0.0}]
        """By version: a score may arrive after the next version."""
        self.shown = -1
        """The last version that has a row."""
        self.refused = 0
        # what came since the last commit; one chart for all learners, for there may be thousands
        self.losses: list[tuple[float, ...]] = []
        self.between: list[float] = []

    def row(self, stamped: Stamped) -> ChartRow | None:
        """Return the row of a record; None if the charts show nothing of it, or not yet."""
        match stamped.record:
            case Committed() as commit:
                return self._committed(stamped.time, commit)
            case Scores(version=version, metrics=metrics, validation=validation):
                beside = {f"validation/{name}": value for name, value in validation.items()}
                return self._row(version, {f"score/{name}": value for name, value in metrics.items()} | beside)
            case Divergence(version=version, names=names, values=values):
                known = {name: value for name, value in zip(names, values, strict=True) if not math.isnan(value)}
                # "layer", because the layer of the network itself is called "." and a path cannot end so
                return self._row(version, {f"divergence/layer {name}": value for name, value in known.items()})
            case Shadow() as shadow:
                return self._shadow(shadow)
            case Returned(losses=losses) if losses:
                self.losses.append(losses)
            case Refused():
                self.refused += 1
        return None

    def _row(self, version: int, values: Mapping[str, float]) -> ChartRow:
        first = version > self.shown
        self.shown = max(self.shown, version)
        return ChartRow(version, self.axes[version], values, first)

    def _committed(self, time: float, commit: Committed) -> ChartRow:
        require(
            commit.version == len(self.axes),
            f"tracking: version {commit.version} was recorded after version {len(self.axes) - 1}. Record a run "
            "from its "
            "first record on, a resumed one too: its checkpoint holds them all.",
        )
        self.axes.append({SECONDS: time, ROUNDS: float(commit.rounds), MEGABYTES: megabytes(commit.traffic)})
        values: dict[str, float] = {
            "commit/contributors": len(commit.learners),
            "commit/stale versions": fmean(commit.stale_versions),
            "commit/stale steps": fmean(commit.stale_steps),
            "commit/refused so far": self.refused,
        }
        if commit.norms:
            values |= {"commit/median norm": median(commit.norms), "commit/largest norm": max(commit.norms)}
        for kind, moved in commit.traffic.items():
            if kind.endswith(" bytes"):
                values[f"megabytes/{kind.removesuffix(' bytes')}"] = moved / 2**20
        if self.losses:
            values["learners/loss before training"] = fmean(losses[0] for losses in self.losses)
            values["learners/loss after training"] = fmean(losses[-1] for losses in self.losses)
            self.losses = []
        return self._row(commit.version, values)

    def _shadow(self, shadow: Shadow) -> ChartRow | None:
        """Return DC, and the mean DL of the rounds since the last commit, such as a relay's hops."""
        if shadow.dl is not None:
            self.between.append(shadow.dl)
        if shadow.dc is None:
            return None
        values = {"divergence/DC": shadow.dc}
        if self.between:
            values["divergence/DL"] = fmean(self.between)
            self.between = []
        return self._row(len(self.axes) - 1, values)


def megabytes(traffic: Mapping[str, int]) -> float:
    """Return what the method itself has moved, without scoring for the records."""
    return sum(n for kind, n in traffic.items() if kind.endswith(" bytes") and not kind.startswith("score")) / 2**20


# ----------------------------------------------------------------------------------------------------- at the end


def totals(run: Run) -> dict[str, float]:
    """Return the numbers that a table of runs shows, without missing scores."""
    numbers = {
        "final/score": run.final_score,
        "final/last score": run.score,
        "final/score at the best validation": run.validated_score,
        "final/seconds": run.seconds,
        "final/rounds": run.rounds,
        "final/commits": len(run.commits),
        "final/refused": len(run.refusals),
        "final/megabytes": megabytes(run.traffic),
    }
    return {name: value for name, value in numbers.items() if not math.isnan(value)}


def words(run: Run) -> dict[str, str]:
    """Return the texts that describe a finished run."""
    return {"reason": run.reason, "fingerprint": run.fingerprint(), "execution": run.execution}


def artefacts(folder: Path) -> list[Path]:
    """Return the files of a saved run that are kept beside its charts."""
    return [path for path in (folder / "run.json", folder / "model.safetensors") if path.exists()]


# ------------------------------------------------------------------------------------------- what trackers share


def plain(settings: Mapping[str, object]) -> dict[str, bool | int | float | str]:
    """Return settings in types that every tool takes: numbers, booleans and text."""
    return {
        key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in settings.items()
    }


def needed(tracker: str, module: str) -> ModuleType:
    """Import a module of a package that is an extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"tracking with {tracker} needs {tracker}: pip install '.[{tracker}]' in the source folder"
        raise ImportError(message) from error

"""Trackers show runs in the tools in which people compare them. A tool's package is imported when its tracker is made.

They are observers: they read the records and never touch the run.
"""

from __future__ import annotations

import os
from pathlib import Path

from archipel.core.checks import one_of
from archipel.runs.run import Run
from archipel.trackers.mlflow import MLflow
from archipel.trackers.tensorboard import TensorBoard
from archipel.trackers.tracker import Tracker
from archipel.trackers.wandb import WeightsAndBiases

__all__ = ["TRACKERS", "Tracker", "track", "tracker"]

TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}


def tracker(name: str) -> Tracker:
    """A tracker by name, ready to begin."""
    one_of("tracker", "name", name, TRACKERS)
    return TRACKERS[name]()


def track(run: Run, tracker: Tracker, folder: str | os.PathLike[str]) -> None:
    """Tell a tracker of a finished run; it keeps its run's id in the folder, and takes what was saved there."""
    settings = {"algorithm": run.algorithm, "seed": run.seed, **run.tuned, **run.settings}
    tracker.begin(run.name, settings, Path(folder))
    for stamped in run.records:
        tracker.record(stamped)
    tracker.end(run)

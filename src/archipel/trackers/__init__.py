"""Trackers show runs in other tools, whose packages are imported when a tracker is made.

They are observers: they read the records and never touch the run.
"""

from __future__ import annotations

import os
from pathlib import Path

from archipel.core.checks import one_of
from archipel.runs.run import Run
from archipel.trackers.mlflow import MLflow
from archipel.trackers.opentelemetry import OpenTelemetry
from archipel.trackers.tensorboard import TensorBoard
from archipel.trackers.tracker import Tracker
from archipel.trackers.wandb import WeightsAndBiases

__all__ = ["TRACKERS", "Tracker", "track", "tracker"]

TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
    "opentelemetry": OpenTelemetry,
}


def tracker(name: str) -> Tracker:
    """Return a tracker by name."""
    one_of("tracker", "name", name, TRACKERS)
    return TRACKERS[name]()


def track(run: Run, tracker: Tracker, folder: str | os.PathLike[str]) -> None:
    """Send a finished run to a tracker, which stores its run's id in the folder and uploads what was saved there."""
    settings = {"algorithm": run.algorithm, "seed": run.seed, **run.tuned, **run.settings}
    tracker.begin(run.name, settings, Path(folder))
    for stamped in run.records:
        tracker.record(stamped)
    tracker.end(run)

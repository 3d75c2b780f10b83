"""MLflow: a run in the store that MLFLOW_TRACKING_URI names, in the experiment MLFLOW_EXPERIMENT_NAME or "archipel".

The step is the version. The timestamp is the run's start plus its own seconds: relative time is virtual time in a
simulation, and a point that is sent again has the same timestamp.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from archipel.core.records import Stamped
from archipel.runs.run import Run
from archipel.trackers.tracker import SECONDS, Charts, artefacts, needed, totals, words

REGISTERED = "ARCHIPEL_MLFLOW_MODEL"
"""The variable that names a model of MLflow's registry; a finished run becomes a version of it."""
METRICS, PARAMETERS = 1000, 100
"""Most points that MLflow takes in one request."""


class MLflow:
    """Uses a client of its own, so that a program's active run is left alone."""

    def __init__(self) -> None:
        self.mlflow = needed("mlflow", "mlflow")

    def begin(self, name: str, settings: Mapping[str, object], folder: Path) -> None:
        self.folder = folder
        self.charts = Charts()
        self.client = self._client()
        mine = self._taken_up() or self._begun(name)
        self.run, self.start = mine.info.run_id, mine.info.start_time
        # a store searches for a repeated point among all others: that would take minutes
        self.there = {chart: self._last_step(chart) for chart in mine.data.metrics}
        self.waiting: list[Any] = []
        self.told = 0
        param = self.mlflow.entities.Param
        new = [param(key, str(value)) for key, value in settings.items() if key not in mine.data.params]
        for place in range(0, len(new), PARAMETERS):
            self.client.log_batch(self.run, params=new[place : place + PARAMETERS])

    def record(self, stamped: Stamped) -> None:
        row = self.charts.row(stamped)
        if row is not None:
            self._tell(row.points, row.version, row.axes[SECONDS])
            # a tenth of the points may wait: the first ones show at once, and a long run needs few requests
            if len(self.waiting) >= min(METRICS, 1 + self.told // 10):
                self._flush()

    def end(self, run: Run | None) -> None:
        if run is None:
            self._flush()
            self.client.update_run(self.run, status="KILLED")  # without an end, unlike set_terminated
            return
        self._tell(totals(run), len(run.commits), run.seconds)
        self._flush()
        for key, value in {**words(run), "mlflow.note.content": f"```\n{run.summary()}\n```"}.items():
            self.client.set_tag(self.run, key, value)
        for path in artefacts(self.folder):
            self.client.log_artifact(self.run, path)
        if model := os.environ.get(REGISTERED):
            self._register(model, run)
        with redirect_stdout(sys.stderr):  # it prints the run's address, and standard output is for results
            self.client.set_terminated(self.run, "FINISHED")

    def _register(self, model: str, run: Run) -> None:
        """Make the run's model a version in the registry, unless it is one already."""
        if model not in {one.name for one in self.client.search_registered_models()}:
            self.client.create_registered_model(model)
        if any(one.run_id == self.run for one in self.client.search_model_versions(f"name = '{model}'")):
            return
        source = f"{self.client.get_run(self.run).info.artifact_uri}/model.safetensors"
        tags = {**words(run), "version": str(len(run.commits)), "algorithm": run.algorithm}
        self.client.create_model_version(model, source, self.run, tags=tags)

    # ------------------------------------------------------------------------------------------------- the run

    def _client(self) -> Any:
        uri = self.mlflow.get_tracking_uri()
        if not uri.startswith("sqlite:///"):
            return self.mlflow.MlflowClient()
        # MLflow makes the tables of a new file without a lock, and processes that do so at once spoil each other's
        with needed("mlflow", "filelock").FileLock(uri.removeprefix("sqlite:///") + ".lock"):
            return self.mlflow.MlflowClient()

    @property
    def _remembered(self) -> Path:
        return self.folder / "mlflow-run-id"

    def _begun(self, name: str) -> Any:
        mine = self.client.create_run(self._experiment(), run_name=name)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remembered.write_text(mine.info.run_id)
        return mine

    def _taken_up(self) -> Any:
        """Return the run that was started in this folder, if there is one."""
        if not self._remembered.exists():
            return None
        identity = self._remembered.read_text()
        try:
            self.client.update_run(identity, status="RUNNING")
            return self.client.get_run(identity)
        except self.mlflow.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise ValueError(
                f"mlflow: the store has no run {identity}, which {self._remembered} names. Set MLFLOW_TRACKING_URI to "
                "the store in which it was begun, or remove that file to begin a new run."
            ) from None

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "archipel")
        found = self.client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self.client.create_experiment(name))
            except self.mlflow.MlflowException:
                # another process may have made it since
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    # ---------------------------------------------------------------------------------------------- the points

    def _last_step(self, chart: str) -> int:
        return max(int(point.step) for point in self.client.get_metric_history(self.run, chart))

    def _tell(self, points: Mapping[str, float], version: int, seconds: float) -> None:
        timestamp = self.start + round(1000 * seconds)
        self.waiting += [
            self.mlflow.entities.Metric(chart, value, timestamp, version)
            for chart, value in points.items()
            if version > self.there.get(chart, -1)
        ]

    def _flush(self) -> None:
        for place in range(0, len(self.waiting), METRICS):
            self.client.log_batch(self.run, metrics=self.waiting[place : place + METRICS])
        self.told += len(self.waiting)
        self.waiting = []

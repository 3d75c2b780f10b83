"""Weights & Biases: a run in the project WANDB_PROJECT or "archipel", its files in the run's folder.

WANDB_MODE holds; without a login the run is kept offline, for `wandb sync`. Every row has the version and where it
stands, so that charts can choose any of them as their horizontal axis.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from archipel.core.records import Stamped
from archipel.runs.run import Run
from archipel.trackers.tracker import Charts, artefacts, needed, plain, totals, words


class WeightsAndBiases:
    """Sends numbered rows; equal records give equal rows, so rows that the server has are not sent again."""

    def __init__(self) -> None:
        self.wandb = needed("wandb", "wandb")

    def begin(self, name: str, settings: Mapping[str, object], folder: Path) -> None:
        self.folder = folder
        self.charts = Charts()
        folder.mkdir(parents=True, exist_ok=True)
        remembered = folder / "wandb-run-id"
        self.run = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", "archipel"),
            name=name,
            id=remembered.read_text() if remembered.exists() else None,
            resume="allow",
            config=plain(settings),
            dir=folder,
            mode=self._mode(),
            reinit="create_new",  # a program's own active run is not changed
            settings=self.wandb.Settings(silent=True, console="off"),
        )
        remembered.write_text(self.run.id)
        self.run.define_metric("version")
        self.run.define_metric("*", step_metric="version")
        self.number = 0
        self.there = self.run.starting_step

    def record(self, stamped: Stamped) -> None:
        row = self.charts.row(stamped)
        if row is not None:
            if self.number >= self.there:
                self.run.log({"version": row.version, **row.axes, **row.values}, step=self.number)
            self.number += 1

    def end(self, run: Run | None) -> None:
        if run is None:
            self.run.mark_preempting()  # so an unfinished run counts as one that will be resumed
            self.run.finish(exit_code=1)
            return
        self.run.summary.update({**totals(run), **words(run)})
        if files := artefacts(self.folder):
            kept = self.wandb.Artifact(f"run-{self.run.id}", type="model")
            for path in files:
                # sent from where it is, not copied
                kept.add_file(str(path.resolve()), policy="immutable", skip_cache=True)
            self.run.log_artifact(kept)
        self.run.finish(exit_code=0)
        self._remove_superseded()

    def _mode(self) -> str:
        mode = str(self.wandb.setup().settings.mode)
        # reads a key, and never prompts for one
        return "offline" if mode == "online" and not self.wandb.login(prompt=False, verify=False) else mode

    def _remove_superseded(self) -> None:
        """Remove folders of interrupted parts, as `wandb sync` keeps the rows of the last folder it sends."""
        mine = Path(self.run.settings.sync_dir)
        for other in mine.parent.glob(f"offline-run-*-{self.run.id}"):
            if other != mine:
                shutil.rmtree(other)

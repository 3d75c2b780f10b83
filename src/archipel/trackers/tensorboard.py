"""TensorBoard: event files in the run's folder; `tensorboard --logdir <folder of runs>` shows each by its folder.

Its charts have a step and a wall time: the step is the version, the wall time the run's own seconds. So the horizontal
axis "Relative" shows virtual time in a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from archipel.core.records import Stamped
from archipel.runs.run import Run
from archipel.trackers.tracker import SECONDS, Charts, needed, plain, totals


class TensorBoard:
    """Writes event files. A resumed run gets another complete file, which TensorBoard shows instead."""

    def __init__(self) -> None:
        self.torch = needed("tensorboard", "torch.utils.tensorboard")

    def begin(self, name: str, settings: Mapping[str, object], folder: Path) -> None:
        self.charts = Charts()
        # all that was written before of step 0 and later is void, even to a TensorBoard that has read it; without the
        # mark every point would show twice, and without the old file a TensorBoard that has it open would stop there
        self.writer = self.torch.SummaryWriter(str(folder), purge_step=0)
        self.writer.add_text("run", name)
        columns = dict.fromkeys(("final/score", "final/seconds", "final/rounds", "final/megabytes"), 0.0)
        table, row, self.finished = self.torch.summary.hparams(plain(settings), columns)
        for part in (table, row):
            self.writer.file_writer.add_summary(part)

    def record(self, stamped: Stamped) -> None:
        row = self.charts.row(stamped)
        if row is not None:
            for chart, value in row.points.items():
                self.writer.add_scalar(chart, value, row.version, walltime=row.axes[SECONDS])

    def end(self, run: Run | None) -> None:
        if run is not None:
            for chart, value in totals(run).items():
                self.writer.add_scalar(chart, value, len(run.commits), walltime=run.seconds)
            # indented, so that it is shown verbatim and not as Markdown
            self.writer.add_text("summary", "    " + run.summary().replace("\n", "\n    "))
            self.writer.file_writer.add_summary(self.finished)
        self.writer.close()

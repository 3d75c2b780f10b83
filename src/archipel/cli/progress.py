"""Show a study's progress: a live table on a terminal, a line for each run elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from archipel.cli.console import notices
from archipel.study.execute import RunNotice, RunProgress
from archipel.study.grid import GridCell
from archipel.study.results import Watcher
from archipel.study.worker_pool import Began, Broke, Ended, Message, Told


class Display(Watcher):
    """Shows the runs of a study on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.broken: list[str] = []
        self._live: Live | None = None
        self._what = ""
        self._jobs: Sequence[GridCell] = ()
        self._news: dict[int, RunProgress | None] = {}
        """The running runs and their progress."""
        self._over = 0
        self._noted: set[str] = set()

    def begin(self, what: str, jobs: Sequence[GridCell]) -> None:
        self.close()
        self._what, self._jobs, self._over = what, jobs, 0
        self._news.clear()
        if jobs and self.console.is_terminal:
            self._live = Live(self._shown(), console=self.console, refresh_per_second=5, transient=True)
            self._live.start()
        elif jobs:
            self._say(f"{what} {len(jobs)} runs")

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def hear(self, message: Message) -> None:
        match message:
            case Began(job):
                self._news[job] = None
            case Told(_, RunNotice(text)):
                if text not in self._noted:  # a hundred runs may report the same
                    self._noted.add(text)
                    self._say(f"[yellow]note:[/] {escape(text)}")
            case Told(job, RunProgress() as news):
                self._news[job] = news
            case Ended(job, finished):
                self._over += 1
                progress = self._news.pop(job)
                if finished and progress is not None:
                    self._say(f"{escape(name(self._jobs[job]))}: {ended(progress)}")
            case Broke(job, reason):
                self._over += 1
                self._news.pop(job, None)
                self.broken.append(name(self._jobs[job]))
                known = reason in self._noted  # a mistake in a study makes all its runs fail alike
                self._noted.add(reason)
                self._say(f"[red]failed:[/] {escape(self.broken[-1])}: {'the same' if known else escape(reason)}")
        if self._live is not None:
            self._live.update(self._shown())

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def _shown(self) -> Group:
        table = Table(box=None, pad_edge=False, padding=(0, 1), expand=False)
        for heading in ("run", "", "virtual s", "version", "score", "MB", "at work"):
            table.add_column(heading, justify="left" if heading in ("run", "") else "right", no_wrap=True)
        for job, progress in sorted(self._news.items()):
            label = Text(name(self._jobs[job]), overflow="ellipsis")
            label.truncate(26, overflow="ellipsis")
            if progress is None:
                table.add_row(label, ProgressBar(total=1, completed=0, width=12), "", "", "", "", "")
                continue
            table.add_row(
                label,
                ProgressBar(total=1, completed=progress.share, width=12),
                f"{progress.seconds:,.1f}",
                f"{progress.version:,}",
                "" if progress.score is None else f"{progress.score:.3f}",
                f"{progress.megabytes:,.1f}",
                f"{progress.at_work}",
            )
        done = f"{self._what}: {self._over} of {len(self._jobs)} runs done; Ctrl-C stops and keeps what is done"
        return Group(table, Text(done, style="dim"))


def exit_if_broken(display: Display) -> None:
    """Exit with code 1 if runs have failed, after one line about them."""
    if display.broken:
        count = len(display.broken)
        what, where = ("1 run", "its folder") if count == 1 else (f"{count} runs", "their folders")
        notices.print(f"[red]{what} failed:[/] see error.txt in {where}.", soft_wrap=True)
        raise typer.Exit(1)


def name(cell: GridCell) -> str:
    """Return a short name of a run."""
    settings = "".join(f", {key.rpartition('.')[2]}={value}" for key, value in {**cell.settings, **cell.tuned}.items())
    return f"{cell.name}{settings}, seed {cell.seed}" + ("" if cell.fold is None else f", fold {cell.fold}")


def ended(progress: RunProgress) -> str:
    score = "" if progress.score is None else f"score {progress.score:.4f}, "
    return f"{score}{progress.seconds:,.1f} virtual s, {progress.version:,} versions, {progress.megabytes:,.2f} MB"

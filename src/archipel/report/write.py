"""Write a report: a folder with the page, the figures and the table, replaced as a whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from archipel.core.checks import require
from archipel.drawing.csv_tables import write_csv
from archipel.drawing.style import save
from archipel.report.figures import draw_all
from archipel.report.measures import COLUMNS, Measured, marks, measure, real
from archipel.report.page import Picture, page
from archipel.runs.run import Run

PAGE, FIGURES, TABLE = "index.html", "figures", "table.csv"
OURS = '<meta name="generator" content="archipel report">'
"""Marks a page as a report's."""


def write_report(
    runs: Sequence[Run],
    folder: Path,
    *,
    title: str = "Methods side by side",
    notes: Sequence[str] = (),
    target: float | None = None,
    seconds: float | None = None,
    rounds: int | None = None,
) -> Path:
    """Compare the runs on one page, replacing a report in the folder; return the page's path."""
    at = marks(runs, target=target, seconds=seconds, rounds=rounds)
    methods = measure(runs, at)
    folder = Path(os.path.realpath(folder))
    check_replaceable(folder)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        pictures = write_figures(runs, unfinished / FIGURES)
        write_table(methods, unfinished / TABLE)
        (unfinished / PAGE).write_text(page(title, runs, at, methods, pictures, notes), encoding="utf-8")
        swap(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder / PAGE


def write_figures(runs: Sequence[Run], folder: Path) -> list[Picture]:
    """Write all figures; return them for the page."""
    pictures = []
    for drawing in draw_all(runs):
        paths = save(drawing, folder)
        svg = next(path for path in paths if path.suffix == ".svg")
        links = tuple(f"{FIGURES}/{path.name}" for path in paths)
        pictures.append(Picture(drawing.name, drawing.title, drawing.caption, svg.read_bytes(), links))
    return pictures


def write_table(methods: Sequence[Measured], path: Path) -> None:
    """Write a line for each method; what does not exist is empty."""
    header = ["method", "runs", "scored by", "final over", "target"]
    for column in COLUMNS:
        unit = f" ({column.unit})" if column.unit else ""
        header += [f"{column.name}{unit}", f"{column.name} deviation", f"{column.name} n"]
    rows = []
    for one in methods:
        row: list[object] = [one.method, one.runs, one.scoring, one.stretch, real(one.target)]
        for column in COLUMNS:
            spread = one[column.name]
            row += [real(spread.mean), real(spread.deviation), spread.n]
        rows.append(row)
    write_csv(path, header, rows)


def check_replaceable(folder: Path) -> None:
    """Refuse to replace anything but a report, so that a mistyped folder costs no runs."""
    if not os.path.lexists(folder):
        return
    page = folder / PAGE
    require(
        folder.is_dir()
        and {path.name for path in folder.iterdir()} <= {PAGE, FIGURES, TABLE}
        and (not any(folder.iterdir()) or (page.is_file() and OURS in page.read_text(encoding="utf-8"))),
        f"report: {folder} exists and is not a report; it would be overwritten. Give a folder of its "
        f"own, such as {folder / 'report'}.",
    )


def swap(new: Path, folder: Path) -> None:
    """Replace the old folder by the new one. A crash in between leaves the old one beside it, as `.<name>.old`."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    try:
        os.rename(new, folder)
    except OSError:
        if old.exists():
            os.rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)

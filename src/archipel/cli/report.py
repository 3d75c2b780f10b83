"""`archipel report`: compare finished runs, on a page and in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from archipel.cli.console import AsJson, nearby, out, print_json
from archipel.report.measures import (
    COLUMNS,
    Marks,
    Measured,
    decimals,
    marks,
    measure,
    number,
    plain,
    real,
    shown,
)
from archipel.report.write import write_report
from archipel.runs.grouping import distinct, named_by_scoring
from archipel.study.results import Results, load_results
from archipel.study.schema import ReportSection


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders with finished runs in them, however deep.")],
    output: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the report.", show_default="report, in the first folder"),
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="The score to reach.", show_default="one that half of the methods reach")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="The time to compare scores at.", show_default="the shortest run's end")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="The local rounds to compare scores at.", show_default="the fewest of a run")
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="The page's title.", show_default="the study's, if there is one study")
    ] = None,
    json: AsJson = False,
) -> None:
    """Compare finished runs: a page with figures, and a table here."""
    found = collect(folders)
    every = [run for results in found for run in results]
    runs = named_by_scoring(distinct(every))
    if not runs:
        raise FileNotFoundError(
            f"No finished run in {', '.join(map(str, folders))}: there is no run.json. Run a study there, save a run "
            "with run.save(folder), or wait for one to end."
        )
    compared = found[0].compared if len(found) == 1 else ReportSection()
    target = compared.target if target is None else target
    seconds = compared.seconds if seconds is None else seconds
    rounds = compared.rounds if rounds is None else rounds
    page = write_report(
        runs,
        folders[0] / "report" if output is None else output,
        title=title or (found[0].title if len(found) == 1 else "Methods side by side"),
        notes=[*(note for results in found for note in results.notes), *copies(len(every) - len(runs))],
        target=target,
        seconds=seconds,
        rounds=rounds,
    )
    at = marks(runs, target=target, seconds=seconds, rounds=rounds)
    methods = measure(runs, at)
    if json:
        print_json(as_data(page, at, methods))
    else:
        out.print(table(methods))
        out.print(f"\nReport: {escape(nearby(page))}", highlight=False, soft_wrap=True)


def collect(folders: Sequence[Path]) -> list[Results]:
    """Return the studies in these folders and the runs saved there alone, each once, in the order of their paths."""
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: there is no such folder. Give one that runs were saved in.")
    marked = [path for folder in folders for name in ("runs.json", "run.json") for path in folder.rglob(name)]
    places = sorted({path.parent.resolve() for path in marked})
    studies = {place for place in places if (place / "runs.json").exists()}
    # a study knows which of the runs in it count: those that its settings were chosen by do not
    return [load_results(place) for place in places if studies.isdisjoint(place.parents)]


def copies(count: int) -> list[str]:
    """Say, for the notes of the page, that runs were left out."""
    return [f"{count} of the runs found are copies of others and were left out."] if count else []


def as_data(page: Path | None, at: Marks, methods: Sequence[Measured]) -> dict[str, object]:
    """Return the measures as JSON data."""
    return {
        "page": None if page is None else str(page),
        "seconds": at.seconds.value,
        "rounds": at.rounds.value,
        "targets": {metric: real(mark.value) for metric, mark in at.targets.items()},
        "methods": [plain(one) for one in methods],
    }


def table(methods: Sequence[Measured]) -> Table:
    """Return a table of the main measures, in 80 columns."""
    scorings, targets = {one.scoring for one in methods}, {one.target for one in methods}
    target = number(targets.pop()) if len(targets) == 1 else "target"
    stretches = {one.stretch for one in methods}
    stretch = stretches.pop() if len(stretches) == 1 else "the last fifth of a run's budget"
    validated = any(one.validated.n for one in methods)
    drawn = Table(
        title=escape(scorings.pop()) if len(scorings) == 1 else "scored differently: the page says how",
        caption=f"Means ± deviation over runs. Final score: mean over {stretch}, each version counting as long as it "
        f"was the current one. To {target}: mean over the runs that reached it.",
        title_justify="left",
        caption_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    drawn.add_column("\nmethod", overflow="fold")
    scores = ("final\nscore", "last\nscore", *(["at best\nvalid."] if validated else []))
    for head in (*scores, f"reached\n{target}", f"s to\n{target}", f"MB to\n{target}", "MB\nin all"):
        drawn.add_column(head, justify="right", no_wrap=True)  # a number that is cut is a wrong number
    places = {column.name: decimals(column, methods) for column in COLUMNS}
    for one in methods:
        mean, deviation = shown(one.final, places["final"])
        cells = {column.name: shown(one[column.name], places[column.name])[0] or "-" for column in COLUMNS}
        drawn.add_row(
            escape(one.method),
            f"{mean} ± {deviation}" if deviation else mean or "-",
            cells["last"],
            *([cells["validated"]] if validated else []),
            f"{one.target_seconds.n} of {one.runs}",
            cells["target_seconds"],
            cells["target_megabytes"],
            cells["total"],
        )
    return drawn

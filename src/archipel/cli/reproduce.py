"""`archipel reproduce`: compare a paper's table with ours."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.markup import escape
from rich.table import Table

from archipel.cli.console import AsJson, nearby, notices, out, print_json
from archipel.cli.loading import STOPPED, loading
from archipel.papers.catalogue import NAMES, reproduction
from archipel.papers.reproduction import JUDGED, Figures, Reproduction
from archipel.papers.studies import ScaleName
from archipel.papers.verdicts import StoredVerdicts, read

if TYPE_CHECKING:
    from archipel.papers.outcome import Outcome

COLOURS = {True: "green", False: "red", None: "yellow"}


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which table or figure, such as dvw-table1.")] = None,
    scale: Annotated[
        ScaleName, typer.Option(help="smoke: seconds, does it run? small: what decides the claims. full: the paper's.")
    ] = "small",
    folder: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the results; default: results/<name>-<scale>."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Runs at a time; default: one for each core.")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List all tables, with their claims and whether these held.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Run a table of a paper, and compare the paper's figures with ours.

    A reproduction that was started in the folder is resumed. A claim that does not hold is a result, not an error.
    """
    if list_ or name is None:
        _list(json)
        return
    with loading():
        from archipel.cli.progress import Display, exit_if_broken
        from archipel.papers.outcome import as_data, reproduce

    chosen = reproduction(name)
    place = folder or Path("results") / f"{name}-{scale}"
    display = Display(notices)
    title = f"{escape(chosen.title)}\n{scale}: {escape(chosen.scales[scale].says)}"
    notices.print(title, highlight=False, soft_wrap=True)
    outcome = None
    try:
        outcome = reproduce(chosen, scale, place, processes=jobs, watcher=display)
    except KeyboardInterrupt:  # between two studies, or the second Ctrl-C
        pass
    finally:
        display.close()
    if outcome is None:
        exit_if_broken(display)
        where = f" --out {escape(shlex.quote(str(folder)))}" if folder else ""
        again = f"stopped; continue with: archipel reproduce {name} --scale {scale}{where}"
        notices.print(again, highlight=False, soft_wrap=True)
        raise typer.Exit(STOPPED)
    if json:
        print_json(as_data(outcome))
    else:
        show(outcome)


def _list(json: bool) -> None:
    known, verdicts = [reproduction(name) for name in NAMES], read()
    if json:
        print_json([_entry(one, verdicts.get(one.name)) for one in known])
        return
    paper = ""
    for one in known:
        if one.paper != paper:
            paper = one.paper
            out.print(f"\n[bold]{escape(paper)}[/]", highlight=False)
        found = verdicts.get(one.name)
        shown = found.shown() if found else "not run at small"
        out.print(f"  {one.name:15}{escape(one.title)} ({shown})", highlight=False, soft_wrap=True)
        for claim in one.claims:
            holds = found.holds.get(claim.text) if found else None
            out.print(f"{'':17}[{COLOURS[holds]}]{JUDGED[holds]:15}[/]", end="", highlight=False)
            out.print(escape(claim.text), highlight=False, soft_wrap=True, style="dim")
    out.print(f"\narchipel reproduce NAME --scale {'|'.join(get_args(ScaleName))} runs one.", highlight=False)


def _entry(one: Reproduction, found: StoredVerdicts | None) -> dict[str, object]:
    return {
        "name": one.name,
        "paper": one.paper,
        "title": one.title,
        "claims": [claim.text for claim in one.claims],
        "verdicts": found and asdict(found),
        "scales": {name: scale.says for name, scale in one.scales.items()},
    }


def show(outcome: Outcome) -> None:
    """Print tables and verdicts, in 80 columns."""
    for figures in outcome.figures:
        out.print(drawn(figures))
        out.print()
    for claim, verdict in outcome.verdicts:
        word = f"[{COLOURS[verdict.holds]}]{JUDGED[verdict.holds]}[/]"
        out.print(f"{word}: {escape(claim.text)}", highlight=False, soft_wrap=True)
        out.print(f"    {escape(verdict.why)}", highlight=False, soft_wrap=True, style="dim")
    seeds = ", ".join(map(str, outcome.seeds))
    out.print(
        f"\n{outcome.scale}: {escape(outcome.reproduction.scales[outcome.scale].says)} "
        f"{'Seeds ' + seeds + ', ' if seeds else ''}{outcome.seconds / 60:.1f} minutes.\n"
        f"Runs and reports: {escape(nearby(outcome.folder.resolve()))}",
        highlight=False,
        soft_wrap=True,
    )


def drawn(figures: Figures) -> Table:
    """Return a table with a row for each figure: the paper's, ours and the difference."""
    table = Table(
        title=escape(figures.table.title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for heading in ("", "", "paper", "ours", "difference"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=bool(heading), overflow="fold")
    for row in figures.table.rows:
        for place, column in enumerate(figures.table.columns):
            cell = figures.cells[row.name, column.name]
            table.add_row(escape(row.name) if not place else "", escape(column.name), *cell.shown(column.digits))
    return table

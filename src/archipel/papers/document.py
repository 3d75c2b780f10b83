"""Write the pages of docs/papers from stored outcomes: `python -m archipel.papers.document docs/papers`.

The folder holds the reproduction.json of every table that was run, as <name>.json, and its curves, as <name>.png.
Figures come from there and words from the reproductions; none is typed by hand, and a test compares the pages. The
verdicts are written into the package too, for `archipel reproduce --list`.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from archipel.papers.catalogue import NAMES, reproduction
from archipel.papers.outcome import SCORING
from archipel.papers.reproduction import JUDGED, FigureCell, PaperTable, Reproduction
from archipel.papers.verdicts import FILE, StoredVerdicts, written
from archipel.report.measures import Spread
from archipel.storage.atomic_files import write_text

Stored: TypeAlias = Mapping[str, Any]
"""An outcome as reproduction.json holds it."""

INDEX = """# The papers' tables

`archipel reproduce NAME` runs a table of a paper from [study files in the package](../../src/archipel/papers), prints
the paper's figures beside ours, and says which of the paper's claims hold: who is ahead of whom, and by roughly how
much. [Reproduce a paper's table](../how-to/reproduce-a-table.md) shows how.

Everything below was run at the scale `small`: networks, samples and rounds are fewer than in the papers, so our figures
are not theirs, and what is compared is the order and the gap. The papers' own budgets (`full`) were not run.

* **Score**: a run's final score, the mean over the last fifth of its budget
  ([0038](../decisions/0038-the-final-score.md)), then the mean over seeds ± the sample deviation.
* **Earlier**: these outcomes were scored by the mean of each run's last five evaluations, which is unfair to methods
  that commit rarely. Some studies have changed since then too, so text and figures may not match. They have to be run
  again.
* **Time** is wall-clock time on a machine that had other work to do.

These pages are generated from the outcomes in this folder and a test compares them. To write them again, run
`python -m archipel.papers.document docs/papers`.
"""
HOW_TO_READ = (
    "[The index](index.md) explains scales and scores. In each cell: the paper's figure; **ours** (the difference)."
)
EARLIER = "**Earlier** scoring, and maybe other settings ([why](index.md))."


def pages(folder: Path) -> dict[str, str]:
    """Return the index and a page for each paper, by file name."""
    stored = _stored(folder)
    papers: dict[str, list[Reproduction]] = {}
    for name in NAMES:
        papers.setdefault(_page(name), []).append(reproduction(name))
    index = [INDEX, "| table | what it compares | claims | scoring |\n| --- | --- | --- | --- |"]
    index += [_row(table, stored.get(table.name)) for tables in papers.values() for table in tables]
    return {
        "index.md": "\n".join(index) + "\n",
        **{page: _paper(tables, stored, folder) for page, tables in papers.items()},
    }


def verdicts(folder: Path) -> dict[str, StoredVerdicts]:
    """Return what became of the claims of every outcome in the folder."""
    found = {}
    for name, outcome in _stored(folder).items():
        holds = {claim["claim"]: claim["holds"] for claim in outcome["claims"]}
        earlier = scored_earlier(name, outcome)
        found[name] = StoredVerdicts(outcome["scale"], tuple(outcome["seeds"]), earlier, holds)
    return found


def _stored(folder: Path) -> dict[str, Stored]:
    return {name: json.loads(path.read_text()) for name in NAMES if (path := folder / f"{name}.json").exists()}


def scored_earlier(name: str, outcome: Stored) -> bool:
    """Tell whether an outcome's figures rest on scores that were computed in another way than today's."""
    return reproduction(name).scored and outcome.get("scoring") != SCORING


def _page(name: str) -> str:
    return f"{name.partition('-')[0]}.md"


def _row(table: Reproduction, outcome: Stored | None) -> str:
    link = f"[{table.name}]({_page(table.name)}#{table.name})"
    if outcome is None:
        return f"| {link} | {_cell(table.title)} | not run at `small` | |"
    counts = Counter(claim["holds"] for claim in outcome["claims"])
    claims = f"{counts[True]} of {counts[True] + counts[False]} hold"
    if counts[None]:
        claims += f", {counts[None]} not judged"
    scoring = "earlier" if scored_earlier(table.name, outcome) else "final score" if table.scored else "none needed"
    return f"| {link} | {_cell(table.title)} | {claims} | {scoring} |"


def _paper(tables: Sequence[Reproduction], stored: Mapping[str, Stored], folder: Path) -> str:
    short, _, title = tables[0].paper.partition(": ")
    lines = [f"# {short}", "", f"*{title}.* {HOW_TO_READ}", ""]
    shared = [reading for reading, tables in Counter(r for t in tables for r in t.readings).items() if tables > 1]
    if shared:
        lines += ["How the paper was read, for several tables:", "", *(f"* {reading}" for reading in shared), ""]
    for table in tables:
        lines += _section(table, stored.get(table.name), (folder / f"{table.name}.png").exists(), shared)
    return "\n".join(lines).rstrip() + "\n"


def _section(table: Reproduction, outcome: Stored | None, picture: bool, shared: Sequence[str]) -> list[str]:
    lines = [f"## {table.name}", "", f"{table.title}.", ""]
    if outcome is None:
        lines += [f"Not run at `small`, which is: {table.scales['small'].says}", ""]
    else:
        lines += _found(table, outcome)
        if picture:
            lines += [f"![Scores against virtual time]({table.name}.png)", ""]
    readings = [reading for reading in table.readings if reading not in shared]
    if readings:
        lines += ["How the paper was read:", "", *(f"* {reading}" for reading in readings), ""]
    if table.remarks:
        lines += ["Remarks:", "", *(f"* {remark}" for remark in table.remarks), ""]
    return lines


def _settings(table: Reproduction, outcome: Stored) -> str:
    """Return what was run; an early outcome does not say it, so these are the settings of today."""
    settings: str = outcome.get("settings", table.scales[outcome["scale"]].says)
    return settings


def _found(table: Reproduction, outcome: Stored) -> list[str]:
    seeds = f" Seeds {', '.join(map(str, outcome['seeds']))}." if outcome["seeds"] else ""
    lines = [
        f"`archipel reproduce {table.name} --scale {outcome['scale']}`: {_settings(table, outcome)}{seeds} "
        f"{outcome['seconds'] / 60:.1f} minutes on {outcome['cores']} cores.",
        "",
    ]
    if scored_earlier(table.name, outcome):
        lines += [EARLIER, ""]
    lines += ["| claim | verdict | figures |", "| --- | --- | --- |"]
    for claim in outcome["claims"]:
        lines.append(f"| {_cell(claim['claim'])} | **{JUDGED[claim['holds']]}** | {_cell(claim['why'])} |")
    lines.append("")
    for paper_table in table.tables:
        if paper_table.title in outcome["tables"]:
            lines += _table(paper_table, outcome["tables"][paper_table.title])
        else:
            lines += [f"{paper_table.title}: not in this outcome; it has to be run again.", ""]
    return lines


def _table(table: PaperTable, cells: Mapping[str, Mapping[str, Stored]]) -> list[str]:
    lines = [
        f"{table.title}:",
        "",
        "| | " + " | ".join(_cell(column.name) for column in table.columns) + " |",
        "| --- |" + " --- |" * len(table.columns),
    ]
    for row in table.rows:
        known = cells.get(row.name, {})
        shown = (_shown(known.get(column.name), column.digits) for column in table.columns)
        lines.append(f"| {_cell(row.name)} | " + " | ".join(shown) + " |")
    return [*lines, ""]


def _shown(cell: Stored | None, digits: int) -> str:
    if cell is None:  # it was added to the table after the outcome
        return "to be run"
    ours = Spread(_number(cell["ours"]), _number(cell["deviation"]), cell["n"]) if "ours" in cell else None
    paper, mine, difference = FigureCell(cell["paper"], ours).shown(digits)
    if ours is not None and ours.n:
        mine = f"**{mine}**"
    return f"{paper or '–'}; {mine}" + (f" ({difference})" if difference else "")


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for file, text in pages(Path(sys.argv[1])).items():
        write_text(Path(sys.argv[1]) / file, text)
    write_text(FILE, written(verdicts(Path(sys.argv[1]))))

"""docs/papers.md from what was found: `python -m archipel.papers.document docs/papers > docs/papers.md`.

The folder has the reproduction.json of every table that was run, as <name>.json, and its curves, as <name>.png. Figures
come from there, words from the reproduction; nothing is typed in by hand, and a test keeps the page so.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archipel.papers.catalogue import NAMES, reproduction
from archipel.papers.outcome import SCORING
from archipel.papers.reproduction import JUDGED, FigureCell, PaperTable, Reproduction
from archipel.report.measures import Spread

HEAD = """# The papers' tables

This page is generated (`python -m archipel.papers.document docs/papers > docs/papers.md`) from the outcomes in
[papers/](papers) and the words of the reproductions themselves, and a test keeps it so.

`archipel reproduce NAME` runs a table of a paper from the study files that are checked in beside
[the code](../src/archipel/papers), prints the paper's figures beside ours and says whether the paper's claim,
the ordering and the rough size of the gap, holds. `--scale smoke` shows in seconds that it runs, `small` is what is
reported here, `full` is the paper's own budget and was not run here. What was begun is gone on with.

At `small`, networks, samples and rounds are fewer than in the papers, so that our figures are not theirs; what is
compared is who is ahead of whom, and by how much. A score is a run's final one: the mean over the last fifth of its
local rounds, or of its virtual time where it ended by time, each version counting as long as it was the current one
([0038](decisions/0038-the-final-score.md)); then the mean over seeds (± the sample deviation).
"""
EARLIER = "the mean of each run's last five evaluations, which disfavours methods that commit seldom"
"""How scores were taken in outcomes that do not say it."""


def document(folder: Path) -> str:
    """The page."""
    found = {name: json.loads(path.read_text()) for name in NAMES if (path := folder / f"{name}.json").exists()}
    pieces = [HEAD, *_earlier(found), _summary(found)]
    paper = ""
    for name in NAMES:
        one = reproduction(name)
        if one.paper != paper:
            paper = one.paper
            pieces.append(f"## {paper}\n")
        pieces.append(_section(one, found.get(name), (folder / f"{name}.png").exists()))
    return "\n".join(pieces)


def stands_from_earlier(name: str, told: Mapping[str, Any]) -> bool:
    """Whether an outcome's figures rest on scores that were taken in another way than today's."""
    return reproduction(name).scored and told.get("scoring") != SCORING


def _earlier(found: Mapping[str, Any]) -> list[str]:
    names = [f"[{name}](#{name})" for name, told in found.items() if stands_from_earlier(name, told)]
    if not names:
        return []
    return [
        f"**Not scored so yet**: {', '.join(names)}. Their figures and verdicts stand from an earlier way of scoring, "
        f"{EARLIER}, and so do their remarks. The outcomes hold no curves to score anew; they have to be run again.\n"
    ]


def _summary(found: Mapping[str, Any]) -> str:
    lines = ["| table | claim | |", "| --- | --- | --- |"]
    for name in NAMES:
        claims = found[name]["claims"] if name in found else []
        for place, told in enumerate(claims):
            label = f"[{name}](#{name})" if not place else ""
            way = " (earlier scoring)" if stands_from_earlier(name, found[name]) else ""
            lines.append(f"| {label} | {_cell(told['claim'])} | {JUDGED[told['holds']]}{way} |")
        if name not in found:
            lines.append(f"| [{name}](#{name}) | | not run at `small` yet |")
    return "\n".join(lines) + "\n"


def _section(one: Reproduction, told: Mapping[str, Any] | None, picture: bool) -> str:
    lines = [f"### {one.name}", "", f"{one.title}.", ""]
    scale = one.scales["small" if told is None else told["scale"]]
    if told is None:
        lines += [f"Not run at `small` yet, which is: {scale.says}", ""]
    else:
        seeds = f" Seeds {', '.join(map(str, told['seeds']))}." if told["seeds"] else ""
        lines += [
            f"`archipel reproduce {one.name} --scale {told['scale']}`: {scale.says}{seeds} "
            f"{told['seconds'] / 60:.1f} minutes on {told['cores']} cores.",
            "",
        ]
        if stands_from_earlier(one.name, told):
            lines += [f"Scored in an earlier way, by {EARLIER}; it has to be run again.", ""]
        for table in one.tables:
            if table.title in told["tables"]:
                lines += _table(table, told["tables"][table.title])
            else:
                lines += [f"{table.title}: not in this outcome; it has to be run again.", ""]
        for claim in told["claims"]:
            lines.append(f"* **{JUDGED[claim['holds']]}**: {claim['claim']} ({claim['why']})")
        lines.append("")
        if picture:
            lines += [f"![Scores against virtual time](papers/{one.name}.png)", ""]
    if one.readings:
        lines += ["How the paper was read:", "", *(f"* {reading}" for reading in one.readings), ""]
    if one.remarks:
        lines += ["Remarks:", "", *(f"* {remark}" for remark in one.remarks), ""]
    return "\n".join(lines)


def _table(table: PaperTable, cells: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = [
        f"{table.title}; in each cell the paper's figure, ours, and the difference:",
        "",
        "| | " + " | ".join(_cell(column.name) for column in table.columns) + " |",
        "| --- |" + " --- |" * len(table.columns),
    ]
    for row in table.rows:
        told = (_shown(cells[row.name][column.name], column.digits) for column in table.columns)
        lines.append(f"| {_cell(row.name)} | " + " | ".join(told) + " |")
    return [*lines, ""]


def _shown(told: Mapping[str, Any], digits: int) -> str:
    ours = Spread(_number(told["ours"]), _number(told["deviation"]), told["n"]) if "ours" in told else None
    paper, mine, difference = FigureCell(told["paper"], ours).shown(digits)
    if ours is not None and ours.n:
        mine = f"**{mine}**"
    return f"{paper or '–'}; {mine}" + (f" ({difference})" if difference else "")


def _number(told: float | None) -> float:
    return math.nan if told is None else told


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(document(Path(sys.argv[1])))

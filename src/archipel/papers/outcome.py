"""Compute the paper's figures beside ours, and whether its claims hold."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from archipel.core.checks import require
from archipel.drawing.style import save
from archipel.papers.finished_runs import PICTURES, FinishedRuns
from archipel.papers.kept_scores import keep_scores
from archipel.papers.reproduction import Claim, ClaimVerdict, FigureCell, Figures, PaperTable, Reproduction
from archipel.papers.studies import ScaleName
from archipel.papers.study_curves import draw
from archipel.report.measures import real
from archipel.runs.versions import versions
from archipel.storage.atomic_files import write_text
from archipel.study import stopwatch
from archipel.study.results import Watcher
from archipel.study.worker_pool import cores

FILE = "reproduction.json"
SCORING = "final scores over the last fifth of the budget"
"""How scores were taken, told in every outcome: figures of another way do not compare."""


@dataclass(frozen=True)
class Outcome:
    reproduction: Reproduction
    scale: ScaleName
    folder: Path
    seeds: Sequence[int]
    seconds: float
    figures: tuple[Figures, ...]
    verdicts: tuple[tuple[Claim, ClaimVerdict], ...]


def reproduce(
    reproduction: Reproduction,
    scale: ScaleName,
    folder: Path,
    *,
    processes: int | None = None,
    watcher: Watcher | None = None,
) -> Outcome | None:
    """Run or resume a reproduction and compare it with the paper; return None if it was stopped or a run failed."""
    evidence = FinishedRuns(reproduction, scale, folder)
    look_whether_ours(evidence)
    if not evidence.gather(processes, watcher):
        return None
    figures = {table.title: Figures(table, _cells(table, evidence)) for table in reproduction.tables}
    verdicts = tuple((claim, claim.judge(figures, evidence)) for claim in reproduction.claims)
    if scale == "smoke":  # a round or two decide nothing, whatever the figures happen to be
        verdicts = tuple((claim, replace(verdict, holds=None)) for claim, verdict in verdicts)
    outcome = Outcome(
        reproduction,
        scale,
        folder,
        evidence.seeds(),
        stopwatch.seconds_spent(folder),
        tuple(figures.values()),
        verdicts,
    )
    keep_scores(evidence)
    drawing = draw(evidence) if PICTURES else None
    if drawing is not None:
        save(drawing, folder)
    write_text(folder / FILE, json.dumps(as_data(outcome), indent=2, ensure_ascii=False) + "\n")
    return outcome


def look_whether_ours(evidence: FinishedRuns) -> None:
    """Refuse a folder that holds something else."""
    folder = evidence.folder
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    begun = sorted(folder.glob("*/study.toml"))
    require(
        bool(begun) or (folder / stopwatch.FILE).exists(),
        f"{folder} is there already, and no reproduction was begun in it. Give another folder.",
    )
    for path in begun:
        held, mine = tomllib.loads(path.read_text(encoding="utf-8"))["title"], evidence.title(path.parent.name)
        require(held == mine, f"{folder} holds {held!r}, and {mine!r} would stand beside it. Give another folder.")


def _cells(table: PaperTable, evidence: FinishedRuns) -> Mapping[tuple[str, str], FigureCell]:
    cells = {}
    for row in table.rows:
        for place, column in enumerate(table.columns):
            part, method, measure = table.picked(row, column)
            run = not part or (evidence.has(part) and (not method or bool(evidence.runs(part, method))))
            ours = measure(evidence, part, method) if run else None
            cells[row.name, column.name] = FigureCell(row.paper[place] if row.paper else None, ours)
    return cells


def as_data(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as JSON data: figures, and what was run; other words are the reproduction's."""
    return {
        "name": outcome.reproduction.name,
        "scale": outcome.scale,
        "settings": outcome.reproduction.scales[outcome.scale].says,
        "seeds": list(outcome.seeds),
        "scoring": SCORING,
        "seconds": round(outcome.seconds, 1),
        "cores": cores(),
        "versions": versions(),
        "tables": {
            one.table.title: {
                row.name: {column.name: _told(one.cells[row.name, column.name]) for column in one.table.columns}
                for row in one.table.rows
            }
            for one in outcome.figures
        },
        "claims": [
            {"claim": claim.text, "holds": verdict.holds, "why": verdict.why} for claim, verdict in outcome.verdicts
        ],
    }


def _told(cell: FigureCell) -> dict[str, Any]:
    if cell.ours is None:  # this scale does not run it
        return {"paper": cell.paper}
    ours, deviation = real(cell.ours.mean), real(cell.ours.deviation)  # none where no run has such a number
    return {"paper": cell.paper, "ours": ours, "deviation": deviation, "n": cell.ours.n}

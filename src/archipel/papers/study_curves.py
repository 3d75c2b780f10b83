"""Draw the scores of all studies of a reproduction, a panel for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipel.drawing.drawing import Drawing
from archipel.drawing.lines import HEADER, MEANS, draw_lines, mean_line
from archipel.drawing.style import TIME, legend_below, look, panels, title
from archipel.papers.finished_runs import FinishedRuns
from archipel.runs.grouping import groups
from archipel.runs.score_curves import curves

if TYPE_CHECKING:
    from matplotlib.lines import Line2D


@look()
def draw(evidence: FinishedRuns) -> Drawing | None:
    """Draw every method's score against virtual time; return None if nothing was scored."""
    scored = {part.name: [run for run in evidence.results(part.name) if curves(run)] for part in evidence.trained()}
    scored = {part: runs for part, runs in scored.items() if runs}
    if not scored:
        return None
    methods = list(dict.fromkeys(method for runs in scored.values() for method in groups(runs)))
    figure, axes = panels(len(scored), 2.5)
    handles: dict[str, Line2D] = {}
    rows: list[tuple[object, ...]] = []
    for panel, (part, runs) in zip(axes, scored.items(), strict=True):
        lines = {method: mean_line([curves(run)[TIME] for run in own]) for method, own in groups(runs).items()}
        handles |= draw_lines(panel, lines, methods)
        rows += [(part, method, *point) for method, line in lines.items() for point in line.rows()]
        title(panel, part)
        panel.set_xlabel(TIME)
        panel.set_ylabel(runs[0].metric.replace("_", " "))
    legend_below(figure, list(handles.values()), list(handles))
    return Drawing(
        "curves",
        evidence.studies.title,
        f"Scores against virtual time, a panel for each study. {MEANS}",
        figure,
        ("study", "method", TIME, *HEADER),
        tuple(rows),
    )

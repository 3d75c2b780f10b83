"""Draw what the versions of a run with differential privacy reveal: epsilon along the commits."""

from __future__ import annotations

from collections.abc import Sequence

from archipel.core.records import PrivacySpent
from archipel.drawing.drawing import Drawing
from archipel.drawing.lines import HEADER, MEANS, draw_lines, mean_line
from archipel.drawing.style import legend_below, look, panels
from archipel.runs.grouping import groups
from archipel.runs.run import Run

PROTECTED = {"learner": "whole learners", "example": "single examples (the largest of all learners)"}
"""What a method protects, in words."""


@look()
def privacy_budget(runs: Sequence[Run]) -> Drawing | None:
    """Draw epsilon of every method along its commits; None if no method adds noise."""
    methods = groups(runs)
    lines = {method: mean_line(found) for method, own in methods.items() if (found := curves(own))}
    if not lines:
        return None
    spent = [record for run in runs for _, record in run.of(PrivacySpent)]
    deltas, of = sorted({record.delta for record in spent}), {record.of for record in spent}
    whose = " and ".join(said for kind, said in PROTECTED.items() if kind in of)
    figure, (panel,) = panels(1, 3.1)
    handles = draw_lines(panel, lines, list(methods))
    panel.set_xlabel("commits")
    panel.set_ylabel("epsilon")
    panel.set_ylim(bottom=0)
    legend_below(figure, list(handles.values()), list(handles))
    return Drawing(
        "privacy-budget",
        "Privacy budget",
        f"Epsilon of the versions so far, for {whose}, at delta {', '.join(f'{delta:g}' for delta in deltas)}: "
        "the smaller, the less any of them reveals. Where no draw hides who took part, it is "
        "that of the learner that contributed most often."
        + (f" {MEANS}" if any(len(own) > 1 for own in methods.values()) else ""),
        figure,
        ("method", "commits", *HEADER),
        tuple((method, *point) for method, line in lines.items() for point in line.rows()),
    )


def curves(runs: Sequence[Run]) -> list[dict[float, float]]:
    """Return {version: epsilon} of the runs that have any."""
    found = [{float(record.version): record.epsilon for _, record in run.of(PrivacySpent)} for run in runs]
    return [curve for curve in found if curve]

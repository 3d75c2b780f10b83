"""Draw all figures of a report, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from archipel.drawing.drawing import Drawing
from archipel.report.class_maps import class_heat_maps
from archipel.report.cycles import validation_cycles
from archipel.report.gantt import gantt
from archipel.report.layer_divergence import layer_divergence
from archipel.report.privacy_budget import privacy_budget
from archipel.report.shadows import shadows
from archipel.report.staleness import staleness
from archipel.report.traffic import bytes_by_layer, traffic
from archipel.report.weights import weights
from archipel.runs.run import Run
from archipel.runs.score_curves import scores

FIGURES: tuple[Callable[[Sequence[Run]], Drawing | None], ...] = (
    scores,
    gantt,
    traffic,
    bytes_by_layer,
    staleness,
    validation_cycles,
    weights,
    layer_divergence,
    shadows,
    privacy_budget,
    class_heat_maps,
)


def draw_all(runs: Sequence[Run]) -> list[Drawing]:
    """Draw the figures for which these runs have data."""
    return [drawing for figure in FIGURES if (drawing := figure(runs)) is not None]

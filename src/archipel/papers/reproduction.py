"""The parts of a reproduction: studies, the paper's table, and the paper's claims about it.

A cell of a table lies where a row and a column meet. Each may say which study, which method and which measure it is
about; where both are silent, the table says it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from archipel.core.checks import require
from archipel.papers.studies import ScaledStudies

if TYPE_CHECKING:
    from archipel.papers.finished_runs import FinishedRuns
    from archipel.report.measures import Spread

Measure: TypeAlias = "Callable[[FinishedRuns, str, str], Spread | None]"
"""A figure over the runs of one method in one study: (evidence, study, method); None where this scale has none."""
JUDGED = {True: "holds", False: "does not hold", None: "not judged"}
"""A verdict in words."""


@dataclass(frozen=True)
class PaperColumn:
    name: str
    part: str | None = None
    method: str | None = None
    measure: Measure | None = None
    digits: int = 1
    """Decimals that are shown."""


@dataclass(frozen=True)
class PaperRow:
    name: str
    paper: tuple[float | None, ...] = ()
    """The paper's figures, one for each column; None where it has none. Without any, the row is ours alone."""
    part: str | None = None
    method: str | None = None
    measure: Measure | None = None


@dataclass(frozen=True)
class PaperTable:
    title: str
    columns: tuple[PaperColumn, ...]
    rows: tuple[PaperRow, ...]
    part: str = ""
    method: str = ""
    measure: Measure | None = None

    def __post_init__(self) -> None:
        for row in self.rows:
            require(
                len(row.paper) in (0, len(self.columns)),
                f"{self.title}: {row.name} has {len(row.paper)} figures of the paper for {len(self.columns)} columns.",
            )

    def picked(self, row: PaperRow, column: PaperColumn) -> tuple[str, str, Measure]:
        """Return the study, the method and the measure of a cell."""
        part = row.part or column.part or self.part
        method = row.method or column.method or self.method
        measure = row.measure or column.measure or self.measure
        assert measure is not None, f"{self.title}: no measure for {row.name}, {column.name}"
        return part, method, measure


@dataclass(frozen=True)
class FigureCell:
    """The paper's figure and ours."""

    paper: float | None
    ours: Spread | None
    """None where this scale does not run it."""

    def shown(self, digits: int) -> tuple[str, str, str]:
        """Return the paper's figure, ours with its deviation, and their difference, as text."""
        paper = "" if self.paper is None else f"{self.paper:,.{digits}f}"
        if self.ours is None:
            return paper, "not run", ""
        if not self.ours.n:
            return paper, "not reached", ""
        ours = f"{self.ours.mean:,.{digits}f}"
        if self.ours.n > 1:
            ours += f" ± {self.ours.deviation:,.{digits}f}"
        return paper, ours, "" if self.paper is None else f"{self.ours.mean - self.paper:+,.{digits}f}"


@dataclass(frozen=True)
class Figures:
    """All cells of one table, by row and column."""

    table: PaperTable
    cells: Mapping[tuple[str, str], FigureCell]

    def ours(self, row: str, column: str) -> float | None:
        """Return our mean, if there is one."""
        spread = self.cells[row, column].ours
        return spread.mean if spread is not None and spread.n else None


@dataclass(frozen=True)
class ClaimVerdict:
    """The result of a claim."""

    holds: bool | None
    """None: it could not be judged."""
    why: str
    """With the figures."""


@dataclass(frozen=True)
class Claim:
    """What the paper says about its table, and how it is judged on ours."""

    text: str
    judge: Callable[[Mapping[str, Figures], FinishedRuns], ClaimVerdict]
    """From the figures of each table, by its title, and the runs themselves."""


@dataclass(frozen=True, kw_only=True)
class Reproduction(ScaledStudies):
    """A table or figure of a paper with its studies and claims."""

    paper: str
    tables: tuple[PaperTable, ...]
    claims: tuple[Claim, ...]
    readings: tuple[str, ...] = ()
    """How open points of the paper were read, and what differs from the paper at every scale."""
    remarks: tuple[str, ...] = ()
    """What explains our figures, and what was known when settings were chosen; figures are in the outcome."""
    scored: bool = True
    """Whether its figures are computed from final scores, or from settings that were chosen by them."""

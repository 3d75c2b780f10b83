"""What a reproduction is: studies that are run, the paper's table, and what the paper claims of it.

A cell of a table lies where a row and a column meet. Each may say which study, which method and which measure it is
about; where both are silent, the table says it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from archipel.core.checks import require

if TYPE_CHECKING:
    from archipel.papers.evidence import Evidence
    from archipel.report.measures import Spread

Measure: TypeAlias = "Callable[[Evidence, str, str], Spread | None]"
"""A figure over the runs of one method in one study: (evidence, study, method); None where this scale has none."""
ScaleName: TypeAlias = Literal["smoke", "small", "full"]
JUDGED = {True: "holds", False: "does not hold", None: "not judged"}
"""A verdict in words."""


@dataclass(frozen=True)
class Part:
    """One study: a checked-in file, and what this part of the table changes in it."""

    name: str
    file: str
    """Beside the module that names it."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key, as after `--set`: {"data.split.sizes": "powerlaw"}."""
    trained: bool = True
    """False: only its data are looked at, and nothing is run."""


@dataclass(frozen=True)
class Scale:
    """How much of it is run."""

    says: str
    """Cells, network, samples, rounds and seeds, in words."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """In every study."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """In the studies of this file, after those."""
    parts: tuple[str, ...] | None = None
    """Studies that are run, by name; None: all."""


@dataclass(frozen=True)
class Column:
    name: str
    part: str | None = None
    method: str | None = None
    measure: Measure | None = None
    digits: int = 1
    """Decimals that are shown."""


@dataclass(frozen=True)
class Row:
    name: str
    paper: tuple[float | None, ...] = ()
    """The paper's figures, one for each column; None where it has none. Without any, the row is ours alone."""
    part: str | None = None
    method: str | None = None
    measure: Measure | None = None


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    part: str = ""
    method: str = ""
    measure: Measure | None = None

    def __post_init__(self) -> None:
        for row in self.rows:
            require(
                len(row.paper) in (0, len(self.columns)),
                f"{self.title}: {row.name} has {len(row.paper)} figures of the paper for {len(self.columns)} columns.",
            )

    def picked(self, row: Row, column: Column) -> tuple[str, str, Measure]:
        """The study, the method and the measure of a cell."""
        part = row.part or column.part or self.part
        method = row.method or column.method or self.method
        measure = row.measure or column.measure or self.measure
        assert measure is not None, f"{self.title}: no measure for {row.name}, {column.name}"
        return part, method, measure


@dataclass(frozen=True)
class Cell:
    """The paper's figure and ours."""

    paper: float | None
    ours: Spread | None
    """None where this scale does not run it."""

    def shown(self, digits: int) -> tuple[str, str, str]:
        """The paper's figure, ours with its deviation, and how far apart they are, as text."""
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

    table: Table
    cells: Mapping[tuple[str, str], Cell]

    def ours(self, row: str, column: str) -> float | None:
        """Our mean, if there is one."""
        spread = self.cells[row, column].ours
        return spread.mean if spread is not None and spread.n else None


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    holds: bool | None
    """None: it could not be judged."""
    why: str
    """With the figures."""


@dataclass(frozen=True)
class Claim:
    """What the paper says of its table, and how it is judged on ours."""

    text: str
    judge: Callable[[Mapping[str, Figures], Evidence], Verdict]
    """From the figures of each table, by its title, and the runs themselves."""


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of a paper."""

    name: str
    paper: str
    title: str
    folder: Path
    """Where the study files are."""
    parts: tuple[Part, ...]
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...]
    scales: Mapping[ScaleName, Scale]
    readings: tuple[str, ...] = ()
    """How what the paper leaves open was read, and what is other than in the paper at every scale."""
    remarks: tuple[str, ...] = ()
    """What was found, where we differ, and what was tried."""
    scored: bool = True
    """Its figures rest on final scores, or on settings that were chosen by them."""

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        require(len(set(names)) == len(names), f"{self.name}: two parts have the same name.")
        for scale in self.scales.values():
            unknown = set(scale.parts or ()) - set(names) | set(scale.files) - {part.file for part in self.parts}
            require(not unknown, f"{self.name}: there is no part or file {', '.join(sorted(unknown))}.")

    def parts_at(self, scale: ScaleName) -> tuple[Part, ...]:
        wanted = self.scales[scale].parts
        return tuple(part for part in self.parts if wanted is None or part.name in wanted)

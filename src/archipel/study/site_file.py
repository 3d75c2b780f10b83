"""Read a site file: the rules of a learner's operator, which nobody else can change."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from archipel.core.checks import require
from archipel.federation.learner.policy import ROWS, Probes, SiteRules
from archipel.study.arguments import StudyTable
from archipel.study.files import in_lines
from archipel.study.formats import read_file
from archipel.study.own_code import ApprovedCode

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class SiteTable(StudyTable):
    """Rules of one site. They narrow what the study allows, and never widen it."""

    min_rows: Annotated[int, Field(ge=ROWS)] = ROWS
    """Examples that the learner must have for training, and that an update must rest on (steps times batch)."""
    min_scored_rows: Annotated[int, Field(ge=1)] = 1
    """Examples that the validation or the test part must have; models are not evaluated on a smaller part."""
    min_batch: Annotated[int, Field(ge=1)] = 1
    """Smallest batch that the study may train with."""
    max_questions: Annotated[int, Field(ge=0)] | None = None
    """Models that may be evaluated on the learner's data in the whole run; default: as many as the study needs."""
    refuse: tuple[Probes, ...] = ()
    """Questions that are not answered, as with `--refuse`."""
    max_epsilon: Annotated[float, Field(gt=0)] | None = None
    """Largest epsilon of any example in the whole run; the study has to use LocalNoise, or SecureSum with noise. Where
    LocalNoise's noise follows from the budget it is raised, else the learner takes part in fewer tasks."""
    code: dict[str, Sha256] | None = None
    """Code files beside the study that may run, each with its SHA-256, as `sha256sum` prints it. Other code is refused,
    `--allow-code` or not; an empty table refuses all. Default: as without a site file."""


@dataclass(frozen=True)
class SiteFile:
    """The contents of a site file."""

    rules: SiteRules = field(default_factory=SiteRules)
    code: ApprovedCode | None = None


def read_site(path: Path) -> SiteFile:
    """Return the rules in a TOML file; raise one error with a line for each mistake."""
    require(path.suffix == ".toml", f"{path}: a site file ends in .toml, got {path.suffix or 'no ending'!r}.")
    require(path.exists(), f"There is no site file {path}.")
    raw, lines = read_file(path)
    try:
        table = SiteTable.model_validate(raw)
    except ValidationError as error:
        raise in_lines(error, raw, str(path), lines) from None
    rules = SiteRules(
        table.min_rows,
        table.min_scored_rows,
        table.min_batch,
        table.max_questions,
        frozenset(table.refuse),
        table.max_epsilon,
    )
    return SiteFile(rules, None if table.code is None else ApprovedCode(tuple(sorted(table.code.items()))))

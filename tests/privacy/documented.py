"""The tables of docs/explanation/noise-and-secure-sums.md: what each method is said to do with a mechanism."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scipy.stats import hypergeom

from archipel import algorithms
from archipel.core.parts import Equally
from archipel.core.parts.privacy import Privacy
from archipel.privacy.secure_sum.graph import colluding, degree, share_threshold

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "explanation" / "noise-and-secure-sums.md"
HOW_TO = DOCS / "how-to" / "differential-privacy.md"


def check_table(mechanism: Privacy, *, weighting: bool) -> None:
    """Try every method; weighting: the table is about methods that weigh learners alike, where they can."""
    told = methods_told(PAGE, mechanism)
    told |= {name: told["radfed"] for name in algorithms.__all__ if name.startswith("radfed")}
    for name, said in told.items():
        method = getattr(algorithms, name)(**({"split": 1} if "split" in said else {}))
        if weighting and not said.startswith("refused: weights"):
            method = replace(method, weighting=Equally())
        try:
            replace(method, privacy=mechanism)
            refused = ""
        except ValueError as error:
            refused = str(error)
        assert bool(refused) == said.startswith("refused"), f"{name}: {refused}"
    assert set(algorithms.__all__) - told.keys() == {"local_only", "centralised"}


def methods_told(page: Path, mechanism: Privacy) -> dict[str, str]:
    """Return what a page says of each method with a mechanism."""
    table = page.read_text().split(f"| method | with `{type(mechanism).__name__}` |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (.*) \| (.*) \|$", table, re.MULTILINE)
    return {name: said for cell, said in rows for name in re.findall(r"`(\w+)`", cell) if name in algorithms.__all__}


def refused_rows() -> list[tuple[str, str]]:
    """The table of docs/how-to/differential-privacy.md: a value that is given, and what is said."""
    table = HOW_TO.read_text().split("| given | said |")[1].split("\n\n")[0]
    return re.findall(r"^\| `(.*)` \| (.*) \|$", table, re.MULTILINE)


def neighbour_rows(threshold: float = 0.75) -> Iterator[str]:
    """The table of docs/explanation/secure-sums.md, for cohorts of several sizes."""
    for cohort in (3, 10, 64, 100, 300, 1000, 10_000):
        neighbours = degree(cohort, threshold)
        needed, most = share_threshold(neighbours, threshold), colluding(neighbours, threshold)
        cells = [f"{cohort:,}", str(neighbours), str(needed), str(most)]
        cells += [_tries(cohort, neighbours, most, share) for share in (0.05, 0.1, 0.2)]
        lost = cohort * hypergeom.sf(neighbours + 1 - needed, cohort - 1, cohort // 10, neighbours)
        yield f"| {' | '.join(cells)} | {'none' if lost < 1e-12 else f'{lost:.0e}'} |"


def _tries(cohort: int, neighbours: int, most: int, share: float) -> str:
    """Rings that a controller has to try until somebody has too many colluding neighbours."""
    colluders = int(share * cohort)
    if colluders <= most:
        return "never"
    return f"2^{-math.log2(cohort) - hypergeom.logsf(most, cohort - 1, colluders, neighbours) / math.log(2):.0f}"

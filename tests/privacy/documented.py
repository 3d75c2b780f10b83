"""The tables of docs/explanation/noise-and-secure-sums.md: what each method is said to do with a mechanism."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy.stats import hypergeom

from archipel import algorithms
from archipel.core.parts import ByExamples, ByFreshness, CentralNoise, Equally, LocalNoise, Product, SecureSum
from archipel.core.parts.privacy import Privacy
from archipel.core.parts.weighting import Weighting
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


MECHANISMS: dict[str, Privacy] = {
    "`CentralNoise`": CentralNoise(noise=1.0),
    "`LocalNoise`": LocalNoise(noise=1.0),
    "`SecureSum`": SecureSum(),
    "`SecureSum(noise=...)`": SecureSum(noise=1.0, clip=0.5),
}
WAYS: dict[str, tuple[dict[str, Any], dict[type, Weighting]]] = {
    "yes": ({}, {}),
    "`Equally()`": ({}, {ByExamples: Equally()}),
    "given split": ({"split": 1}, {}),
    "given split, `Equally()`": ({"split": 1}, {ByExamples: Equally()}),
    "`ByFreshness()`": ({}, {Product: ByFreshness("exp")}),
}
"""What a method may need: settings of its constructor, and another weighting in place of its own."""
NO_BATCH_NORM = ("fedbn", "`LocalNoise`")
"""Refused when the network is known."""


def mechanism_rows() -> Iterator[str]:
    """The table of docs/explanation/privacy.md: every method with every mechanism, methods of equal rows together."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in algorithms.__all__:
        if name not in ("local_only", "centralised"):  # nothing is sent
            rows.setdefault(tuple(_goes_with(name, mechanism) for mechanism in MECHANISMS), []).append(name)
    yield f"| method | {' | '.join(MECHANISMS)} |"
    yield f"| --- |{' --- |' * len(MECHANISMS)}"
    for cells, names in rows.items():
        yield f"| {', '.join(f'`{name}`' for name in names)} | {' | '.join(cells)} |"


def _goes_with(name: str, mechanism: str) -> str:
    """Return what a method needs to go with a mechanism, or "no"."""
    if (name, mechanism) == NO_BATCH_NORM:
        return "no"
    for way, (settings, weightings) in WAYS.items():
        try:
            method = getattr(algorithms, name)(**settings)
            weighting = method.weighting
            if "ByConsistency" not in repr(weighting):  # which makes the method what it is
                weighting = weightings.get(type(weighting), weighting)
            replace(method, privacy=MECHANISMS[mechanism], weighting=weighting)
        except (TypeError, ValueError):  # it has no such setting, or refuses it
            continue
        return way
    return "no"


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


if __name__ == "__main__":
    page = DOCS / "explanation" / "privacy.md"
    before, rest = page.read_text().split("<!-- mechanisms -->\n\n")
    after = rest.split("\n\n", 1)[1]
    page.write_text(before + "<!-- mechanisms -->\n\n" + "\n".join(mechanism_rows()) + "\n\n" + after)

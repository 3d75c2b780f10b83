"""Claims about a table, and whether they hold on ours: orderings, and the rough size of gaps.

A claim is judged row by row on our means, in the unit of the table. Where the side that something is compared with has
not left its plateau (`floor`: a score that guessing reaches), nothing is judged; the verdict says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from archipel.papers.figure_measures import paired
from archipel.papers.finished_runs import FinishedRuns
from archipel.papers.reproduction import Claim, ClaimVerdict, Figures

NOTHING = (None, "")
"""What is found where a side was not run, or did not reach what was asked for."""


def higher(
    text: str,
    table: str,
    column: str,
    than: Sequence[str] | str,
    *,
    rows: Sequence[str] | None = None,
    by: float = 0.0,
    floor: float | None = None,
    share: float = 1.0,
) -> Claim:
    """Claim that a column is above all others named, by at least `by` (0: at all), in a share of the rows."""
    others = (than,) if isinstance(than, str) else tuple(than)

    def look(figures: Figures, row: str) -> tuple[bool | None, str]:
        mine, theirs = figures.ours(row, column), {other: figures.ours(row, other) for other in others}
        known = {other: value for other, value in theirs.items() if value is not None}
        if mine is None or not known:
            return NOTHING
        first = max(known, key=known.__getitem__)
        best = known[first]
        told = f"{row}: {column} {mine:.4g}, {first} {best:.4g}"
        if floor is not None and best < floor:
            return None, f"{told}, which is still guessing"
        return _ahead(mine - best, by), told

    return _each_row(text, table, rows, share, look)


def level(
    text: str,
    table: str,
    column: str,
    other: str,
    *,
    within: float,
    rows: Sequence[str] | None = None,
    share: float = 1.0,
) -> Claim:
    """Claim that two columns differ by no more than a limit."""

    def look(figures: Figures, row: str) -> tuple[bool | None, str]:
        mine, theirs = figures.ours(row, column), figures.ours(row, other)
        if mine is None or theirs is None:
            return NOTHING
        return abs(mine - theirs) <= within, f"{row}: {mine:.1f} and {theirs:.1f}"

    return _each_row(text, table, rows, share, look)


def best_higher(text: str, table: str, columns: Sequence[str], than: Sequence[str], *, rows: Sequence[str]) -> Claim:
    """Claim that the best of some columns is above the best of others."""

    def look(figures: Figures, row: str) -> tuple[bool | None, str]:
        sides = []
        for side in (columns, than):
            known = {column: value for column in side if (value := figures.ours(row, column)) is not None}
            if not known:
                return NOTHING
            sides.append(max(known.items(), key=lambda item: item[1]))
        (mine, best), (other, theirs) = sides
        return best > theirs, f"{row}: {mine} {best:.4g}, {other} {theirs:.4g}"

    return _each_row(text, table, rows, 1.0, look)


def rising(text: str, table: str, columns: Sequence[str]) -> Claim:
    """Claim that each of these columns is above the one before it, in every row."""

    def look(figures: Figures, row: str) -> tuple[bool | None, str]:
        known = [value for column in columns if (value := figures.ours(row, column)) is not None]
        if len(known) < len(columns):
            return NOTHING
        rises = all(later > earlier for earlier, later in pairwise(known))
        return rises, f"{row}: {', '.join(f'{value:.4g}' for value in known)}"

    return _each_row(text, table, None, 1.0, look)


def near_paper(
    text: str, table: str, column: str, *, within: float, rows: Sequence[str] | None = None, share: float = 1.0
) -> Claim:
    """Claim that our figure and the paper's differ by no more than a limit."""

    def look(figures: Figures, row: str) -> tuple[bool | None, str]:
        mine, paper = figures.ours(row, column), figures.cells[row, column].paper
        if mine is None or paper is None:
            return NOTHING
        return abs(mine - paper) <= within, f"{row}: {mine:.4g}, in the paper {paper:.4g}"

    return _each_row(text, table, rows, share, look)


def above(text: str, table: str, column: str, limit: float, *, rows: Sequence[str] | None = None) -> Claim:
    """Claim that a column is at least at a limit."""

    def look(figures: Figures, row: str) -> tuple[bool | None, str]:
        mine = figures.ours(row, column)
        return NOTHING if mine is None else (mine >= limit, f"{row}: {mine:.4g}")

    return _each_row(text, table, rows, 1.0, look)


def below(text: str, table: str, column: str, limit: float, *, rows: Sequence[str]) -> Claim:
    """Claim that a column stays below a limit, as of a method that fails to learn."""

    def look(figures: Figures, row: str) -> tuple[bool | None, str]:
        mine = figures.ours(row, column)
        return NOTHING if mine is None else (mine < limit, f"{row}: {mine:.1f}")

    return _each_row(text, table, rows, 1.0, look)


def higher_rows(text: str, table: str, column: str, *, rows: Sequence[str], than: Sequence[str]) -> Claim:
    """Claim that a column is higher in each of these rows than in any of those."""

    def look(figures: Figures, row: str) -> tuple[bool | None, str]:
        mine, theirs = figures.ours(row, column), [figures.ours(other, column) for other in than]
        known = [value for value in theirs if value is not None]
        if mine is None or not known:
            return NOTHING
        return mine > max(known), f"{row}: {mine:.4g} against {max(known):.4g}"

    return _each_row(text, table, rows, 1.0, look)


def significant(
    text: str, parts: Sequence[str], method: str, than: Sequence[str], *, level: float = 0.05, pairs: int = 6
) -> Claim:
    """Claim that a method is above the others by the two-sided Wilcoxon signed-rank test over all paired runs.

    With fewer than six pairs no difference can be significant at 0.05, so nothing is judged.
    """

    def look(evidence: FinishedRuns, other: str) -> tuple[bool | None, str]:
        # imported late: it takes a second, and only finished runs need it
        from scipy.stats import wilcoxon

        differences = [
            mine - theirs
            for part in parts
            if evidence.has(part)
            for mine, theirs in paired(evidence, part, method, other)
        ]
        if len(differences) < pairs:
            return None, f"{other}: {len(differences)} pairs of runs"
        found = float(wilcoxon(differences).pvalue)
        median = 100 * statistics.median(differences)
        told = f"{other}: median {median:+.1f} in {len(differences)} pairs, p = {found:.4f}"
        return median > 0 and found < level, told

    def judge(tables: Mapping[str, Figures], evidence: FinishedRuns) -> ClaimVerdict:
        return _together([look(evidence, other) for other in than], 1.0)

    return Claim(text, judge)


def rows_higher(
    text: str,
    table: str,
    row: str,
    than: Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    by: float = 0.0,
    floor: float | None = None,
    lower: bool = False,
) -> Claim:
    """Claim that a row is above (with `lower`, below) all others named, in every column; a row is a method."""

    def judge(tables: Mapping[str, Figures], evidence: FinishedRuns) -> ClaimVerdict:
        figures = tables[table]
        seen: list[tuple[bool | None, str]] = []
        for column in columns or [one.name for one in figures.table.columns]:
            mine, theirs = figures.ours(row, column), [figures.ours(other, column) for other in than]
            known = [value for value in theirs if value is not None]
            if mine is None or not known:
                seen.append(NOTHING)
                continue
            best = min(known) if lower else max(known)
            told = f"{column}: {mine:.4g} against {best:.4g}"
            if floor is not None and best < floor:
                seen.append((None, f"{told}, which is still guessing"))
            else:
                seen.append((_ahead(best - mine if lower else mine - best, by), told))
        return _together(seen, 1.0)

    return Claim(text, judge)


def _ahead(gap: float, by: float) -> bool:
    """Return whether a lead is `by` or more; with 0 a tie is no lead, and a negative `by` allows a deficit."""
    return gap >= by if by else gap > 0


def _each_row(
    text: str,
    table: str,
    rows: Sequence[str] | None,
    share: float,
    look: Callable[[Figures, str], tuple[bool | None, str]],
) -> Claim:
    def judge(tables: Mapping[str, Figures], evidence: FinishedRuns) -> ClaimVerdict:
        figures = tables[table]
        return _together([look(figures, row) for row in rows or [one.name for one in figures.table.rows]], share)

    return Claim(text, judge)


def _together(seen: Sequence[tuple[bool | None, str]], share: float) -> ClaimVerdict:
    """Return one verdict over all rows that could be judged."""
    judged = [holds for holds, _ in seen if holds is not None]
    marks = {True: "", False: " (no)", None: " (not judged)"}
    told = [f"{told}{marks[holds]}" for holds, told in seen if told]
    missing = len(seen) - len(told)
    if missing:
        told.append(f"{missing} of {len(seen)} have no figure at this scale")
    why = "; ".join(told)
    if not judged:
        return ClaimVerdict(None, why)
    return ClaimVerdict(sum(judged) >= share * len(judged), why)

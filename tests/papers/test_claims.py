"""Orderings and gaps, judged on tables that are made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from archipel.papers import claims
from archipel.papers.reproduction import Claim, FigureCell, Figures, PaperColumn, PaperRow, PaperTable
from archipel.report.measures import Spread


def figures(**rows: tuple[float, float]) -> dict[str, Figures]:
    table = PaperTable("t", (PaperColumn("a"), PaperColumn("b")), tuple(PaperRow(name) for name in rows))
    cells = {
        (name, column): FigureCell(None, Spread(value, float("nan"), 1))
        for name, values in rows.items()
        for column, value in zip("ab", values, strict=True)
    }
    return {"t": Figures(table, cells)}


def holds(claim: Claim, tables: dict[str, Figures]) -> bool | None:
    return claim.judge(tables, None).holds  # type: ignore[arg-type]  # these do not look at the runs


def test_an_ordering_with_a_gap() -> None:
    assert holds(claims.higher("", "t", "a", "b", by=5), figures(x=(50, 45), y=(60, 50)))
    assert not holds(claims.higher("", "t", "a", "b", by=6), figures(x=(50, 45), y=(60, 50)))
    assert holds(claims.higher("", "t", "a", "b", by=6, share=0.5), figures(x=(50, 45), y=(60, 50)))
    assert holds(claims.higher("", "t", "a", "b", by=6, rows=("y",)), figures(x=(50, 45), y=(60, 50)))


def test_a_tie_is_no_lead() -> None:
    assert not holds(claims.higher("", "t", "a", "b"), figures(x=(50, 50)))
    assert holds(claims.higher("", "t", "a", "b", by=-1), figures(x=(50, 51)))
    assert not holds(claims.rows_higher("", "t", "x", ("y",), lower=True), figures(x=(50, 50), y=(50, 50)))


def test_nothing_is_judged_against_one_that_guesses() -> None:
    assert holds(claims.higher("", "t", "a", "b", floor=20), figures(x=(50, 10))) is None
    assert not holds(claims.higher("", "t", "a", "b", floor=20), figures(x=(50, 10), y=(30, 40)))


def test_level_and_below() -> None:
    assert holds(claims.level("", "t", "a", "b", within=2), figures(x=(50, 48.5)))
    assert not holds(claims.level("", "t", "a", "b", within=1), figures(x=(50, 48.5)))
    assert holds(claims.below("", "t", "b", 20, rows=("x",)), figures(x=(50, 12)))


def test_the_best_of_some_columns_against_the_best_of_others() -> None:
    told = {
        "t": Figures(THREE, {("x", name): FigureCell(None, Spread(value, 0.0, 2)) for name, value in CELLS.items()})
    }
    assert holds(claims.best_higher("", "t", ("a", "c"), ("b",), rows=("x",)), told), "c, not a, is compared"
    assert not holds(claims.best_higher("", "t", ("a",), ("b", "c"), rows=("x",)), told)
    assert not holds(claims.best_higher("", "t", ("b",), ("b",), rows=("x",)), told), "a tie is no lead"
    verdict = claims.best_higher("", "t", ("a", "c"), ("b",), rows=("x",)).judge(told, None)  # type: ignore[arg-type]
    assert verdict.why == "x: c 3, b 2"


THREE = PaperTable("t", (PaperColumn("a"), PaperColumn("b"), PaperColumn("c")), (PaperRow("x"),))
CELLS = {"a": 1.0, "b": 2.0, "c": 3.0}


def test_columns_that_rise() -> None:
    assert holds(claims.rising("", "t", ("a", "b")), figures(x=(1, 2), y=(3, 4)))
    assert not holds(claims.rising("", "t", ("b", "a")), figures(x=(1, 2), y=(3, 4)))
    assert not holds(claims.rising("", "t", ("a", "b")), figures(x=(1, 2), y=(3, 3))), "a tie is no rise"


def test_rows_against_rows() -> None:
    told = figures(best=(70, 3), other=(60, 5))
    assert holds(claims.rows_higher("", "t", "best", ("other",), columns=("a",), by=10), told)
    assert holds(claims.rows_higher("", "t", "best", ("other",), columns=("b",), lower=True), told)
    assert not holds(claims.rows_higher("", "t", "other", ("best",), columns=("a",)), told)
    assert holds(claims.higher_rows("", "t", "a", rows=("best",), than=("other",)), told)
    assert not holds(claims.higher_rows("", "t", "b", rows=("best",), than=("other",)), told)


def test_beside_the_papers_figure() -> None:
    table = PaperTable("t", (PaperColumn("a"),), (PaperRow("x", (50.0,)), PaperRow("y")))
    cells = {("x", "a"): FigureCell(50.0, Spread(48.0, 0.0, 2)), ("y", "a"): FigureCell(None, Spread(1.0, 0.0, 2))}
    told = {"t": Figures(table, cells)}
    assert holds(claims.near_paper("", "t", "a", within=2), told), "a row without a figure of the paper is passed over"
    assert not holds(claims.near_paper("", "t", "a", within=1), told)
    assert holds(claims.above("", "t", "a", 48, rows=("x",)), told)
    assert not holds(claims.above("", "t", "a", 48), told)


def test_what_was_not_run_is_counted_and_not_judged() -> None:
    table = PaperTable("t", (PaperColumn("a"), PaperColumn("b")), (PaperRow("x"),))
    nothing = {
        "t": Figures(table, {("x", "a"): FigureCell(None, None), ("x", "b"): FigureCell(None, Spread(1.0, 0.0, 2))})
    }
    verdict = claims.higher("", "t", "a", "b").judge(nothing, None)  # type: ignore[arg-type]
    assert verdict.holds is None
    assert verdict.why == "1 of 1 have no figure at this scale"


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1, 2, 3, 4, 5, 6], True),  # all six of one sign: p = 2 / 2^6
        ([1, 2, 3, 4, 5, -6], False),
        ([-1, -2, -3, -4, -5, -6], False),
        ([1, 2, 3, 4, 5], None),
    ],
)
def test_significance_over_pairs(
    differences: list[float], expected: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(50.0 + one, 50.0) for one in differences]
    monkeypatch.setattr(claims, "paired", lambda *_: pairs)
    evidence = SimpleNamespace(has=lambda part: part == "there")
    claim = claims.significant("", ("there", "absent"), "a", ("b",))
    assert claim.judge({}, evidence).holds is expected  # type: ignore[arg-type]

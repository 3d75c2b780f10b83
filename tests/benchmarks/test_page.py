"""The pages on performance and reliability show the stored outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import page


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.name)
def test_the_tables_of_a_page_are_those_of_the_outcomes(path: Path) -> None:
    assert path.read_text() == page.page(path), "python -m benchmarks.page"


def test_every_outcome_has_a_place() -> None:
    marks = [name for path in page.PAGES for _, name, _ in page.MARKED.findall(path.read_text())]
    places = ["avx512", "avx2", "zoo", "adapters", "cluster", "start-up"]
    places += ["idle", "rounds", "splits", "commits"]
    assert marks == [*places, "federation", "peers"]


def test_verdicts_on_several_sizes_are_one_row() -> None:
    table = page.tables("avx512")
    (row,) = (line for line in table.splitlines() if "mean of triad" in line)
    assert row.count(": ") == 5  # sizes
    assert row.endswith("| **not reached** |")  # one of them is below 0.9

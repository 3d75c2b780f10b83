"""The page on performance shows the stored outcomes."""

from __future__ import annotations

from benchmarks import page


def test_the_tables_of_the_page_are_those_of_the_outcomes() -> None:
    text = page.PAGE.read_text()
    assert [name for _, name, _ in page.MARKED.findall(text)] == ["avx512", "avx2"]
    assert text == page.page(), "python -m benchmarks.page"


def test_verdicts_on_several_sizes_are_one_row() -> None:
    table = page.tables("avx512")
    (row,) = (line for line in table.splitlines() if "mean of triad" in line)
    assert row.count(": ") == 5  # sizes
    assert row.endswith("| **not reached** |")  # one of them is below 0.9

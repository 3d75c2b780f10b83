"""All reproductions, and the page that tells of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from archipel.papers.catalogue import NAMES, reproduction
from archipel.papers.document import document
from archipel.papers.evidence import Evidence


def test_a_name_that_is_not_there_says_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'dvw-table1'"):
        reproduction("dwv-table1")


@pytest.mark.parametrize("name", NAMES)
def test_every_reproduction_has_studies_that_are_valid_at_every_scale(name: str) -> None:
    one = reproduction(name)
    assert set(one.scales) == {"smoke", "small", "full"}
    assert one.claims
    for scale in one.scales:
        evidence = Evidence(one, scale, Path("nowhere"))
        for part in one.parts_at(scale):
            evidence.study(part)
    known = {part.name for part in one.parts}
    for table in one.tables:
        for row in table.rows:
            for column in table.columns:
                part, _, _ = table.picked(row, column)
                assert not part or part in known


def test_the_page_of_all_papers_is_the_one_that_was_generated() -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert (docs / "papers.md").read_text() == document(docs / "papers"), (
        "python -m archipel.papers.document docs/papers > docs/papers.md"
    )

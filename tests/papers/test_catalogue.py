"""All reproductions, and the page that tells of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from archipel.papers.catalogue import NAMES, reproduction
from archipel.papers.document import document
from archipel.papers.finished_runs import FinishedRuns
from archipel.papers.outcome import SCORING


def test_a_name_that_is_not_there_says_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'dvw-table1'"):
        reproduction("dwv-table1")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_reproduction_has_studies_that_are_valid_at_every_scale(name: str) -> None:
    one = reproduction(name)
    assert set(one.scales) == {"smoke", "small", "full"}
    assert one.claims
    for scale in one.scales:
        evidence = FinishedRuns(one, scale, Path("nowhere"))
        for part in one.parts_at(scale):
            evidence.study(part)
    known = {part.name for part in one.parts}
    for table in one.tables:
        for row in table.rows:
            for column in table.columns:
                part, _, _ = table.picked(row, column)
                assert not part or part in known


def test_outcomes_that_were_scored_in_another_way_say_so(tmp_path: Path) -> None:
    stored = Path(__file__).parents[2] / "docs" / "papers"
    for name, scored in (("hdafl-table3", True), ("dvw-fig9", False)):
        told = json.loads((stored / f"{name}.json").read_text())
        for scoring, earlier in ((None, scored), ("in some other way", scored), (SCORING, False)):
            (tmp_path / f"{name}.json").write_text(json.dumps({**told, "scoring": scoring}))
            page = document(tmp_path)
            assert ("holds (earlier scoring) |" in page) == earlier
            assert (f"**Not scored so yet**: [{name}](#{name}). Their" in page) == earlier
            assert page.count("has to be run again") == earlier
        (tmp_path / f"{name}.json").unlink()


def test_a_table_that_an_outcome_does_not_have_says_so(tmp_path: Path) -> None:
    told = json.loads((Path(__file__).parents[2] / "docs" / "papers" / "dvw-fig9.json").read_text())
    (title, *_) = told["tables"]
    del told["tables"][title]
    (tmp_path / "dvw-fig9.json").write_text(json.dumps(told))
    assert f"{title}: not in this outcome; it has to be run again." in document(tmp_path)


def test_the_page_of_all_papers_is_the_one_that_was_generated() -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert (docs / "papers.md").read_text() == document(docs / "papers"), (
        "python -m archipel.papers.document docs/papers > docs/papers.md"
    )

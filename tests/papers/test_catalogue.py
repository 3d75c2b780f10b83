"""All reproductions, and the page that lists them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from archipel.papers.catalogue import NAMES, reproduction
from archipel.papers.document import pages, verdicts
from archipel.papers.finished_runs import FinishedRuns
from archipel.papers.outcome import SCORING
from archipel.papers.verdicts import read

STORED = Path(__file__).parents[2] / "docs" / "papers"


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
                name, _, _ = table.picked(row, column)
                assert not name or name in known


def test_outcomes_that_were_scored_in_another_way_say_so(tmp_path: Path) -> None:
    for name, scored in (("hdafl-table3", True), ("dvw-fig9", False)):
        outcome = json.loads((STORED / f"{name}.json").read_text())
        page = f"{name.partition('-')[0]}.md"
        for scoring, earlier in ((None, scored), ("in some other way", scored), (SCORING, False)):
            (tmp_path / f"{name}.json").write_text(json.dumps({**outcome, "scoring": scoring}))
            written = pages(tmp_path)
            (row,) = (line for line in written["index.md"].splitlines() if line.startswith(f"| [{name}]"))
            assert row.endswith("| earlier |") == earlier
            assert ("**Earlier**" in written[page]) == earlier
        (tmp_path / f"{name}.json").unlink()


def test_a_table_that_an_outcome_does_not_have_says_so(tmp_path: Path) -> None:
    outcome = json.loads((STORED / "dvw-fig9.json").read_text())
    (title, *_) = outcome["tables"]
    del outcome["tables"][title]
    (tmp_path / "dvw-fig9.json").write_text(json.dumps(outcome))
    assert f"{title}: not in this outcome; it has to be run again." in pages(tmp_path)["dvw.md"]


def test_the_pages_of_the_papers_are_those_that_were_generated() -> None:
    stored = {path.name: path.read_text() for path in STORED.glob("*.md")}
    assert stored == pages(STORED), "python -m archipel.papers.document docs/papers"
    assert read() == verdicts(STORED), "python -m archipel.papers.document docs/papers"


def test_every_stored_figure_is_on_a_page() -> None:
    written = pages(STORED)
    for name in NAMES:
        if not (path := STORED / f"{name}.json").exists():
            continue
        outcome = json.loads(path.read_text())
        page = written[f"{name.partition('-')[0]}.md"]
        assert all(claim["why"].replace("|", "\\|") in page for claim in outcome["claims"])
        cells = [cell for table in outcome["tables"].values() for row in table.values() for cell in row.values()]
        assert page.count("**") >= 2 * sum(bool(cell.get("n")) for cell in cells)


@pytest.mark.parametrize("name", NAMES)
def test_remarks_quote_no_figure_of_ours(name: str) -> None:
    """Figures belong to outcomes, where a new run replaces them; a setting such as a rate of 0.5 may stand."""
    for remark in reproduction(name).remarks:
        assert not re.search(r"(?<![\w(])\d\d+\.\d", remark), remark

"""examples/attacks: its study runs, and its page is what was measured."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from archipel.study import read_study, run_study
from tests.measured_example import EXAMPLES, load_measure

FOLDER = EXAMPLES / "attacks"


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    return load_measure("attacks")


def test_the_page_is_what_was_measured(measure: ModuleType) -> None:
    known = measure.measured()
    found = {case: known[case] for case in measure.cases() if case in known}
    assert found.keys() == known.keys()
    assert measure.PAGE.read_text() == measure.page(found)


def test_cases_differ_and_merges_suit_them(measure: ModuleType) -> None:
    cases = list(measure.cases())
    assert len(cases) == len(set(cases))
    assert {case.share for case in cases} == {0.0, 0.1, 0.2, 0.3, 0.4}
    for case in cases:
        measure.algorithm(case)  # refuses what cannot be


@pytest.mark.slow
def test_a_case_is_measured_again_as_it_was(measure: ModuleType) -> None:
    known = measure.measured()
    cases = [case for case in known if (case.data, case.learners, case.share) == ("digits", 10, 0.2)]
    for case in cases[:: len(cases) // 3]:
        assert measure.measure(case) == pytest.approx(known[case], abs=0.03)


@pytest.mark.slow
def test_its_study_runs(tmp_path: Path) -> None:
    study = read_study(FOLDER / "study.toml", changes=["ending.rounds=3"])
    results = run_study(study, tmp_path / "results", processes=1)
    names = {run.name for run in results.runs}
    assert names == {"Mean", "NormClipped", "Median", "TrimmedMean", "Krum", "GeometricMedian"}

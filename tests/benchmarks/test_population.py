"""The benchmark of populations, with few learners: what it prints is measured, and the day has its report."""

from pathlib import Path

import pytest

from benchmarks import population

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:No learner has as many examples")]


def test_splits_rounds_and_commits_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    population.splits([60])
    population.rounds([200], seconds=0.01)
    population.commits(learners=10, count=40)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[:4]] == ["uniform", "power law", "Non-IID(3)", "dirichlet(1)"]
    assert "200 learners" in lines[4]
    assert [line.split()[0] for line in lines[5:]] == [str(4 * tenth) for tenth in range(1, 11)]


def test_a_simulated_day_has_absences_rounds_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    population.day(120, 10, 3600.0, tmp_path)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Learners at work" in page
    assert "At most 12 of 120 learners are shown" in page
    printed = capsys.readouterr().out
    assert "ended because time is up" in printed
    assert "120 learners, 1.0 h of virtual time" in printed

"""The benchmark of populations, with few learners: what it prints is measured, and the day has its report."""

import json
from pathlib import Path

import pytest

from benchmarks import population

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:No learner has as many examples")]


def test_splits_rounds_and_commits_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    splits = population.splits([60])
    (rounds,) = population.rounds([200], seconds=0.01, warm=300)
    long = population.commits(learners=10, count=40)
    assert [row["split"] for row in splits] == ["uniform", "power law", "Non-IID(3)", "dirichlet(1)"]
    assert rounds["learners"] == 200
    assert rounds["rounds a CPU second"] > 0
    assert [one["commits"] for one in long["tenths"]] == [4 * tenth for tenth in range(1, 11)]
    assert "200 learners" in capsys.readouterr().out


def test_what_is_measured_is_stored(tmp_path: Path) -> None:
    out = tmp_path / "rounds.json"
    population.main(["rounds", "--learners", "200", "--seconds", "0.01", "--warm", "300", "--out", str(out)])
    stored = json.loads(out.read_text())
    assert [row["learners"] for row in stored["rounds"]] == [200]
    assert {"machine", "load before", "load after"} <= stored.keys()


def test_a_simulated_day_has_absences_rounds_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    day = population.day(120, 10, 3600.0, tmp_path)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Learners at work" in page
    assert "At most 12 of 120 learners are shown" in page
    assert day["learners"] == 120
    assert day["versions"] > 0
    assert "ended because time is up" in capsys.readouterr().out

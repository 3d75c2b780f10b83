"""From studies to the paper's figures beside ours: a table that no paper has, on digits."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from archipel.papers import claims
from archipel.papers.figure_measures import amount, score
from archipel.papers.finished_runs import FinishedRuns
from archipel.papers.kept_scores import SCORES_FILE, read_scores
from archipel.papers.outcome import SCORING, as_data, reproduce
from archipel.papers.reproduction import FigureCell, PaperColumn, PaperRow, PaperTable, Reproduction
from archipel.papers.store import store
from archipel.papers.studies import Scale, StudyPart
from archipel.runs.final_score import final_score

STUDY = """
algorithms = ["fedavg", { name = "hdafl", fraction = 1.0 }]
[data]
source = "digits"
split = { learners = 4, test = "own" }
[training]
epochs = 1
batch = 32
rate = 0.1
[ending]
rounds = 20
[evaluation]
at = "learners"
mean = "learners"
"""

TABLE = PaperTable(
    "Scores",
    (PaperColumn("FedAvg", method="fedavg"), PaperColumn("HDAFL", method="hdafl")),
    (
        PaperRow("iid", (90.0, None), part="iid", measure=score()),
        PaperRow("disjoint", (20.0, 97.0), part="disjoint", measure=score()),
        PaperRow("rounds", part="iid", measure=amount("rounds")),
    ),
)


@pytest.fixture
def made(tmp_path: Path) -> Reproduction:
    (tmp_path / "study.toml").write_text(STUDY)
    return Reproduction(
        name="made-table1",
        paper="Nobody's",
        title="A table that no paper has",
        folder=tmp_path,
        parts=(
            StudyPart("iid", "study.toml", {"data.split.classes": "iid"}),
            StudyPart("disjoint", "study.toml", {"data.split.classes": "disjoint(2)", "data.split.learners": 5}),
        ),
        tables=(TABLE,),
        claims=(claims.higher("HDAFL is ahead", "Scores", "HDAFL", "FedAvg", rows=("disjoint",), by=1.0),),
        scales={
            "smoke": Scale("two rounds", {"ending.rounds": 2}),
            "small": Scale("one part", {"seeds": [0, 1]}, {"study.toml": {"ending.rounds": 3}}, ("iid",)),
        },
    )


@pytest.mark.slow
def test_the_papers_figures_stand_beside_ours(made: Reproduction, tmp_path: Path) -> None:
    outcome = reproduce(made, "smoke", tmp_path / "out", processes=1)
    assert outcome is not None
    (figures,) = outcome.figures
    cell = figures.cells["disjoint", "HDAFL"]
    run = FinishedRuns(made, "smoke", tmp_path / "out").runs("disjoint", "hdafl")[0]
    scores = [scores.metrics["accuracy"] for _, scores in run.scores if scores.version > 0]
    assert cell.paper == 97.0
    assert cell.ours is not None
    assert cell.ours.mean == pytest.approx(100 * scores[-1]), "of two rounds the last one"
    assert figures.ours("rounds", "FedAvg") == 2
    told = json.loads((tmp_path / "out" / "reproduction.json").read_text())
    assert told == json.loads(json.dumps(as_data(outcome)))
    assert told["tables"]["Scores"]["iid"]["FedAvg"]["paper"] == 90.0
    assert told["seeds"] == [0]
    assert told["scoring"] == SCORING


@pytest.mark.slow
def test_what_another_way_of_scoring_needs_is_kept(made: Reproduction, tmp_path: Path) -> None:
    """The final score of every run follows from the outcome alone, without the runs' own folders."""
    assert reproduce(made, "smoke", tmp_path / "out", processes=1) is not None
    evidence = FinishedRuns(made, "smoke", tmp_path / "out")
    kept = read_scores(tmp_path / "out" / SCORES_FILE)
    assert set(kept) == {"iid", "disjoint"}
    for part, runs in kept.items():
        assert len(runs) == len(list(evidence.results(part)))
        for told, run in zip(runs, evidence.results(part), strict=True):
            again: Any = SimpleNamespace(
                **{name: told[name] for name in ("metric", "budget", "rounds", "seconds")},
                versions=[(time, SimpleNamespace(version=v, rounds=r)) for time, v, r in told["commits"]],
                scores=[(0.0, SimpleNamespace(version=v, metrics={told["metric"]: s})) for v, s, _ in told["scores"]],
            )
            assert (told["method"], told["seed"]) == (run.name, run.seed)
            assert final_score(again) == run.final_score


@pytest.mark.slow
def test_an_outcome_is_put_beside_the_documents(made: Reproduction, tmp_path: Path) -> None:
    results, documents = tmp_path / "out", tmp_path / "documents"
    documents.mkdir()
    with pytest.raises(ValueError, match=r"has no reproduction\.json: no reproduction was finished in it"):
        store(results, documents)
    reproduce(made, "small", results, processes=1)
    store(results, documents)
    assert {path.name for path in documents.iterdir()} >= {"made-table1.json", "made-table1.scores.json.gz"}
    told = json.loads((results / "reproduction.json").read_text())
    (results / "reproduction.json").write_text(json.dumps({**told, "scale": "smoke"}))
    with pytest.raises(ValueError, match="at the scale 'smoke'; the documents show 'small'"):
        store(results, documents)


@pytest.mark.slow
def test_an_interrupted_reproduction_is_resumed(made: Reproduction, tmp_path: Path) -> None:
    first = reproduce(made, "smoke", tmp_path / "out", processes=1)
    stamp = (tmp_path / "out" / "iid" / "fedavg" / "seed-0" / "run.json").stat().st_mtime_ns
    again = reproduce(made, "smoke", tmp_path / "out", processes=1)
    assert first is not None
    assert again is not None
    assert (tmp_path / "out" / "iid" / "fedavg" / "seed-0" / "run.json").stat().st_mtime_ns == stamp
    assert again.seconds > first.seconds, "the time of both counts"
    assert as_data(again)["tables"] == as_data(first)["tables"]


@pytest.mark.slow
def test_a_scale_runs_what_it_names(made: Reproduction, tmp_path: Path) -> None:
    outcome = reproduce(made, "small", tmp_path / "out", processes=1)
    assert outcome is not None
    (figures,) = outcome.figures
    assert figures.cells["disjoint", "HDAFL"] == FigureCell(97.0, None)
    assert figures.ours("rounds", "HDAFL") == 3
    assert outcome.seeds == [0, 1]
    ((_, verdict),) = outcome.verdicts
    assert verdict.holds is None
    assert (tmp_path / "out" / "iid" / "report" / "index.html").exists()


def test_nothing_begins_before_the_data_of_all_studies_are_there(
    made: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHIPEL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    later = StudyPart("letters", "study.toml", {"data.source": "femnist"})
    with pytest.raises(FileNotFoundError, match="femnist: its files are not on this machine"):
        reproduce(replace(made, parts=(*made.parts, later)), "smoke", tmp_path / "out", processes=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_it_needs_no_matplotlib(made: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archipel.papers.finished_runs.PICTURES", False)
    monkeypatch.setattr("archipel.papers.outcome.PICTURES", False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = reproduce(made, "smoke", tmp_path / "out", processes=1)
    assert outcome is not None
    assert outcome.figures[0].ours("iid", "HDAFL") is not None
    assert not (tmp_path / "out" / "iid" / "report").exists()


@pytest.mark.slow
def test_a_smoke_run_decides_nothing(made: Reproduction, tmp_path: Path) -> None:
    sure = claims.higher("HDAFL is ahead", "Scores", "HDAFL", "FedAvg", rows=("disjoint",), by=-100.0)
    outcome = reproduce(replace(made, claims=(sure,)), "smoke", tmp_path / "out", processes=1)
    assert outcome is not None
    ((_, verdict),) = outcome.verdicts
    assert verdict.holds is None
    assert "FedAvg" in verdict.why

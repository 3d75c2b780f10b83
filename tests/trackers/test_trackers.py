"""Trackers by name, and rows of charts by hand numbers: no tool is needed for these."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import archipel as ap
from archipel.core.records import Divergence, Handed, Membership, Refused, Returned, Scores, Shadow, Stamped
from archipel.study.federate import Hosting
from archipel.trackers import TRACKERS, track, tracker
from archipel.trackers.tracker import ChartRow, Charts, totals
from tests.made_runs import written
from tests.trackers import tracked
from tests.trackers.tracked import MB, committed


def returned(*losses: float) -> Returned:
    return Returned(0, "a", 0, 1, 1.0, ("fc",), losses, False)


def rows(*records: tuple[float, Any]) -> list[ChartRow]:
    charts = Charts()
    made = [charts.row(Stamped(time, record)) for time, record in records]
    return [row for row in made if row is not None]


# ------------------------------------------------------------------------------------------------------------ rows


def test_a_commit_tells_who_contributed_how_stale_it_was_and_what_was_moved() -> None:
    commit = committed(1, 2, (0, 1, 5), train_up_bytes=2 * MB, train_up_models=9, score_down_bytes=4 * MB)
    (row,) = rows((7.5, commit))
    assert row.version == 1
    assert row.axes == {"axis/seconds": 7.5, "axis/rounds": 2, "axis/megabytes": 2}
    assert row.values == {
        "commit/contributors": 3,
        "commit/stale versions": 2,
        "commit/stale steps": 20,
        "commit/refused so far": 0,
        "megabytes/train up": 2,
        "megabytes/score down": 4,
    }


def test_norms_are_two_points_where_they_were_measured() -> None:
    (row,) = rows((1, replace(committed(1, stale=(0, 0, 0)), norms=(3.0, 1.0, 20.0))))
    assert (row.values["commit/median norm"], row.values["commit/largest norm"]) == (3.0, 20.0)


def test_losses_of_all_learners_since_the_last_commit_are_one_point() -> None:
    first, second, third = rows(
        (1, returned(4.0, 3.0, 1.0)),
        (1, returned(2.0, 1.0)),
        (1, returned()),
        (2, committed(1)),
        (3, committed(2)),
        (4, returned(0.5, 0.25)),
        (4, committed(3)),
    )
    assert (first.values["learners/loss before training"], first.values["learners/loss after training"]) == (3.0, 1.0)
    assert not any(chart.startswith("learners/") for chart in second.values)
    assert (third.values["learners/loss before training"], third.values["learners/loss after training"]) == (0.5, 0.25)


def test_refusals_are_counted_from_the_first_on() -> None:
    lost = Refused(3, "a", "lost")
    told = rows((0, lost), (1, committed(1)), (2, lost), (2, lost), (3, committed(2)), (4, committed(3)))
    assert [row.values["commit/refused so far"] for row in told] == [1, 3, 3]


def test_a_score_stands_where_its_version_does_even_when_it_comes_late() -> None:
    before, one, two, late = rows(
        (0, Scores(0, 0, {"accuracy": 0.1, "loss": 2.3}, 5, 1)),
        (3, committed(1, 1, train_up_bytes=MB)),
        (4, committed(2, 2, train_up_bytes=3 * MB)),
        (4.5, Scores(1, 1, {"accuracy": 0.5}, 5, 1)),
    )
    assert before.values == {"score/accuracy": 0.1, "score/loss": 2.3}
    assert before.axes == {"axis/seconds": 0, "axis/rounds": 0, "axis/megabytes": 0}
    assert (late.version, late.values) == (1, {"score/accuracy": 0.5})
    assert late.axes == one.axes == {"axis/seconds": 3, "axis/rounds": 1, "axis/megabytes": 1}
    assert [row.first for row in (before, one, two, late)] == [True, True, True, False]
    assert "axis/seconds" in one.points
    assert late.points == late.values, "the axes are told once a version"


def test_a_divergence_that_a_layer_does_not_have_is_no_point() -> None:
    values = (0.25, math.nan, 0.5)
    _, row = rows((1, committed(1)), (1, Divergence(1, ("fc", "head", "."), values, "cosine", None)))
    assert row.values == {"divergence/layer fc": 0.25, "divergence/layer .": 0.5}


def test_the_divergence_between_learners_is_the_mean_over_the_rounds_of_a_commit() -> None:
    told = rows(
        (1, Shadow(1, None, 0.25)),
        (2, committed(1)),
        (2, Shadow(2, 0.75, 0.5)),
        (3, committed(2)),
        (3, Shadow(3, 1.5, None)),
    )
    shadows = [(row.version, row.values) for row in told if "divergence/DC" in row.values]
    assert shadows == [(1, {"divergence/DC": 0.75, "divergence/DL": 0.375}), (2, {"divergence/DC": 1.5})]


def test_what_nobody_charts_makes_no_row() -> None:
    assert (
        rows((0, Membership("a", True)), (0, Handed(0, "a", 0, 0)), (1, returned(1.0)), (1, Shadow(1, None, 1.0))) == []
    )


def test_records_that_do_not_begin_at_the_beginning_are_refused() -> None:
    with pytest.raises(ValueError, match=r"version 31 was recorded after version 0.*from its first record on"):
        rows((5, committed(31)))


@pytest.mark.slow
@pytest.mark.parametrize("make", [tracked.stream, tracked.relay])
def test_the_same_records_make_the_charts_that_the_runs_lists_tell(make: Any) -> None:
    run = make()
    found: dict[str, dict[int, float]] = {}
    for row in rows(*((stamped.time, stamped.record) for stamped in run.records)):
        for chart, value in row.points.items():
            assert row.version not in found.setdefault(chart, {})
            found[chart][row.version] = value
    assert found == {
        chart: points for chart, points in tracked.charts_of(run).items() if not chart.startswith("final/")
    }
    assert totals(run) == tracked.final_of(run)


# --------------------------------------------------------------------------------------------------------- by name


def test_a_misspelt_name_gets_the_nearest_one() -> None:
    with pytest.raises(
        ValueError, match=r"one of tensorboard, mlflow, wandb, opentelemetry, got 'mlfow'\. Did you mean 'mlflow'"
    ):
        tracker("mlfow")


@pytest.mark.parametrize(
    ("name", "module"),
    [
        *(("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")),
        ("opentelemetry", "opentelemetry.sdk.trace"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # Python's own way to say that it is not there
    with pytest.raises(ImportError) as caught:
        tracker(name)
    assert str(caught.value) == f"tracking with {name} needs {name}: pip install '.[{name}]' in the source folder"


def test_every_tracker_has_a_name() -> None:
    assert list(TRACKERS) == ["tensorboard", "mlflow", "wandb", "opentelemetry"]


class Notebook:
    """A tracker that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def begin(self, name: str, settings: Any, folder: Path) -> None:
        self.heard += [name, settings, folder]

    def record(self, stamped: Stamped) -> None:
        self.heard.append(stamped)

    def end(self, run: ap.Run | None) -> None:
        self.heard.append(run)


@pytest.mark.slow
def test_a_finished_run_is_told_from_beginning_to_end(tmp_path: Path) -> None:
    run, notebook = tracked.relay(), Notebook()
    track(run, notebook, str(tmp_path))
    settings = {"algorithm": run.algorithm, "seed": 0}
    assert notebook.heard == ["radfed", settings, tmp_path, *run.records, run]


def test_a_federations_run_is_sent_and_a_tracker_that_fails_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Notebook):
        def begin(self, *_: object) -> None:
            raise RuntimeError("the server is gone")

    notebook = Notebook()
    monkeypatch.setitem(TRACKERS, "mlflow", Broken)
    monkeypatch.setitem(TRACKERS, "tensorboard", lambda: notebook)
    hosting: Any = SimpleNamespace(study=SimpleNamespace(trackers=("mlflow", "tensorboard")))
    run = written([0.1, 0.2])
    assert Hosting.tell_trackers(hosting, run, tmp_path) == ["mlflow did not receive the run: the server is gone"]
    assert notebook.heard[-1] is run

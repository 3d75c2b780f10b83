"""What is MLflow's own, in its SQLite store: parameters, states, artefacts, and how many requests a run takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from archipel.core.records import Stamped
from archipel.trackers import track, tracker
from tests.packages import needs_package
from tests.trackers import tracked

pytestmark = [pytest.mark.slow, needs_package("mlflow"), needs_package("sqlalchemy")]


def stored(folder: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient().get_run((folder / "mlflow-run-id").read_text())


def test_settings_words_and_files_are_kept(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    run, listener = tracked.relay(), tracker("mlflow")
    run.save(tmp_path)
    many = {f"key.{place}": place for place in range(150)}  # MLflow takes 100 at once
    listener.begin("a name", {**tracked.SETTINGS, **many}, tmp_path)
    listener.end(run)
    kept = stored(tmp_path)
    assert kept.info.run_name == "a name"
    assert kept.data.params == {key: str(value) for key, value in {**tracked.SETTINGS, **many}.items()}
    assert kept.data.tags["reason"] == run.reason
    assert kept.data.tags["fingerprint"] == run.fingerprint()
    assert run.summary() in kept.data.tags["mlflow.note.content"]
    assert MlflowClient().get_experiment(kept.info.experiment_id).name == "archipel"
    assert sorted(file.path for file in MlflowClient().list_artifacts(kept.info.run_id)) == [
        "model.safetensors",
        "run.json",
    ]
    fetched = MlflowClient().download_artifacts(kept.info.run_id, "model.safetensors", str(tmp_path))
    assert Path(fetched).read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_a_finished_run_becomes_a_version_in_the_registry_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("ARCHIPEL_MLFLOW_MODEL", "digits")
    run = tracked.relay()
    run.save(tmp_path)
    for _ in range(2):
        track(run, tracker("mlflow"), tmp_path)
    (version,) = MlflowClient().search_model_versions("name = 'digits'")
    assert version.run_id == (tmp_path / "mlflow-run-id").read_text()
    assert str(version.source).endswith("/model.safetensors")
    assert version.tags["fingerprint"] == run.fingerprint()
    assert version.tags["version"] == str(len(run.commits))


def test_a_stopped_run_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of somebody")
    listener = tracker("mlflow")
    states = []
    for ending in (None, tracked.relay()):
        listener.begin("a name", {}, tmp_path)
        states.append((stored(tmp_path).info.status, stored(tmp_path).info.end_time))
        listener.end(ending)
        states.append((stored(tmp_path).info.status, stored(tmp_path).info.end_time))
    *before, (state, ended) = states
    assert before == [("RUNNING", None), ("KILLED", None), ("RUNNING", None)]
    assert state == "FINISHED"
    assert ended is not None
    experiment = MlflowClient().get_experiment_by_name("of somebody")
    assert experiment is not None
    assert len(MlflowClient().search_runs([experiment.experiment_id])) == 1, "both times it is the same run"


def test_the_time_of_a_point_is_the_start_and_the_runs_own_seconds(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    run = tracked.relay()
    track(run, tracker("mlflow"), tmp_path)
    start, points = stored(tmp_path).info, MlflowClient().get_metric_history(stored(tmp_path).info.run_id, "score/loss")
    assert [p.timestamp - start.start_time for p in points] == [round(1000 * time) for time, _ in run.scores]


def test_a_run_that_the_store_does_not_have_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "mlflow-run-id").write_text("0" * 32)
    with pytest.raises(ValueError, match=r"the store has no run 0{32}.*Set MLFLOW_TRACKING_URI.*or remove that file"):
        tracker("mlflow").begin("a name", {}, tmp_path)


def requests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on, how many metrics each request has; none is sent."""
    sizes: list[int] = []

    def count(client: Any, run_id: str, metrics: Sequence[object] = (), **_: Any) -> None:
        sizes.append(len(metrics))

    monkeypatch.setattr("mlflow.MlflowClient.log_batch", count)
    return sizes


def test_the_first_points_show_at_once_and_a_long_run_takes_few_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = tracker("mlflow")
    listener.begin("a name", {}, tmp_path)
    sizes = requests(monkeypatch)
    for version in range(1, 2001):
        listener.record(Stamped(float(version), tracked.committed(version)))
        if version == 1:
            assert sizes == [7], "four numbers of the commit and three axes"
    listener.end(None)
    assert sum(sizes) == 2000 * 7
    assert max(sizes) <= 1000, "MLflow takes no more at once"
    assert len(sizes) < 100


def test_points_that_the_store_has_are_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tracked.stream()
    track(run, tracker("mlflow"), tmp_path)
    sizes = requests(monkeypatch)
    track(run, tracker("mlflow"), tmp_path)
    assert sum(sizes) == 0

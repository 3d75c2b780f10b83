"""What is Weights & Biases' own, offline: numbered rows, settings, states, files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from archipel.trackers import track, tracker
from tests.packages import needs_package
from tests.trackers import tracked

pytestmark = [pytest.mark.slow, needs_package("wandb")]


def kinds(folder: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for record in tracked.wandb_records(folder):
        kind = record.WhichOneof("record_type")
        found.setdefault(kind, []).append(getattr(record, kind))
    return found


def test_settings_words_and_files_are_kept(tmp_path: Path) -> None:
    run, listener = tracked.relay(), tracker("wandb")
    run.save(tmp_path)
    listener.begin("a name", tracked.SETTINGS, tmp_path)
    listener.end(run)
    told = kinds(tmp_path)
    (begun,) = told["run"]
    assert (begun.project, begun.display_name) == ("archipel", "a name")
    assert begun.run_id == (tmp_path / "wandb-run-id").read_text()
    config = {update.key: json.loads(update.value_json) for update in begun.config.update}
    del config["_wandb"]
    assert config == {**tracked.SETTINGS, "data.sizes": "[60, 60]"}
    summary = {
        update.key or update.nested_key[0]: json.loads(update.value_json)
        for part in told["summary"]
        for update in part.update
    }
    assert (summary["reason"], summary["fingerprint"]) == (run.reason, run.fingerprint())
    (artefact,) = told["artifact"]
    files = {entry.path: (entry.size, entry.local_path) for entry in artefact.manifest.contents}
    assert files == {
        name: ((tmp_path / name).stat().st_size, str(tmp_path / name)) for name in ("run.json", "model.safetensors")
    }


def test_any_axis_can_be_chosen_and_rows_are_numbered(tmp_path: Path) -> None:
    run = tracked.stream()
    track(run, tracker("wandb"), tmp_path)
    told = kinds(tmp_path)
    assert {(metric.glob_name or metric.name, metric.step_metric) for metric in told["metric"]} >= {
        ("version", ""),
        ("*", "version"),
    }
    rows = [{item.nested_key[0]: json.loads(item.value_json) for item in row.item} for row in told["history"]]
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    stands = {commit.version: (time, commit.rounds) for time, commit in run.commits} | {0: (0, 0)}
    assert [(row["axis/seconds"], row["axis/rounds"]) for row in rows] == [stands[row["version"]] for row in rows]


def test_a_stopped_run_is_not_finished(tmp_path: Path) -> None:
    listener = tracker("wandb")
    listener.begin("a name", {}, tmp_path)
    listener.end(None)
    told = kinds(tmp_path)
    assert len(told["preempting"]) == 1
    assert [told.exit_code for told in told["exit"]] == [1]
    listener.begin("a name", {}, tmp_path)
    listener.end(tracked.relay())
    told = kinds(tmp_path)  # of the only folder: the one that was cut off is gone
    assert [told.exit_code for told in told["exit"]] == [0]
    assert "preempting" not in told


def test_rows_that_the_server_has_are_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a run that was resumed online, which has the number of its next row from the server."""
    sent: list[tuple[int, dict[str, float]]] = []
    server = SimpleNamespace(
        id="abc",
        starting_step=5,
        define_metric=lambda *_, **__: None,
        log=lambda row, step: sent.append((step, row)),
    )
    run = tracked.relay()
    whole = tracker("wandb")
    track(run, whole, tmp_path / "whole")
    rows = [
        {item.nested_key[0]: json.loads(item.value_json) for item in row.item}
        for row in kinds(tmp_path / "whole")["history"]
    ]
    listener = tracker("wandb")
    monkeypatch.setattr("wandb.init", lambda **_: server)
    listener.begin("a name", {}, tmp_path / "rest")
    for stamped in run.records:
        listener.record(stamped)
    own = [(row["_step"], {key: value for key, value in row.items() if not key.startswith("_")}) for row in rows]
    assert len(own) > 5
    assert sent == own[5:]

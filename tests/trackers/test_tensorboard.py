"""What is TensorBoard's own: event files, wall times, and its table of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archipel.trackers import track, tracker
from tests.packages import needs_package
from tests.trackers import tracked

pytestmark = [pytest.mark.slow, needs_package("tensorboard")]


def sessions(folder: Path) -> dict[str, Any]:
    """What the table of settings knows of a run."""
    from tensorboard.plugins.hparams.metadata import parse_session_end_info_plugin_data as end
    from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data as start

    parsers = {"_hparams_/session_start_info": start, "_hparams_/session_end_info": end}
    contents = tracked.events(folder).PluginTagToContent("hparams")
    return {tag: parsers[tag](content) for tag, content in contents.items() if tag in parsers}


def test_the_wall_time_is_the_runs_own(tmp_path: Path) -> None:
    run = tracked.relay()
    track(run, tracker("tensorboard"), tmp_path)
    scores = tracked.events(tmp_path).Scalars("score/accuracy")
    assert [event.wall_time for event in scores] == [time for time, _ in run.scores]


def test_settings_and_the_last_words_are_shown(tmp_path: Path) -> None:
    run, listener = tracked.relay(), tracker("tensorboard")
    listener.begin("a name", tracked.SETTINGS, tmp_path)
    listener.end(run)
    told = sessions(tmp_path)
    settings = told["_hparams_/session_start_info"].hparams
    assert settings["algorithm.name"].string_value == "of a test"
    assert settings["algorithm.rate"].number_value == 0.5
    assert settings["shadow"].number_value == 1, "torch tells truths as numbers"
    assert settings["data.sizes"].string_value == "[60, 60]"
    assert "_hparams_/session_end_info" in told
    texts = tracked.events(tmp_path)
    (summary,) = texts.Tensors("summary/text_summary")
    (line,) = summary.tensor_proto.string_val
    assert [part.strip() for part in line.decode().splitlines()] == [
        part.strip() for part in run.summary().splitlines()
    ]


def test_a_stopped_run_is_not_finished(tmp_path: Path) -> None:
    listener = tracker("tensorboard")
    listener.begin("a name", {}, tmp_path)
    listener.end(None)
    assert list(sessions(tmp_path)) == ["_hparams_/session_start_info"]
    track(tracked.relay(), tracker("tensorboard"), tmp_path)
    assert list(sessions(tmp_path)) == ["_hparams_/session_start_info", "_hparams_/session_end_info"]


def test_a_tensorboard_that_is_open_forgets_what_it_has_read_of_a_run_that_was_cut_off(tmp_path: Path) -> None:
    run, listener = tracked.relay(), tracker("tensorboard")
    listener.begin("a name", {}, tmp_path)
    for stamped in run.records[:-10]:
        listener.record(stamped)
    listener.end(None)
    watching = tracked.events(tmp_path)
    before = len(watching.Scalars("axis/seconds"))
    track(run, tracker("tensorboard"), tmp_path)
    watching.Reload()
    assert before > 1
    assert [event.step for event in watching.Scalars("axis/seconds")] == list(range(len(run.commits) + 1))

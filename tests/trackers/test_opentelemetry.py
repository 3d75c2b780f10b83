"""Tasks as spans of OpenTelemetry: each once, with its times, under the run; the same ids when a run is sent again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archipel.core.records import Committed, Handed, Refused
from archipel.trackers import track
from archipel.trackers.opentelemetry import TRACE_ID, OpenTelemetry
from tests.live.scenes import HOSTILE, film_run
from tests.packages import needs_package

pytestmark = [needs_package("opentelemetry")]


def sent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    monkeypatch.setattr(OpenTelemetry, "_exporter", lambda self: exporter)
    track(film_run(), OpenTelemetry(), folder)
    return list(exporter.get_finished_spans())


def test_every_task_and_version_is_a_span_under_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, spans = film_run(), sent(tmp_path, monkeypatch)
    (root,) = [span for span in spans if span.parent is None]
    assert root.name == "fedavg"
    assert root.end_time - root.start_time == 6 * 10**9
    assert all(span.parent.span_id == root.context.span_id for span in spans if span is not root)
    tasks = {span.attributes["task"]: span for span in spans if span.name == "task"}
    assert tasks.keys() == {handed.task for _, handed in run.of(Handed)}
    assert len([span for span in spans if span.name == "version"]) == len(run.of(Committed))
    first = tasks[2]
    assert (first.start_time - root.start_time, first.end_time - root.start_time) == (0, 2 * 10**9)
    assert first.attributes["learner"] == HOSTILE
    ((_, refused),) = run.of(Refused)
    assert tasks[refused.task].status.description == refused.reason
    assert tasks[1].status.is_ok or tasks[1].status.is_unset


def test_a_run_that_is_sent_again_has_the_same_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = (
        {(span.context.trace_id, span.context.span_id, span.start_time) for span in sent(tmp_path, monkeypatch)}
        for _ in range(2)
    )
    assert first == again
    assert len(first) == 8
    assert {f"{trace:032x}" for trace, _, _ in first} == {(tmp_path / TRACE_ID).read_text()}

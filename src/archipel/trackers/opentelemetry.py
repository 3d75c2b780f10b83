"""OpenTelemetry: a run is a trace, its tasks are spans, to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names.

Times are the run's start plus its own seconds, which are virtual in a simulation. Ids follow from the trace's id, which
is stored in the run's folder, and from the task's number: what a resumed run sends again is the same span.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archipel.core.records import Committed, Handed, Refused, Returned, Stamped
from archipel.runs.run import Run
from archipel.trackers.tracker import needed, plain, totals, words

TRACE_ID = "opentelemetry-trace-id"
"""File in the run's folder, written at its beginning."""


class OpenTelemetry:
    """Sends a span for each task from hand-out to return, and one for each version."""

    def __init__(self) -> None:
        self.sdk = needed("opentelemetry", "opentelemetry.sdk.trace")

    def begin(self, name: str, settings: Mapping[str, object], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        remembered = folder / TRACE_ID
        if not remembered.exists():
            remembered.write_text(f"{secrets.randbits(128):032x}")
        self.start = remembered.stat().st_mtime_ns
        self.ids = _Ids(remembered.read_text())
        self.out: dict[int, tuple[float, Handed]] = {}
        resource = needed("opentelemetry", "opentelemetry.sdk.resources").Resource.create({"service.name": "archipel"})
        self.provider = self.sdk.TracerProvider(resource=resource, id_generator=self.ids, shutdown_on_exit=False)
        export = needed("opentelemetry", "opentelemetry.sdk.trace.export")
        self.provider.add_span_processor(export.BatchSpanProcessor(self._exporter()))
        self.tracer = self.provider.get_tracer("archipel")
        self.trace = needed("opentelemetry", "opentelemetry.trace")
        self.run = self._span(name, "run", 0.0, plain(settings), parent=False)

    def record(self, stamped: Stamped) -> None:
        record = stamped.record
        if isinstance(record, Handed):
            self.out[record.task] = (stamped.time, record)
        elif isinstance(record, Returned):
            self._close(record.task, stamped.time, {"steps": record.steps, "recalled": record.recalled})
        elif isinstance(record, Refused):
            self._close(record.task, stamped.time, {"reason": record.reason}, refused=True)
        elif isinstance(record, Committed):
            about = {"version": record.version, "rounds": record.rounds, "contributors": len(record.learners)}
            span = self._span("version", f"version {record.version}", stamped.time, about)
            span.end(self._at(stamped.time))

    def end(self, run: Run | None) -> None:
        if run is not None:  # a run that is resumed ends its span then
            self.run.set_attributes({**totals(run), **words(run)})
            self.run.end(self._at(run.seconds))
        self.provider.shutdown()

    def _exporter(self) -> Any:
        module = needed("opentelemetry", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
        return module.OTLPSpanExporter()

    def _close(self, task: int, time: float, about: Mapping[str, Any], refused: bool = False) -> None:
        """Send the span of a task; what was refused after it had returned has its span already."""
        if task not in self.out:
            return
        begun, handed = self.out.pop(task)
        span = self._span("task", f"task {task}", begun, {"task": task, "version": handed.version, **about})
        span.set_attribute("learner", handed.learner)
        if refused:
            span.set_status(self.trace.Status(self.trace.StatusCode.ERROR, str(about["reason"])))
        span.end(self._at(time))

    def _span(self, name: str, key: str, begun: float, about: Mapping[str, Any], parent: bool = True) -> Any:
        self.ids.next = key
        context = self.trace.set_span_in_context(self.run) if parent else None
        return self.tracer.start_span(name, context=context, attributes=about, start_time=self._at(begun))

    def _at(self, seconds: float) -> int:
        """Return nanoseconds since 1970."""
        return self.start + round(1e9 * seconds)


class _Ids:
    """Gives spans ids that follow from the trace's id and their key."""

    def __init__(self, trace: str) -> None:
        self.trace = trace
        self.next = ""

    def generate_trace_id(self) -> int:
        return int(self.trace, 16)

    def generate_span_id(self) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.trace} {self.next}".encode()).digest()[:8], "big") or 1

    def is_trace_id_random(self) -> bool:
        return True

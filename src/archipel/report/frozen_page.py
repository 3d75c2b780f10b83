"""A static copy of the live page for a report: its markup, style, scripts and data.

Without scripts it stays hidden, and the report is read by its tables and pictures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.resources import files

from archipel.core.records import Committed, Scores
from archipel.live.page_file import SCRIPTS, bundle, embedded, source
from archipel.live.timeline import Timeline
from archipel.runs.run import Run

EVENTS = 25_000
"""Most events of all runs in a report; runs beyond that are shown by their curves only."""


@dataclass(frozen=True)
class FrozenPage:
    """The parts that a report puts into its page."""

    style: str
    markup: str
    data: str
    script: str
    policy: str
    """The content security policy: these scripts and this style, by their hashes."""


def frozen_page(runs: Sequence[Run], own_style: str, own_script: str) -> FrozenPage:
    """Return the parts of the page for these runs; the report's own style and script are in the policy too."""
    # the page's rules hold inside its own part of the report, and the report's outside
    style = f"{bundle(['palette.css'])}\n@scope (#live) {{\n{bundle(['uPlot.min.css', 'page.css'])}\n}}\n{own_style}"
    script = bundle(SCRIPTS)
    markup = (files("archipel.live") / "page" / "panels.html").read_text(encoding="utf-8")
    sources = f"style-src {source(style)}; script-src {source(script)} {source(own_script)}"
    policy = f"default-src 'none'; img-src data:; {sources}; base-uri 'none'; form-action 'none'"
    return FrozenPage(style, markup, embedded(_data(runs)), script, policy)


def _data(runs: Sequence[Run]) -> dict[str, object]:
    """Return the data that the page would get from a server."""
    told, texts, room = [], [], EVENTS
    for run in runs:
        fits = len(run.records) <= room
        room -= len(run.records) if fits else 0
        timeline = _timeline(run, whole=fits)
        texts.append({"curve": _lines(timeline.curve.read(0)), "events": _lines(_whole(timeline)) if fits else []})
        told.append(
            {
                "name": run.name,
                "seed": run.seed,
                "fold": run.fold,
                "settings": dict(run.settings),
                "tuned": dict(run.tuned),
                "metric": run.metric,
                "reason": run.reason,
                "final_score": None if run.final_score != run.final_score else run.final_score,
                "stage": "finished",
                "left_out": not fits,
            }
        )
    return {"overview": {"title": "", "runs": told, "federation": None}, "runs": texts}


def _timeline(run: Run, whole: bool) -> Timeline:
    """Convert a run's records: all of them, or only those that its curve needs."""
    timeline = Timeline(run.metric)
    for one in run.participants if whole else ():
        timeline.learner(one.name, one.group, one.role, one.examples)
    for stamped in run.records:
        record = stamped.record
        if not (whole or isinstance(record, Committed | Scores)):
            continue
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        timeline.record(stamped.time, type(record).__name__, values)
    timeline.layers(run.seconds, run.layers)
    timeline.flush()
    return timeline


def _whole(timeline: Timeline) -> bytes:
    """Return all events, piece by piece as a server gives them."""
    read = b""
    while len(read) < timeline.events.size:
        read += timeline.events.read(len(read))
    return read


def _lines(text: bytes) -> list[object]:
    return [json.loads(line) for line in text.splitlines()]

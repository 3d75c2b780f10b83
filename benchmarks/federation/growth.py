"""How much a controller's folder grows with every commit, table by table.

    python -m benchmarks.federation.growth --out benchmarks/measured/growth.json   # methods measured before stay
    python -m benchmarks.federation.growth --commits 2000 --methods fedavg

The durable controller alone is measured: tasks are answered at once by updates that were computed from the model's own
numbers, and no network or training is involved. Events, records and the audit are what a federation writes.
What a million commits would take is extrapolated from the bytes of the second half.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sqlite3
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from archipel.core.types import (
    Command,
    Evaluate,
    Evaluated,
    Joined,
    Metrics,
    Score,
    Scored,
    ScoreTable,
    Traffic,
    Train,
    Trained,
)
from archipel.federation.storage.durable_controller import DurableController, IncomingEvent, Note
from archipel.federation.storage.journal import Answer
from archipel.federation.storage.stored_models import Delivery, as_bytes
from archipel.study.federate import Hosting, host
from archipel.study.files import study_of

MILLION = 1_000_000
METHODS = {"async_fedavg": 20_000, "async_dvw": 2_000, "fedavg": 1_000}
"""And how many commits are made: a commit of `fedavg` holds an update of every learner."""


def study(method: str, learners: int) -> dict[str, Any]:
    return {
        "algorithms": {"name": method},
        "data": {
            "source": {"name": "from_csv", "path": "none.csv", "label": "ill", "features": [*"abcdefghijklmnop"]},
            "natural": {"test": "own(0.2)"},
        },
        "model": {"name": "mlp", "hidden": [8, 8]},
        "ending": {"commits": 1 << 40},
        "evaluation": {"at": "learners", "every": 100},
        "federation": {"learners": [f"hospital-{i}" for i in range(learners)], "classes": 2},
    }


class Answers:
    """Answers every command at once, in the order of the commands."""

    def __init__(self, hosting: Hosting, folder: Path) -> None:
        self.hosting = hosting
        self.durable = self.open(folder)
        self.waiting: deque[Command] = deque()
        self.generator = torch.Generator().manual_seed(0)
        self.time = 0.0

    def open(self, folder: Path) -> DurableController:
        memories = self.hosting.algorithm.memories()
        return DurableController(folder, self.hosting.layout, self.hosting.make, memories=memories)

    def give(self, *entries: IncomingEvent) -> None:
        self.time += 1.0
        self.durable.take(entries, [], self.time)
        self.waiting.extend(self.durable.handle())

    def join(self, learners: int) -> None:
        for i in range(learners):
            self.give(IncomingEvent(Joined(f"hospital-{i}", 1000, 100, 100)))

    def answer(self, most: int) -> None:
        """Answer the oldest commands, in one batch."""
        entries: list[IncomingEvent] = []
        while self.waiting and len(entries) < most:
            match self.waiting.popleft():
                case Train() as order:
                    entries.append(self.trained(order))
                case Evaluate() as order:
                    entries.append(IncomingEvent(self.evaluated(order)))
        self.give(*entries)

    def trained(self, order: Train) -> IncomingEvent:
        layout = self.hosting.layout
        start = self.durable.models.read(order.model.name)
        vector = start + 1e-3 * torch.randn(layout.size, generator=self.generator)
        names = order.plan.sends(layout.names)
        pieces = [as_bytes(vector[layer.start : layer.stop]) for layer in layout.layers if layer.name in names]
        digests = {name: hashlib.sha256(piece).hexdigest() for name, piece in zip(names, pieces, strict=True)}
        body = b"".join(pieces)
        digest = hashlib.sha256(body).hexdigest()
        own = Scored(100, 30.0, np.array([[40, 10], [20, 30]]))
        metrics = Metrics(
            validation=own if "validation" in order.plan.reports else None,
            losses=(0.7, 0.6) if "losses" in order.plan.reports else (),
        )
        size = len(body)
        return IncomingEvent(
            Trained(order.task, f"t{order.task}", names, 32, metrics, Traffic(size, size, 1)),
            Answer(order.learner, order.task, order.task, digest),
            Delivery("", 0, layout.indices(names), digests),
            body,
            {"up": {name: len(piece) for name, piece in zip(names, pieces, strict=True)}},
            Note(
                order.learner, "update", {"task": order.task, "sequence": order.task, "bytes": size, "sha256": digest}
            ),
        )

    def evaluated(self, order: Evaluate) -> Evaluated:
        assert isinstance(order.probe, Score)
        one = Scored(100, 30.0, np.array([[40, 10], [20, 30]]))
        return Evaluated(order.task, ScoreTable.of([one] * len(order.sites)))


def sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of every table and index, and of files."""
    base = sqlite3.connect(folder / "journal.sqlite")
    try:
        found = dict(base.execute("SELECT name, SUM(pgsize) FROM dbstat GROUP BY name"))
    finally:
        base.close()
    found["files"] = sum(path.stat().st_size for path in (folder / "blobs").rglob("*") if path.is_file())
    return found


def measure(method: str, learners: int, commits: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        answers = Answers(host(study_of(study(method, learners))), folder)
        answers.join(learners)
        state = answers.durable.controller.state
        while state.version < commits // 2:
            answers.answer(learners)
        half, at = sizes(folder), state.version
        while state.version < commits:
            answers.answer(learners)
        whole, end = sizes(folder), state.version
        journal = (folder / "journal.sqlite").stat().st_size
        answers.durable.close()
    grown = {what: (whole[what] - half.get(what, 0)) / (end - at) for what in sorted(whole)}
    a_commit = sum(grown.values())
    return {
        "learners": learners,
        "commits": end,
        "journal_bytes": journal,
        "bytes": whole,
        "bytes_a_commit": a_commit,
        "by_table": {what: round(bytes_, 1) for what, bytes_ in grown.items() if bytes_},
        "gigabytes_for_a_million_extrapolated": (sum(whole.values()) + (MILLION - end) * a_commit) / 1e9,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, help=f"of each method; default: {METHODS}")
    parser.add_argument("--learners", type=int, default=100)
    parser.add_argument("--methods", nargs="+", default=[*METHODS])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    found = json.loads(given.out.read_text()) if given.out is not None and given.out.exists() else {}
    for method in given.methods:
        found[method] = measure(method, given.learners, given.commits or METHODS[method])
        print(method, json.dumps(found[method], indent=1))
        if given.out is not None:
            given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

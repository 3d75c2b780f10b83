"""A learner's own record of every order that it was given and every answer that it gave, for its operator to read.

One JSON object a line, in the learner's folder. Above a size the file is set aside, and the one before it is replaced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from archipel.federation.wire import federation_pb2 as pb

FILE, OLDER = "orders.jsonl", "orders.1.jsonl"
LARGEST = 1 << 24
"""Bytes above which the file is set aside."""


class OrderRecord:
    """Append orders and answers to the file in a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._older = folder / OLDER

    def order(self, order: pb.Order) -> None:
        """Note what the controller asks for; its signs of life are left out."""
        kind = order.WhichOneof("what")
        if kind is None or kind == "ping":
            return
        about = getattr(order, kind)
        told: dict[str, Any] = {"order": kind, "task": getattr(about, "task", None)}
        if kind in ("train", "evaluate", "stop"):
            told["model"] = [layer.sha256.hex()[:16] for layer in about.model]
        if kind == "train":
            plan = about.plan
            told |= {"epochs": plan.epochs, "batch": plan.batch, "rate": plan.rate, "reports": list(plan.reports)}
            told |= {"private": list(plan.private), "uploads": list(plan.uploads.names)}
            if plan.HasField("steps"):
                told["steps"] = plan.steps
        if kind == "evaluate":
            told |= {"part": about.part, "bins": about.bins}
        self._write(told)

    def answer(self, head: pb.Head, receipt: pb.Receipt) -> None:
        """Note what was sent, and what the controller made of it."""
        kind = head.WhichOneof("result")
        told: dict[str, Any] = {"answer": kind, "task": head.task, "bytes": head.size}
        if kind == "trained":
            told |= {"steps": head.trained.steps, "layers": [layer.name for layer in head.trained.layers]}
            told["reports"] = [field.name for field, _ in head.trained.ListFields() if field.name not in SENT]
        if kind == "scored":
            told |= {"examples": head.scored.count}
        if kind == "failed":
            told["reason"] = head.failed
        self._write({**told, "verdict": pb.Receipt.Verdict.Name(receipt.verdict).lower()})

    def _write(self, told: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists() and self._path.stat().st_size > LARGEST:
            os.replace(self._path, self._older)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"at": at, **told}) + "\n")  # in ASCII: nothing that a terminal obeys


SENT = ("layers", "steps", "epochs")
"""Fields of an update that are no reports on the data."""


def read_record(folder: Path) -> Iterator[str]:
    """Yield the lines of a folder's record, oldest first."""
    for name in (OLDER, FILE):
        if (folder / name).exists():
            with open(folder / name, encoding="utf-8") as file:
                yield from (line.rstrip("\n") for line in file)

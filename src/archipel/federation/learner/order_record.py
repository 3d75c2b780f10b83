"""A learner's own record of every order that it was given and every answer that it gave, for its operator to read.

One JSON object a line, in the learner's folder. Above a size the file is compressed and set aside. Many of these are
kept, so that a controller cannot make its learner forget what it asked by asking more.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from archipel.federation.wire import federation_pb2 as pb

FILE, OLDER = "orders.jsonl", "orders.{:06}.jsonl.gz"
LARGEST, KEPT = 1 << 24, 64
"""Bytes above which the file is set aside, and how many of these are kept."""
MOST = 1000
"""Names of a list, and characters of a text, that are noted."""


class OrderRecord:
    """Append orders and answers to the file in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / FILE

    def order(self, order: pb.Order) -> None:
        """Note what the controller asks for; heartbeats are left out."""
        kind = order.WhichOneof("what")
        if kind is None or kind == "ping":
            return
        about = getattr(order, kind)
        told: dict[str, Any] = {"order": kind, "task": getattr(about, "task", None)}
        if kind in ("train", "evaluate", "stop"):
            told["model"] = [layer.sha256.hex()[:16] for layer in about.model[:MOST]]
        if kind == "train":
            plan = about.plan
            told |= {"epochs": plan.epochs, "batch": plan.batch, "rate": plan.rate, "reports": _few(plan.reports)}
            told |= {"private": _few(plan.private), "uploads": _few(plan.uploads.names)}
            if plan.HasField("steps"):
                told["steps"] = plan.steps
        if kind == "evaluate":
            told |= {"part": about.part[:MOST], "bins": about.bins}
        if kind == "sum":
            told |= {"phase": about.phase[:MOST], "of": len(about.told)}
            if about.HasField("terms"):
                terms = {field.name: value for field, value in about.terms.ListFields()}
                told |= {"training": about.training, "layers": _few(about.layers), **terms}
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
        if kind == "sum":
            told |= {"phase": head.sum.phase, "seeds" if head.sum.phase == "reveal" else "for": len(head.sum.given)}
            told |= {"keys": len(head.sum.opened)} if head.sum.opened else {}
        if kind == "failed":
            told["reason"] = head.failed[:MOST]
        self._write({**told, "verdict": pb.Receipt.Verdict.Name(receipt.verdict).lower()})

    def _write(self, told: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists() and self._path.stat().st_size > LARGEST:
            self._set_aside()
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"at": at, **told}) + "\n")  # in ASCII: nothing that a terminal obeys

    def _set_aside(self) -> None:
        older = _older(self._folder)
        number = 1 + max((int(path.name.split(".")[1]) for path in older), default=0)
        aside = self._folder / OLDER.format(number)
        with open(self._path, "rb") as lines, gzip.open(aside.with_suffix(".part"), "wb") as file:
            shutil.copyfileobj(lines, file)
        os.replace(aside.with_suffix(".part"), aside)  # killed before this, it is done again
        self._path.unlink()
        for path in older[: len(older) + 1 - KEPT]:
            path.unlink()


def _older(folder: Path) -> list[Path]:
    """Return the files that were set aside, oldest first."""
    return sorted(path for path in folder.glob("orders.*.jsonl.gz") if path.name.split(".")[1].isdecimal())


def _few(names: Sequence[str]) -> list[str]:
    """Return the first names of a list, each as far as it is of use."""
    return [name[:100] for name in names[:MOST]]


SENT = ("layers", "steps", "epochs")
"""Fields of an update that are no reports on the data."""


def read_record(folder: Path) -> Iterator[str]:
    """Yield the lines of a folder's record, oldest first."""
    for path in _older(folder):
        with gzip.open(path, "rt", encoding="utf-8") as older:
            yield from (line.rstrip("\n") for line in older)
    if (folder / FILE).exists():
        with open(folder / FILE, encoding="utf-8") as file:
            yield from (line.rstrip("\n") for line in file)

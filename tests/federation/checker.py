"""What a controller that was killed again and again must have kept: the journal and the files beside what was told.

The checker believes neither the controller nor its tables of versions: it tells the journal to a controller of its own,
makes every update up again, and has the command `archipel replay` come to the same model in a process that was never
killed.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from light import made_up
from safetensors.torch import load_file

from archipel.durability.blobs import Blobs
from archipel.durability.book import CODEC, Course
from archipel.durability.journal import AuditBroken, Journal, Line
from archipel.durability.stored_models import StoredModels, as_bytes, digest_of
from archipel.records import Committed, Returned
from archipel.study.federate import Hosting
from archipel.types import Trained

KINDS = {
    "lost": "acknowledged, and not in the journal as an update",
    "payload lost": "acknowledged, and its file is missing or damaged",
    "other numbers": "what is kept is not what the learner made",
    "applied twice": "one update told or committed more than once",
    "from nowhere": "committed, and never journalled",
    "another model": "told again, the journal leads elsewhere",
    "no digest": "a version without its digest in the journal",
    "audit": "the audit's chain is broken",
}


@dataclass
class Findings:
    """All that was found wrong, by kind, and how much was looked at."""

    wrong: dict[str, list[str]] = field(default_factory=dict)
    acknowledged: int = 0
    journalled: int = 0
    commits: int = 0
    digest: str = ""
    """Of the last model."""

    def find(self, kind: str, what: str) -> None:
        assert kind in KINDS
        self.wrong.setdefault(kind, []).append(what)

    @property
    def clean(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        looked = f"{self.acknowledged} acknowledged, {self.journalled} journalled, {self.commits} commits"
        told = [f"{kind} ({KINDS[kind]}): {len(all_)}, first: {all_[0]}" for kind, all_ in self.wrong.items()]
        return "\n".join([looked, *(told or ["nothing is wrong"])])


def check(state: Path, receipts: Iterable[Mapping[str, Any]], hosting: Hosting, replay: Sequence[str] = ()) -> Findings:
    """Look at everything; `replay`: the command that tells the journal again in a process of its own."""
    found = Findings()
    journal = Journal(state / "journal.sqlite")
    try:
        lines = list(journal.events())
        versions = journal.commits()
        records = [CODEC.value(text) for _, text in journal.records()]
        try:
            journal.look_at_audit()
        except AuditBroken as broken:
            found.find("audit", str(broken))
    finally:
        journal.close()
    updates = [(line, event) for line in lines if isinstance(event := CODEC.value(line.event), Trained)]
    found.journalled = len(updates)
    _acknowledged(found, receipts, lines, Blobs(state / "blobs"))
    _once(found, updates, records)
    commits = [record for record in records if isinstance(record, Committed)]
    found.commits = len(commits)
    for commit in commits:
        if f"v{commit.version}" not in versions:
            found.find("no digest", f"v{commit.version}")
    _told_again(found, state, lines, versions, hosting)
    last = versions.get(f"v{len(commits)}", "")
    found.digest = last
    _as_saved(found, state / "run", last, hosting)
    if replay:
        _told_elsewhere(found, replay, last)
    return found


def _acknowledged(found: Findings, receipts: Iterable[Mapping[str, Any]], lines: Sequence[Line], blobs: Blobs) -> None:
    """Who was told that an update is safe finds it: once, as an update, with all its bytes."""
    answers: dict[tuple[str, int, int], list[Line]] = {}
    for line in lines:
        if line.answer is not None:
            answers.setdefault((line.answer.learner, line.answer.task, line.answer.sequence), []).append(line)
    for receipt in receipts:
        if receipt["verdict"] != "KEPT":
            continue
        found.acknowledged += 1
        key = receipt["learner"], receipt["task"], receipt["sequence"]
        there = answers.get(key, [])
        what = f"task {key[1]} of {key[0]}"
        if len(there) != 1 or not isinstance(CODEC.value(there[0].event), Trained):
            found.find("lost", f"{what}: {[line.event for line in there] or 'nothing is written of it'}")
            continue
        delivery = CODEC.value(there[0].beside)["delivery"]
        if delivery.blob != receipt["sha256"]:
            found.find("other numbers", f"{what}: the learner sent {receipt['sha256']}, kept is {delivery.blob}")
        path = blobs.path(delivery.blob)
        if not path.exists():
            found.find("payload lost", f"{what}: {path.name} is not there")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != receipt["sha256"]:
            found.find("payload lost", f"{what}: {path.name} holds something else")


def _once(found: Findings, updates: Sequence[tuple[Line, Trained]], records: Sequence[object]) -> None:
    for what, tasks in (
        ("told", Counter(event.task for _, event in updates)),
        ("taken in", Counter(record.task for record in records if isinstance(record, Returned))),
        ("committed", Counter(task for record in records if isinstance(record, Committed) for task in record.tasks)),
    ):
        for task, times in tasks.items():
            if times > 1:
                found.find("applied twice", f"task {task} was {what} {times} times")
            if task not in {event.task for _, event in updates}:
                found.find("from nowhere", f"task {task} was {what}")


def _told_again(
    found: Findings, state: Path, lines: Sequence[Line], versions: Mapping[str, str], hosting: Hosting
) -> None:
    """Tell all of it to a controller here, and make every update up again before it hears of it."""
    models = StoredModels(hosting.work.layout, Blobs(state / "blobs"))
    course = Course(hosting.make(models, None), models)
    threads = torch.get_num_threads()
    torch.set_num_threads(hosting.study.simulation.threads)
    try:
        for line in lines:
            event = CODEC.value(line.event)
            out = course.out.get(event.task) if isinstance(event, Trained) else None
            carried = None if out is None else models.read(out.command.model.name).numpy().copy()
            models.fresh.clear()
            course.tell(line)
            for name, digest in models.fresh.items():
                if versions.get(name) != digest:
                    found.find("another model", f"{name} is {digest}, written is {versions.get(name)}")
            if isinstance(event, Trained) and out is not None and carried is not None:
                wanted = made_up(carried, out.command.plan.key)  # type: ignore[union-attr]
                if not _holds(state, hosting, line, wanted):
                    found.find("other numbers", f"task {event.task}")
    except Exception as error:
        found.find("another model", f"event {line.number} cannot be told again: {type(error).__name__}: {error}")
    finally:
        torch.set_num_threads(threads)


def _holds(state: Path, hosting: Hosting, line: Line, wanted: np.ndarray) -> bool:
    """The file of an update holds these numbers in the layers that came with it."""
    delivery, layout = CODEC.value(line.beside)["delivery"], hosting.work.layout
    pieces = [wanted[layout.layers[place].start : layout.layers[place].stop].tobytes() for place in delivery.inside]
    return (state / "blobs" / delivery.blob).read_bytes()[delivery.start :] == b"".join(pieces)


def _as_saved(found: Findings, run: Path, digest: str, hosting: Hosting) -> None:
    """The model in the finished run's folder, which the last process wrote, is the last version of the journal."""
    if not (run / "run.json").exists():
        return
    layout = hosting.work.layout
    vector = layout.joined(load_file(run / "model.safetensors"))
    layers = tuple(hashlib.sha256(as_bytes(vector[layer.start : layer.stop])).hexdigest() for layer in layout.layers)
    if digest_of(layers) != digest:
        found.find("another model", f"the finished run's is {digest_of(layers)}, the journal's last is {digest}")


def _told_elsewhere(found: Findings, command: Sequence[str], digest: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        found.find("another model", f"archipel replay: {done.stderr.strip()[-500:]}")
    elif (told := json.loads(done.stdout)["digest"]) != digest:
        found.find("another model", f"archipel replay came to {told}, the journal's last is {digest}")

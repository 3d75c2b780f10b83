"""What a repeatedly killed controller must have kept: compare the journal and the files with the receipts.

The checker believes neither the controller nor its tables of versions: it tells the journal to a controller of its own,
makes every update up again, and has the command `archipel replay` come to the same model in a process that was never
killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from archipel.core.layout import Layout
from archipel.core.records import Committed, Restored, Returned
from archipel.core.types import Trained
from archipel.federation.storage.blobs import Blobs
from archipel.federation.storage.durable_controller import CODEC, Replay
from archipel.federation.storage.journal import AuditBroken, Journal, Line
from archipel.federation.storage.stored_models import Delivery, StoredModels, as_bytes, digest_of
from archipel.federation.wire.body import WIDTH, Bodies, fingerprint
from archipel.kernels.threads import threads
from archipel.study.federate import Hosting
from tests.federation.light import made_up
from tests.federation.removed_events import put_events_back
from tests.forked import archipel

KINDS = {
    "lost": "acknowledged, and not in the journal as an update",
    "told otherwise": "in the journal as an update, and its learner was told that it is not used",
    "payload lost": "acknowledged, and its file is missing or damaged",
    "other numbers": "what is kept is not what the learner made",
    "applied twice": "one update told or committed more than once",
    "from nowhere": "committed, and never journalled",
    "another model": "told again, the journal leads elsewhere",
    "no digest": "a version without its digest in the journal",
    "audit": "its chain is broken, or it does not know of an acknowledged update",
}


@dataclass
class Findings:
    """All faults that were found, by kind, and how much was checked."""

    wrong: dict[str, list[str]] = field(default_factory=dict)
    acknowledged: int = 0
    journalled: int = 0
    commits: int = 0
    removed: int = 0
    """Events that had been removed behind snapshots."""
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
    """Check everything; `replay`: arguments of the command that replays the journal in another process."""
    found = Findings(removed=put_events_back(state))
    journal = Journal(state / "journal.sqlite")
    try:
        lines = list(journal.events())
        versions = journal.commits()
        records = [CODEC.value(text) for _, text in journal.records()]
        audit = [(who, json.loads(detail)) for _, _, who, what, detail, _ in journal.audit() if what == "update"]
        try:
            journal.check_audit()
        except AuditBroken as broken:
            found.find("audit", str(broken))
    finally:
        journal.close()
    updates = [(line, event) for line in lines if isinstance(event := CODEC.value(line.event), Trained)]
    found.journalled = len(updates)
    _damaged(found, state, hosting.layout)
    if not hosting.study.federation.keep_updates:
        _made_up_again(state, lines, hosting)
    receipts = list(receipts)
    _acknowledged(found, receipts, lines, state, hosting)
    _audited(found, receipts, audit)
    _once(found, updates, records)
    commits = [record for record in records if isinstance(record, Committed)]
    found.commits = len(commits)
    for commit in commits:
        if f"v{commit.version}" not in versions:
            found.find("no digest", f"v{commit.version}")
    _told_again(found, state, lines, versions, hosting)
    restored = sum(isinstance(record, Restored) for record in records)
    last = versions.get(f"v{len(commits) + restored}", "")
    found.digest = last
    _as_saved(found, state / "run", last, hosting)
    if replay:
        _told_elsewhere(found, replay, last)
    return found


def _acknowledged(
    found: Findings, receipts: Iterable[Mapping[str, Any]], lines: Sequence[Line], state: Path, hosting: Hosting
) -> None:
    """Every acknowledged update is there: once, as an update, with all its bytes."""
    answers: dict[tuple[str, int, int], list[Line]] = {}
    for line in lines:
        if line.answer is not None:
            answers.setdefault((line.answer.learner, line.answer.task, line.answer.sequence), []).append(line)
    for receipt in receipts:
        key = receipt["learner"], receipt["task"], receipt["sequence"]
        there = answers.get(key, [])
        what = f"task {key[1]} of {key[0]}"
        if receipt["verdict"] != "KEPT":
            if any(isinstance(CODEC.value(line.event), Trained) for line in there):
                found.find("told otherwise", f"{what}: {receipt['verdict']}, {receipt['reason']}")
            continue
        found.acknowledged += 1
        if len(there) != 1 or not isinstance(CODEC.value(there[0].event), Trained):
            found.find("lost", f"{what}: {[line.event for line in there] or 'nothing is written of it'}")
            continue
        body = _body(state, CODEC.value(there[0].beside)["delivery"], hosting)
        if body is None:
            found.find("payload lost", f"{what}: its file is not there, or too short")
        elif _fingerprint(body, hosting.layout) != receipt["sha256"]:
            found.find("other numbers", f"{what}: what is kept has another SHA-256 than what the learner sent")


def _body(state: Path, delivery: Delivery, hosting: Hosting) -> bytes | None:
    """An update as it was received, from its file, which may hold others too; None if it is missing."""
    bodies, path = Bodies(hosting.layout), state / "blobs" / delivery.blob
    size, begin = bodies.size(delivery.inside), delivery.start - len(bodies.header(delivery.inside))
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(begin)
        body = file.read(size)
    return body if len(body) == size else None


def _fingerprint(body: bytes, layout: Layout) -> str:
    """Of a body, from its numbers; "" of what is none."""
    start = WIDTH + int.from_bytes(body[:WIDTH], "little")
    try:
        there = json.loads(body[WIDTH:start]).keys()
    except (ValueError, AttributeError):
        return ""
    digests, place = [], start
    for layer in layout.layers:
        if layer.entries[0].name in there:
            digests.append(hashlib.sha256(body[place : place + 4 * layer.size]).hexdigest())
            place += 4 * layer.size
    return fingerprint(body[:start], digests)


def _damaged(found: Findings, state: Path, layout: Layout) -> None:
    """Every file is named by the hash of its content."""
    for name in Blobs(state / "blobs").digests():
        content = (state / "blobs" / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != name and _fingerprint(content, layout) != name:
            found.find("payload lost", f"the file {name} holds something else")


def _audited(
    found: Findings, receipts: Iterable[Mapping[str, Any]], audit: Iterable[tuple[str, Mapping[str, Any]]]
) -> None:
    rows = {(who, told["task"], told["sequence"], told["sha256"]) for who, told in audit if told["verdict"] == "kept"}
    for receipt in receipts:
        key = receipt["learner"], receipt["task"], receipt["sequence"], receipt["sha256"]
        if receipt["verdict"] == "KEPT" and key not in rows:
            found.find("audit", f"task {key[1]} of {key[0]} was acknowledged, and there is no row of it")


def _made_up_again(state: Path, lines: Sequence[Line], hosting: Hosting) -> None:
    """Write removed updates again: they follow from the keys of their tasks."""
    bodies, there = Bodies(hosting.layout), Blobs(state / "blobs").digests()
    models = StoredModels(hosting.layout, Blobs(state / "blobs"))
    replayed = Replay(hosting.make(models, None), models)
    with threads(hosting.study.simulation.threads), contextlib.suppress(Exception):  # what is wrong is found soon
        for line in lines:
            event = CODEC.value(line.event)
            if isinstance(event, Trained):
                delivery, command = CODEC.value(line.beside)["delivery"], replayed.out[event.task].command
                if delivery.blob not in there:
                    vector = made_up(models.read(command.model.name).numpy(), command.key)  # type: ignore[union-attr]
                    header = bodies.header(delivery.inside)
                    with open(
                        state / "blobs" / delivery.blob, "r+b" if delivery.blob in models.blobs else "wb"
                    ) as file:
                        file.seek(delivery.start - len(header))
                        file.write(header + _numbers(vector, delivery, hosting))
            replayed.tell(line)


def _numbers(vector: np.ndarray, delivery: Delivery, hosting: Hosting) -> bytes:
    layers = [hosting.layout.layers[place] for place in delivery.inside]
    return b"".join(vector[layer.start : layer.stop].tobytes() for layer in layers)


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
    """Replay all of it on a controller here, and make every update again before its event."""
    models = StoredModels(hosting.layout, Blobs(state / "blobs"))
    replayed = Replay(hosting.make(models, None), models)
    line = None
    try:
        with threads(hosting.study.simulation.threads):
            for line in lines:
                event = CODEC.value(line.event)
                out = replayed.out.get(event.task) if isinstance(event, Trained) else None
                carried = None if out is None else models.read(out.command.model.name).numpy().copy()  # type: ignore[union-attr]
                models.fresh.clear()
                replayed.tell(line)
                for name, digest in models.fresh.items():
                    if versions.get(name) != digest:
                        found.find("another model", f"{name} is {digest}, written is {versions.get(name)}")
                if isinstance(event, Trained) and out is not None and carried is not None:
                    wanted = made_up(carried, out.command.key)  # type: ignore[union-attr]
                    if not _holds(state, hosting, line, wanted):
                        found.find("other numbers", f"task {event.task}")
    except Exception as error:
        where = "the beginning" if line is None else f"event {line.number}"
        found.find("another model", f"{where} cannot be told again: {type(error).__name__}: {error}")


def _holds(state: Path, hosting: Hosting, line: Line, wanted: np.ndarray) -> bool:
    """The file of an update holds these numbers in the layers that came with it."""
    delivery = CODEC.value(line.beside)["delivery"]
    body = _body(state, delivery, hosting)
    return body is not None and body.endswith(_numbers(wanted, delivery, hosting))


def _as_saved(found: Findings, run: Path, digest: str, hosting: Hosting) -> None:
    """The model in the finished run's folder, which the last process wrote, is the last version of the journal."""
    if not (run / "run.json").exists():
        return
    layout = hosting.layout
    vector = layout.joined(load_file(run / "model.safetensors"))
    layers = tuple(hashlib.sha256(as_bytes(vector[layer.start : layer.stop])).hexdigest() for layer in layout.layers)
    if digest_of(layers) != digest:
        found.find("another model", f"the finished run's is {digest_of(layers)}, the journal's last is {digest}")


def _told_elsewhere(found: Findings, arguments: Sequence[str], digest: str) -> None:
    done = archipel(arguments, Path.cwd())
    if done.returncode != 0:
        found.find("another model", f"archipel replay: {done.stderr.strip()[-500:]}")
    elif (told := json.loads(done.stdout)["digest"]) != digest:
        found.find("another model", f"archipel replay came to {told}, the journal's last is {digest}")

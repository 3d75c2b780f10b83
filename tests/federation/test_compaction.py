"""Events behind a snapshot are removed while the controller runs, and a kill at any moment of it loses nothing."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from archipel.core.types import Failed
from archipel.federation.storage.blobs import Blobs
from archipel.federation.storage.durable_controller import DurableController, IncomingEvent, ReplayDiffers, replay
from archipel.federation.storage.journal import Answer, AuditBroken, Journal
from archipel.live.federation_state import FederationState
from archipel.storage import packed_rows
from archipel.study.federate import Hosting, host
from archipel.study.files import study_of
from benchmarks.federation.growth import Answers, study

pytestmark = pytest.mark.slow

LEARNERS = 4


@pytest.fixture(scope="module")
def hosting() -> Hosting:
    return host(study_of(study("async_fedavg", LEARNERS)))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_rows, "FEWEST", 5)
    monkeypatch.setattr(packed_rows, "MOST", 8)


class Often(Answers):
    """Makes a snapshot after every second commit."""

    keep_updates = False

    def open(self, folder: Path) -> DurableController:
        memories = self.hosting.algorithm.memories()
        return DurableController(
            folder,
            self.hosting.layout,
            self.hosting.make,
            snapshot_every=2,
            keep_updates=self.keep_updates,
            memories=memories,
        )


class Keeping(Often):
    keep_updates = True


def run(hosting: Hosting, folder: Path, commits: int, kind: type[Often] = Often) -> Often:
    answers = kind(hosting, folder)
    answers.join(LEARNERS)
    while answers.durable.controller.state.version < commits:
        answers.answer(1)
    return answers


def last_model(durable: DurableController) -> torch.Tensor:
    return durable.models.read(durable.controller.state.model.name)


def numbers(folder: Path) -> list[int]:
    journal = Journal(folder / "journal.sqlite")
    try:
        return [line.number for line in journal.events()]
    finally:
        journal.close()


def test_the_journal_holds_what_is_behind_the_snapshot_and_last_answers(hosting: Hosting, tmp_path: Path) -> None:
    short = run(hosting, tmp_path / "short", 20)
    long = run(hosting, tmp_path / "long", 40)
    keeping = run(hosting, tmp_path / "keeping", 20, Keeping)
    for one in (short, long, keeping):
        one.durable.close()
    assert len(numbers(tmp_path / "short")) <= LEARNERS + 3
    assert len(numbers(tmp_path / "long")) <= LEARNERS + 3
    assert numbers(tmp_path / "keeping") == list(range(1, 1 + keeping.durable.number))
    assert torch.equal(last_model(short.durable), last_model(keeping.durable))
    assert [*Journal(tmp_path / "short" / "journal.sqlite").records()] == [
        *Journal(tmp_path / "keeping" / "journal.sqlite").records()
    ]


def test_a_learners_last_answer_is_known_again(hosting: Hosting, tmp_path: Path) -> None:
    one = run(hosting, tmp_path, 12)
    durable = one.durable
    for line in [line for line in durable.journal.events() if line.answer is not None][-LEARNERS:]:
        assert line.answer is not None
        (same,) = durable.take([IncomingEvent(Failed(line.answer.task, "late"), line.answer)], [], 1e3)
        assert same.verdict == "kept"
        other = Answer(line.answer.learner, line.answer.task, line.answer.sequence, "other contents")
        (another,) = durable.take([IncomingEvent(Failed(line.answer.task, "late"), other)], [], 1e3)
        assert another.verdict == "another"
    assert durable.handle() == []
    durable.close()


def test_a_replay_of_a_compacted_journal_says_what_is_missing(hosting: Hosting, tmp_path: Path) -> None:
    run(hosting, tmp_path, 12).durable.close()
    with pytest.raises(ReplayDiffers, match=r"Event 1 is not in the journal, .* begun with federation.keep_updates"):
        replay(tmp_path, hosting.layout, hosting.make)


def test_a_kill_at_any_moment_of_a_compaction_loses_nothing(
    hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the folder is what a kill leaves: it is made before every statement and every removal of a file."""
    images: list[tuple[Path, bool]] = []
    one = run(hosting, tmp_path / "state", 15)
    base, remove = one.durable.journal._base, Path.unlink

    def image() -> None:
        images.append((tmp_path / f"image {len(images)}", base.in_transaction))
        shutil.copytree(tmp_path / "state", images[-1][0])

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "blobs":
            image()
        remove(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    monkeypatch.setattr(packed_rows, "FEWEST", 5)  # so that this snapshot is the first to pack
    base.set_trace_callback(lambda statement: image())
    one.durable.snapshot()
    base.set_trace_callback(None)
    monkeypatch.setattr(Path, "unlink", remove)
    image()
    expected, version = last_model(one.durable), one.durable.controller.state.version
    assert len(images) >= 6
    assert {inside for _, inside in images} == {True, False}
    left = {*images_of(images)}
    assert len(left) == 2, "some images are of before the compaction, some of after it"
    assert len({count(path, "packed") for path, _ in images}) == 2, "and some of before the packing"
    assert all(contents(path) == contents(images[-1][0]) for path, _ in images)
    for path, _ in images:
        again = Often(hosting, path)
        assert again.durable.controller.state.version == version
        assert torch.equal(last_model(again.durable), expected)
        assert again.durable.out.keys() == one.durable.out.keys()
        assert again.durable.number == one.durable.number
        again.waiting.extend(out.command for out in again.durable.out.values())
        again.time = one.time
        again.answer(1)
        assert again.durable.controller.state.version == version + 1
        again.durable.close()
    one.durable.close()


def images_of(images: list[tuple[Path, bool]]) -> Iterator[tuple[int, ...]]:
    for path, _ in images:
        yield tuple(numbers(path))


def test_files_are_removed_after_the_snapshot_that_does_not_need_them(hosting: Hosting, tmp_path: Path) -> None:
    one = run(hosting, tmp_path, 40)
    one.durable.snapshot()
    assert len(Blobs(tmp_path / "blobs").digests()) <= 3 * LEARNERS + 20  # latest updates, and versions to roll back to
    one.durable.close()


# ------------------------------------------------------------------------------------------------------- packed rows


def contents(folder: Path) -> tuple[list[tuple[float, str]], list[str], list[tuple[str, str, str]]]:
    journal = Journal(folder / "journal.sqlite")
    try:
        rows = [*journal.audit()]
        assert journal.check_audit() == len(rows) > 0
        # one run was made at another time than the other, so times and hashes differ
        told = [(who, what, detail) for _, _, who, what, detail, _ in rows]
        assert [number for number, *_ in rows] == [*range(1, len(rows) + 1)]
        return [*journal.records()], [*journal.records_backwards()], told
    finally:
        journal.close()


def count(folder: Path, table: str) -> int:
    with closing(sqlite3.connect(folder / "journal.sqlite")) as base:
        return int(base.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def test_packed_rows_read_as_they_were_written(
    hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(hosting, tmp_path / "rows", 30).durable.close()
    monkeypatch.setattr(packed_rows, "FEWEST", 5)
    monkeypatch.setattr(packed_rows, "MOST", 8)
    packed = run(hosting, tmp_path / "packed", 30)
    owners = [packed.durable.journal.handed_to(task) for task in range(34)]
    packed.durable.close()
    assert count(tmp_path / "rows", "packed") == 0
    assert count(tmp_path / "packed", "packed") > 10
    for table in ("records", "audit", "tasks"):
        assert count(tmp_path / "packed", table) < 12 < count(tmp_path / "rows", table)
    assert contents(tmp_path / "packed") == contents(tmp_path / "rows")
    with closing(sqlite3.connect(tmp_path / "rows" / "journal.sqlite")) as base:
        written = dict(base.execute("SELECT task, learner FROM tasks"))
    assert owners == [written.get(task) for task in range(34)]


@pytest.mark.usefixtures("small_blocks")
def test_the_live_page_reads_packed_rows(hosting: Hosting, tmp_path: Path) -> None:
    one = run(hosting, tmp_path, 12)
    page = FederationState(tmp_path)
    read = list[Any]()
    page.timeline.record = lambda *row: read.append(row)  # type: ignore[method-assign]
    while page.poll():
        pass
    before = len(read)
    while one.durable.controller.state.version < 30:
        one.answer(1)
    while page.poll():
        pass
    records = [*one.durable.journal.records()]
    audit = [*one.durable.journal.audit()]
    one.durable.close()
    assert 0 < before < len(read)
    assert [(time, kind) for time, kind, _ in read] == [(time, json.loads(text)[0]) for time, text in records]
    assert [row[0] for row in page.federation["log"]] == [row[0] for row in audit[::-1]][:50]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("harm", ["changed", "removed"])
def test_the_audit_shows_a_changed_or_removed_packed_row(hosting: Hosting, tmp_path: Path, harm: str) -> None:
    run(hosting, tmp_path, 20).durable.close()
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as base:
        query = "SELECT block, first, last, hash, content FROM packed WHERE kind = 'audit' LIMIT 1"
        block, *found = base.execute(query).fetchone()
        rows = packed_rows.Block(*found).rows()
        if harm == "changed":
            rows[2][2] = "somebody else"
        else:
            del rows[2]
        content = zlib.compress(json.dumps(rows).encode())
        base.execute("UPDATE packed SET content = ? WHERE block = ?", (content, block))
        base.commit()
    journal = Journal(tmp_path / "journal.sqlite")
    with pytest.raises(AuditBroken, match="is not as it was written"):
        journal.check_audit()
    journal.close()

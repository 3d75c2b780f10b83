"""Events behind a snapshot are removed while the controller runs, and a kill at any moment of it loses nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from archipel.core.types import Failed
from archipel.federation.storage.blobs import Blobs
from archipel.federation.storage.durable_controller import DurableController, IncomingEvent, ReplayDiffers, replay
from archipel.federation.storage.journal import Answer, Journal
from archipel.study.federate import Hosting, host
from archipel.study.files import study_of
from benchmarks.federation.growth import Answers, study

pytestmark = pytest.mark.slow

LEARNERS = 4


@pytest.fixture(scope="module")
def hosting() -> Hosting:
    return host(study_of(study("async_fedavg", LEARNERS)))


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

"""Records of long runs are in a file, and read the same; those of checkpoints are appended."""

from __future__ import annotations

from pathlib import Path

import pytest

import archipel as ap
from archipel.core.records import Handed, Stamped
from archipel.runs import record_log
from archipel.runs.record_log import RecordLog
from archipel.simulation.checkpoint import Checkpoint
from archipel.simulation.simulate import finished, prepare
from archipel.simulation.simulator import Simulator
from tests.simulation.engine_cases import small_islands


@pytest.fixture
def few_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_log, "KEPT", 8)
    monkeypatch.setattr(record_log, "BLOCK", 100)  # less than two lines


def numbered(count: int) -> list[Stamped]:
    return [Stamped(number / 3, Handed(number, f"learner {number}", 0, 0)) for number in range(count)]


@pytest.mark.usefixtures("few_in_memory")
@pytest.mark.parametrize("count", [0, 8, 9, 50])
def test_a_log_reads_like_a_list(count: int) -> None:
    log, records = RecordLog(), numbered(count)
    for one in records:
        log.append(one)
    assert len(log) == count
    assert list(log) == records
    first, second = iter(log), iter(log)
    assert all(a == b for a, b in zip(first, second, strict=True)), "two readers do not disturb each other"
    for place in (0, 5, count - 1, -1):
        if -count <= place < count:
            assert log[place] == records[place]
    for piece in (slice(None), slice(2, 7), slice(count - 3, None), slice(None, None, -1), slice(1, None, 4)):
        assert log[piece] == records[piece]
    assert list(log.finished()) == records
    assert isinstance(log.finished(), tuple) == (count <= 8)


def begun() -> Simulator:
    ready = prepare(ap.fedasync(epochs=1, batch=8), small_islands(4), ending=ap.Ending(commits=30), seed=3)
    ready.begin()
    return ready


@pytest.mark.usefixtures("few_in_memory")
def test_a_run_with_records_in_a_file_is_the_same_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    filed = begun()
    filed.run()
    monkeypatch.setattr(record_log, "KEPT", 10**6)
    kept = begun()
    kept.run()
    assert isinstance(finished(filed).records, RecordLog)
    assert list(finished(filed).records) == list(finished(kept).records)
    assert finished(filed).summary() == finished(kept).summary()
    finished(filed).save(tmp_path)
    assert list(ap.load_run(tmp_path).records) == list(kept.records)


@pytest.mark.usefixtures("few_in_memory")
def test_records_of_a_checkpoint_are_appended(tmp_path: Path) -> None:
    run, checkpoint = begun(), Checkpoint(tmp_path)
    run.run(events=20)
    checkpoint.save(run)
    (lines,) = tmp_path.glob("records-*.jsonl")
    early = lines.read_bytes()
    run.run(events=20)
    checkpoint.save(run)
    assert lines.read_bytes().startswith(early)
    assert len(lines.read_bytes()) > len(early)
    lines.write_bytes(lines.read_bytes() + b'{"half of a li')  # what a crash may leave
    resumed, again = begun(), Checkpoint(tmp_path)
    again.load(resumed)
    assert list(resumed.records) == list(run.records)
    run.run()
    resumed.run()
    again.save(resumed)
    assert list(resumed.records) == list(run.records)
    assert len(lines.read_text().splitlines()) == len(run.records)


def test_a_folder_holds_the_records_of_its_checkpoint_only(tmp_path: Path) -> None:
    run, other = begun(), begun()
    run.run(events=20)
    other.run(events=30)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save(run)
    checkpoint.save(other)
    assert len([*tmp_path.glob("records-*.jsonl")]) == 1
    resumed = begun()
    Checkpoint(tmp_path).load(resumed)
    assert list(resumed.records) == list(other.records)


@pytest.mark.parametrize("damage", ["cut", "changed", "removed"])
def test_damaged_records_are_refused(damage: str, tmp_path: Path) -> None:
    run = begun()
    run.run(events=20)
    Checkpoint(tmp_path).save(run)
    (lines,) = tmp_path.glob("records-*.jsonl")
    if damage == "cut":
        lines.write_bytes(lines.read_bytes()[:-5])
    elif damage == "changed":
        lines.write_bytes(lines.read_bytes().replace(b'"version":0', b'"version":1', 1))
    else:
        lines.unlink()
    with pytest.raises(ValueError, match="does not hold the records of its checkpoint"):
        Checkpoint(tmp_path).load(begun())

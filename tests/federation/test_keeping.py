"""What is on its way to the journal is not swept away meanwhile, whatever becomes of the call that brought it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from pathlib import Path

import pytest
import torch

from archipel.core.types import Failed
from archipel.federation.storage import stored_models
from archipel.federation.storage.blobs import EARLY, Blobs
from archipel.federation.storage.durable_controller import IncomingEvent, Note
from archipel.federation.storage.journal import Answer
from archipel.federation.storage.stored_models import StoredModels
from archipel.study.federate import host
from archipel.study.files import study_of
from tests.federation.in_one_process import study
from tests.waiting import LIMIT


def test_a_file_that_is_on_its_way_is_not_collected(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    digest = hashlib.sha256(b"numbers").hexdigest()
    blobs.pin(digest)
    assert blobs.put([b"numbers"]) == digest
    assert blobs.collect([]) == 0
    assert digest in blobs
    blobs.unpin(digest)
    assert blobs.collect([]) == 1
    assert digest not in blobs


def test_a_file_that_was_cut_short_is_written_again(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    digest = blobs.put([b"num", b"bers"])
    blobs.path(digest).write_bytes(b"num")
    assert blobs.put([b"num", b"bers"]) == digest
    assert blobs.path(digest).read_bytes() == b"numbers"


def test_a_large_file_arrives_whole_though_the_disk_was_given_its_beginning_early(tmp_path: Path) -> None:
    blobs, data = Blobs(tmp_path), os.urandom(2 * EARLY + 5)
    parcel = blobs.parcel("l0.1.ab")
    for start in range(0, len(data), 700_001):
        parcel.write(data[start : start + 700_001])
    parcel.finish("name")
    assert blobs.path("name").read_bytes() == data


def test_a_version_is_written_only_if_it_is_still_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_models, "IN_MEMORY", 0)
    layout = host(study_of(study())).layout
    models = StoredModels(layout, Blobs(tmp_path))
    for number in range(2):
        models.write(f"v{number}", torch.full((layout.size,), float(number)))
    models.drop("v0")  # as at the end of a round
    models.file_older_ones()
    assert models.blobs.digests() == set()
    models.write("v2", torch.full((layout.size,), 2.0))
    models.file_older_ones()  # as in a stream, where somebody is at v1 still
    assert (models.in_memory("v1"), models.in_memory("v2")) == (False, True)
    assert len(models.blobs.digests()) == 1
    assert torch.equal(models.read("v1"), torch.full((layout.size,), 1.0))


def test_two_updates_with_the_same_numbers_are_pinned_each_for_itself(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    digest = blobs.put([b"numbers"])
    blobs.pin(digest)
    blobs.pin(digest)
    blobs.unpin(digest)
    assert blobs.collect([]) == 0
    blobs.unpin(digest)
    assert blobs.collect([]) == 1


def test_the_audit_knows_of_an_answer_in_the_same_transaction(tmp_path: Path) -> None:
    async def go() -> None:
        federation = host(study_of(study())).open(tmp_path)
        durable = federation.durable
        note = Note("00", "update", {"task": 5})
        (taken,) = durable.take([IncomingEvent(Failed(5, "late"), Answer("00", 5, 1, "print"), note=note)], [], 0.0)
        (row,) = [row for row in durable.journal.audit() if row[3] == "update"]
        assert f'"verdict": "{taken.verdict}"' in row[4]
        await federation.close()

    asyncio.run(go())


def test_a_cancelled_wait_returns_when_the_thread_is_done(tmp_path: Path) -> None:
    """Its file is closed, and maybe opened again, right after."""

    async def go() -> None:
        federation = host(study_of(study())).open(tmp_path)
        begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

        def write() -> None:
            begun.set()
            go_on.wait(LIMIT)
            done.set()

        waiting = asyncio.create_task(federation.workers.run(write))
        await asyncio.to_thread(begun.wait, LIMIT)
        waiting.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert done.is_set()
        await federation.close()

    asyncio.run(go())


def test_what_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    digest = blobs.put([b"num", b"bers"])
    before = blobs.path(digest).stat()
    assert Blobs(tmp_path).put([b"numbers"]) == digest
    assert blobs.path(digest).stat() == before
    assert not [*blobs.unfinished.iterdir()]

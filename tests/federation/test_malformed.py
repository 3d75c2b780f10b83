"""Nonsense over a real connection: it changes no model, ends no run, and whoever sent it can read what was wrong."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archipel.core.types import Failed, Joined
from archipel.federation.learner.link import Link, TurnedAway
from archipel.federation.storage.durable_controller import LATE
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.federation.wire.body import HEADER
from archipel.federation.wire.channel import CHUNK
from archipel.study.federate import host
from archipel.study.files import study_of
from tests.federation.hand_made import (
    BAD,
    TEST,
    VALIDATION,
    Act,
    Left,
    Liar,
    Update,
    code_of,
    crash,
    hello,
    moments,
    portions,
    run,
    study,
)
from tests.waiting import LIMIT, reached


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """A run in which the learner's first task simply failed."""
    return run(tmp_path_factory.mktemp("without"), crash)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """A run in which nothing happened."""
    return run(tmp_path_factory.mktemp("undisturbed"))


# ------------------------------------------------------------------------------------- updates that are no updates

Spoil = Callable[[Update], bytes]
"""Changes an honest update; the body that is sent."""


def numbers(value: float) -> Spoil:
    def spoil(update: Update) -> bytes:
        update.numbers[7] = value
        return update.sign()

    return spoil


def header(change: Callable[[dict[str, Any]], None], *, padded: bool = True) -> Spoil:
    """Another header, of the same length where it fits: the size alone does not give it away."""

    def spoil(update: Update) -> bytes:
        told = json.loads(update.header[8:])
        change(told)
        text = json.dumps(told, separators=(",", ":")).encode()
        text = text.ljust(len(update.header) - 8) if padded else text
        return update.sign(body=struct.pack("<Q", len(text)) + text + update.numbers.tobytes())

    return spoil


def turned(told: dict[str, Any]) -> None:
    first = next(iter(told.values()))
    first["shape"] = first["shape"][::-1]


def halved(told: dict[str, Any]) -> None:
    next(iter(told.values()))["dtype"] = "F16"


def renamed(told: dict[str, Any]) -> None:
    name = next(iter(told))
    told[name[:-1] + "X"] = told.pop(name)


def swapped(told: dict[str, Any]) -> None:
    """The same offsets for two tensors: whoever trusts them reads one layer twice."""
    first, second, *_ = told.values()
    second["data_offsets"] = first["data_offsets"]


def begins(text: bytes) -> Spoil:
    def spoil(update: Update) -> bytes:
        return update.sign(body=text + update.body[len(text) :])

    return spoil


def cut(update: Update) -> bytes:
    return update.sign(body=update.body[:-4])


def fewer_layers(update: Update) -> bytes:
    del update.head.trained.layers[0]
    return update.sign(layers=False)


def more_layers(update: Update) -> bytes:
    update.head.trained.layers.add(name="backdoor", sha256=bytes(32))
    return update.sign(layers=False)


def one_twice(update: Update) -> bytes:
    update.head.trained.layers.append(update.head.trained.layers[0])
    return update.sign(layers=False)


def short_hash(update: Update) -> bytes:
    update.head.trained.layers[0].sha256 = bytes(31)
    return update.sign(layers=False)


def short_hash_of_the_body(update: Update) -> bytes:
    body = update.sign()
    update.head.sha256 = update.head.sha256[:31]
    return body


def other_hash(update: Update) -> bytes:
    body = update.sign()
    update.head.sha256 = hashlib.sha256(b"something else").digest()
    return body


def other_hash_of_a_layer(update: Update) -> bytes:
    body = update.sign()
    update.head.trained.layers[0].sha256 = hashlib.sha256(b"something else").digest()
    return body


def larger_body(update: Update) -> bytes:
    return update.sign(body=update.body + bytes(3 * CHUNK))


def larger_than_announced(update: Update) -> bytes:
    return update.sign() + bytes(4096)


def gigantic(update: Update) -> bytes:
    """Announced only: nobody waits for it."""
    body = update.sign()
    update.head.size = 2**64 - 1
    return body


def validated(**counts: Any) -> Spoil:
    def spoil(update: Update) -> bytes:
        told: dict[str, Any] = {
            "count": VALIDATION,
            "loss": 1.0,
            "classes": 2,
            "confusion": [VALIDATION, 0, 0, 0],
            **counts,
        }
        update.head.trained.validation.CopyFrom(pb.Scored(**told))
        return update.sign()

    return spoil


def said(**fields: Any) -> Spoil:
    def spoil(update: Update) -> bytes:
        for name, value in fields.items():
            setattr(update.head.trained, name, value)
        return update.sign()

    return spoil


def losses(update: Update) -> bytes:
    update.head.trained.losses.extend([0.0] * 100_000)
    return update.sign()


def without_a_result(update: Update) -> bytes:
    update.head.ClearField("trained")
    return b""


def an_opinion(update: Update) -> bytes:
    update.head.scored.CopyFrom(pb.Scored(count=VALIDATION, classes=2, confusion=[VALIDATION, 0, 0, 0]))
    return b""


MALFORMED: dict[str, tuple[Spoil, str]] = {
    "NaN": (numbers(np.nan), "holds numbers that are not finite (NaN or infinity)"),
    "infinity": (numbers(np.inf), "holds numbers that are not finite (NaN or infinity)"),
    "minus infinity": (numbers(-np.inf), "holds numbers that are not finite (NaN or infinity)"),
    "wrong shape": (header(turned), "has the shape [6, 8], expected [8, 6]"),
    "wrong dtype": (header(halved), "has the dtype F16, expected F32"),
    "missing layer": (fewer_layers, "is missing; the plan asks for "),
    "extra layer": (more_layers, "layer 'backdoor' was not asked for; the plan asks for "),
    "truncated": (cut, "bytes, expected "),
    "wrong hash": (other_hash, "do not give the SHA-256 that was announced"),
    "wrong hash of a layer": (other_hash_of_a_layer, "is not the one that was announced"),
    "oversized header": (begins(struct.pack("<Q", HEADER + 1)), f"a header of {HEADER + 1:,} bytes in a body of "),
    "header without an end": (begins(b"\xff" * 8), "a header of 18,446,744,073,709,551,615 bytes"),
    "oversized body": (larger_body, "bytes, expected "),
    "body larger than announced": (larger_than_announced, "more than the "),
    "body of 2**64 bytes": (gigantic, "a body of 18,446,744,073,709,551,615 bytes, expected "),
    "missing tensor": (header(renamed), "is missing"),
    "offsets of another tensor": (header(swapped), "has the data_offsets [0, 192], expected [192, 224]"),
    "header that is no JSON": (begins(struct.pack("<Q", 8) + b"{{{{{{{{"), "a header that is no JSON"),
    "header that is a list": (begins(struct.pack("<Q", 8) + b"[1,2,34]"), "a header that names no tensors"),
    "layer twice": (one_twice, " twice"),
    "SHA of 31 bytes": (short_hash, "a SHA-256 of 31 bytes for layer "),
    "SHA of the body of 31 bytes": (short_hash_of_the_body, "a SHA-256 of 31 bytes for the body"),
    "confusion matrix of others": (validated(confusion=[VALIDATION + 1, 0, 0, 0]), "20 were registered"),
    "count of others": (validated(count=VALIDATION + 1), "counts of 21 examples, 20 were registered"),
    "confusion matrix that is too small": (validated(confusion=[VALIDATION - 1, 0, 0, 0]), "of 19 examples, 20 were"),
    # 2**63 twice is 0 in int64, and -20 is 2**64 - 20
    "confusion matrix that wraps around": (validated(confusion=[2**63, 2**63, VALIDATION, 0]), "in one place"),
    "negative counts": (validated(confusion=[2 * VALIDATION, 2**64 - VALIDATION, 0, 0]), "in one place"),
    "confusion matrix of three classes": (validated(classes=3, confusion=[VALIDATION] + [0] * 8), "of shape (3, 3)"),
    "confusion matrix of three counts": (validated(confusion=[VALIDATION, 0, 0]), "with 3 counts, expected (2, 2)"),
    "validation loss NaN": (validated(loss=np.nan), "a loss of nan"),
    "epochs NaN": (said(epochs=np.nan), "nan epochs"),
    "epochs below 0": (said(epochs=-1.0), "-1.0 epochs"),
    "2**64 steps": (said(steps=2**64 - 1), "18446744073709551615 steps"),
    "many losses": (losses, "100000 losses, at most "),
    "head without a result": (without_a_result, "an answer without a result to a training task"),
    "opinion": (an_opinion, "an opinion in answer to a training task"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["in one message", "in pieces"])
@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_update_is_a_task_that_failed(kind: str, way: str, without: Left, tmp_path: Path) -> None:
    spoil, reason = MALFORMED[kind]

    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = spoil(update)
        if way == "in one message":
            receipt = await bad.reply(update.head, body)
        else:
            receipt = await bad.send(update.head, body, max(100, len(body) // 4))
        assert receipt.verdict == pb.Receipt.REFUSED
        assert reason in receipt.reason

    left = run(tmp_path, act)
    assert (left.version, left.reason) == (without.version, without.reason)
    assert torch.equal(left.model, without.model)
    (failed,) = left.failed()
    assert failed.reason.startswith("refused: ")
    assert reason in failed.reason
    assert len(left.trained()) == len(without.trained()) == 2, "its other tasks go on"
    assert left.metrics["archipel_refusals_total_update"] == 1
    assert left.metrics["archipel_updates_total_refused"] == 1
    (row,) = [detail for who, what, detail in left.audit if (who, what) == (BAD, "update") and "refused" in str(detail)]
    assert row["verdict"] == "refused"
    assert reason in row["reason"]
    assert not [*(tmp_path / "blobs" / "unfinished").iterdir()]


@pytest.mark.slow
def test_the_control_to_these_updates_is_taken(undisturbed: Left, tmp_path: Path) -> None:
    """They are refused for what was spoilt: sent in the same way, an honest one is not."""

    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        update.head.trained.validation.CopyFrom(
            pb.Scored(count=VALIDATION, loss=1.0, classes=2, confusion=[VALIDATION - 3, 1, 2, 0])
        )
        assert (await bad.send(update.head, update.sign())).verdict == pb.Receipt.KEPT

    left = run(tmp_path, act)
    assert torch.equal(left.model, undisturbed.model)
    assert left.failed() == []
    assert left.metrics["archipel_updates_total_kept"] == 9
    assert left.metrics["archipel_task_seconds_count"] == 9
    assert left.metrics["archipel_update_seconds_count"] == 9
    assert not [name for name in left.metrics if name.startswith("archipel_refusals_total")]


def test_metadata_in_a_header_is_no_harm(tmp_path: Path, undisturbed: Left) -> None:
    """What other programs write into safetensors; it changes the size, which is agreed."""

    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        spoil = header(lambda told: told.update(__metadata__={"format": "pt"}), padded=False)
        assert "bytes, expected" in (await bad.send(update.head, spoil(update))).reason

    assert run(tmp_path, act).failed()


# -------------------------------------------------------------------------------------------- how far an update may go


@pytest.mark.parametrize(("bound", "refused"), [(1e-6, True), (1e6, False)])
def test_a_norm_bound(bound: float, refused: bool, tmp_path: Path) -> None:
    left = run(tmp_path, raw=study(federation={"norm_bound": bound, "task_deadline": 5.0}, ending={"rounds": 2}))
    assert (left.version == 0) == refused
    assert all("the study allows 1e-06" in failed.reason for failed in left.failed())
    assert len(left.failed()) == 2 * refused


@pytest.mark.slow
def test_only_the_one_that_goes_too_far_is_refused(without: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        update.numbers += 100
        receipt = await bad.send(update.head, update.sign())
        assert receipt.reason.startswith("the update moves the model by ")
        assert receipt.reason.endswith("the study allows 5")

    left = run(tmp_path, act, raw=study(federation={"norm_bound": 5.0}))
    assert torch.equal(left.model, without.model)
    assert [failed.reason.split(":")[0] for failed in left.failed()] == ["refused"]


# ------------------------------------------------------------------------------------------ answers to nothing of ours


@pytest.mark.slow
@pytest.mark.parametrize("task", [2**63 - 1, -(2**63), 10**6, -1, -(1 << 62)])
@pytest.mark.parametrize("result", ["trained", "failed", "none"])
def test_unknown_tasks(task: int, result: str, undisturbed: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        head = pb.Head()
        head.CopyFrom(update.head)
        head.task = task
        if result == "failed":
            head.failed = "no"
        elif result == "none":
            head.ClearField("trained")
        receipt = await bad.send(head, body if result == "trained" else b"")
        assert receipt.verdict == pb.Receipt.REFUSED
        assert receipt.reason == f"task {task} was never given to {BAD}"
        assert (await bad.send(update.head, body)).verdict == pb.Receipt.KEPT

    left = run(tmp_path, act)
    assert torch.equal(left.model, undisturbed.model)
    assert left.failed() == []
    assert left.metrics["archipel_refusals_total_unknown task"] == 1
    assert left.refused_calls() == ["unknown task"]


def test_another_learners_task(undisturbed: Left, tmp_path: Path) -> None:
    """Nobody answers for somebody else, whether that task is still out or closed."""

    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        for task in range(order.task):  # the same round's, of the others
            head = pb.Head()
            head.CopyFrom(update.head)
            head.task = task
            receipt = await bad.send(head, body)
            assert receipt.reason == f"task {task} was never given to {BAD}"
        assert (await bad.send(update.head, body)).verdict == pb.Receipt.KEPT

    left = run(tmp_path, act)
    assert torch.equal(left.model, undisturbed.model)
    assert left.metrics["archipel_refusals_total_unknown task"] == 2


@pytest.mark.parametrize("sequence", [2**63, 2**64 - 1])
def test_a_sequence_that_no_journal_holds(sequence: int, without: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body, mine = update.sign(), update.head.sequence
        update.head.sequence = sequence
        with pytest.raises(grpc.aio.AioRpcError, match=f"An answer with the sequence {sequence}; the largest is"):
            await bad.send(update.head, body)
        await bad.send(pb.Head(task=order.task, sequence=mine, failed="it broke"))

    left = run(tmp_path, act)
    assert torch.equal(left.model, without.model)
    assert left.metrics["archipel_refusals_total_call"] == 1


def test_an_answer_begins_with_its_head(undisturbed: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        for said in ([], [pb.Portion(data=body)], [pb.Portion()]):
            with pytest.raises(grpc.aio.AioRpcError, match=r"An answer begins with its head\.") as caught:
                await bad.send_portions(said)
            assert code_of(caught) == grpc.StatusCode.FAILED_PRECONDITION
        assert (await bad.send(update.head, body)).verdict == pb.Receipt.KEPT

    left = run(tmp_path, act)
    assert torch.equal(left.model, undisturbed.model)
    assert left.metrics["archipel_refusals_total_call"] == 3
    assert left.refused_calls() == ["An answer begins with its head."] * 3


# ------------------------------------------------------------------------------------------------ the same answer again


def test_the_same_answer_again_has_the_same_receipt(undisturbed: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        receipts = [await send(update.head, body) for send in (bad.send, bad.send, bad.reply, bad.reply)]
        assert [receipt.verdict for receipt in receipts] == [pb.Receipt.KEPT] * 4

    left = run(tmp_path, act)
    assert torch.equal(left.model, undisturbed.model)
    assert len(left.trained()) == 3
    assert left.failed() == []


def test_a_refusal_again_is_the_same_refusal(without: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = numbers(np.nan)(update)
        first, *more = [await bad.send(update.head, body) for _ in range(3)]
        assert first.verdict == pb.Receipt.REFUSED
        assert more == [first, first]

    left = run(tmp_path, act)
    assert torch.equal(left.model, without.model)
    assert len(left.failed()) == 1


def test_the_same_answer_with_another_body_is_refused(undisturbed: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        assert (await bad.send(update.head, body)).verdict == pb.Receipt.KEPT
        update.numbers += 1
        receipt = await bad.send(update.head, update.sign())
        assert (receipt.verdict, receipt.reason) == (pb.Receipt.REFUSED, "told otherwise before")

    left = run(tmp_path, act)
    assert torch.equal(left.model, undisturbed.model)
    assert len(left.trained()) == 3
    assert left.metrics["archipel_updates_total_another"] == 1


def test_another_answer_to_a_task_that_was_answered_is_late(undisturbed: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        assert (await bad.send(update.head, update.sign())).verdict == pb.Receipt.KEPT
        bad.sequence += 1
        update.head.sequence = bad.sequence
        update.numbers += 1
        assert (await bad.send(update.head, update.sign())).verdict == pb.Receipt.LATE

    left = run(tmp_path, act)
    assert torch.equal(left.model, undisturbed.model)
    assert [failed.reason for failed in left.failed()] == [LATE]


def test_two_calls_that_bring_the_same_update_at_once(undisturbed: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        found = await asyncio.gather(*(bad.send(update.head, body, 50) for _ in range(8)), return_exceptions=True)
        assert {pb.Receipt.KEPT} >= {one.verdict for one in found if isinstance(one, pb.Receipt)}
        busy = [one for one in found if isinstance(one, grpc.aio.AioRpcError)]
        assert len(busy) < 8
        assert {(one.code(), one.details()) for one in busy} <= {
            (grpc.StatusCode.ABORTED, "Another call is bringing this update.")
        }
        assert (await bad.send(update.head, body)).verdict == pb.Receipt.KEPT

    left = run(tmp_path, act)
    assert torch.equal(left.model, undisturbed.model)
    assert len(left.trained()) == 3


# ---------------------------------------------------------------------------------------------------- uploads in pieces

BIG = study(model={"name": "mlp", "hidden": [60_000]})
"""Of 2 MB: three pieces."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return run(tmp_path_factory.mktemp("large"), raw=BIG)


async def broken_off(bad: Liar, update: Update, body: bytes) -> int:
    """Bring a beginning and then go away; how much of it is kept."""

    async def said() -> Any:
        yield pb.Portion(head=update.head, data=body[:CHUNK])
        await asyncio.Event().wait()

    assert bad.federation is not None
    call = bad.link._answer(said(), metadata=bad.link._metadata, timeout=LIMIT)
    parcel = pb.Parcel(task=update.head.task, sha256=update.head.sha256)
    async with asyncio.timeout(LIMIT):
        while not (known := await bad.link._stored(parcel, metadata=bad.link._metadata)).offset:
            await asyncio.sleep(0.01)
    call.cancel()
    bringing = bad.federation.answers._large._uploading
    await reached(lambda: BAD not in bringing, "the controller to see that the call is dead")
    return int(known.offset)


@pytest.mark.slow
def test_an_upload_that_broke_off_is_gone_on_with(large: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        assert await broken_off(bad, update, body) == CHUNK
        update.head.offset = CHUNK
        await bad.send_portions(portions(update.head, body[CHUNK:]))
        assert bad.told[-1].verdict == pb.Receipt.KEPT

    left = run(tmp_path, act, raw=BIG)
    assert torch.equal(left.model, large.model)
    assert len(left.trained()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("offset", [1, CHUNK - 1, CHUNK + 1, 2**64 - 1])
def test_an_upload_from_where_nothing_is(offset: int, large: Left, tmp_path: Path) -> None:
    """It is told so and may come again: the call before it may have brought more than it knew of."""

    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        for here in (0, CHUNK):
            if here:
                await broken_off(bad, update, body)
            update.head.offset = offset
            with pytest.raises(grpc.aio.AioRpcError, match=f"Data from byte {offset:,} on, and {here:,} are here"):
                await bad.send_portions(portions(update.head, body[offset : offset + 100]))
            update.head.offset = 0
        await bad.send(update.head, body)
        assert bad.told[-1].verdict == pb.Receipt.KEPT

    assert torch.equal(run(tmp_path, act, raw=BIG).model, large.model)


@pytest.mark.slow
def test_an_upload_that_ends_too_early(large: Left, tmp_path: Path) -> None:
    """A line that broke looks like that too, so what has come is kept, and the rest may follow."""

    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        with pytest.raises(grpc.aio.AioRpcError, match="The answer broke off after") as caught:
            await bad.send(update.head, body[:-4])
        assert code_of(caught) == grpc.StatusCode.ABORTED
        update.head.offset = len(body) - 4
        assert (await bad.send(update.head, body[-4:])).verdict == pb.Receipt.KEPT

    assert torch.equal(run(tmp_path, act, raw=BIG).model, large.model)


@pytest.mark.slow
def test_a_beginning_that_was_damaged_is_brought_again(large: Left, tmp_path: Path) -> None:
    """As after a sudden end of the controller's machine: what was not acknowledged may be anything."""

    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        await broken_off(bad, update, body)
        (path,) = (tmp_path / "blobs" / "unfinished").glob(f"{BAD}.*")
        path.write_bytes(bytes(CHUNK))
        receipt = await bad.link.answer(update.head, body)
        assert receipt.verdict == pb.Receipt.KEPT

    async def by_hand(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        await broken_off(bad, update, body)
        (path,) = (tmp_path / "blobs" / "unfinished").glob(f"{BAD}.*")
        path.write_bytes(bytes(CHUNK))
        update.head.offset = CHUNK
        with pytest.raises(grpc.aio.AioRpcError, match="begin at byte 0") as caught:
            await bad.send_portions(portions(update.head, body[CHUNK:]))
        assert code_of(caught) == grpc.StatusCode.ABORTED
        update.head.offset = 0
        assert (await bad.send(update.head, body)).verdict == pb.Receipt.KEPT

    assert torch.equal(run(tmp_path, act, by_hand, raw=BIG).model, large.model)


@pytest.mark.slow
def test_nobody_fills_the_disk_with_beginnings(large: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        for number in range(5):
            update.head.sha256 = hashlib.sha256(bytes([number])).digest()
            update.head.size = len(update.body)
            await broken_off(bad, update, update.body)
        assert len([*(tmp_path / "blobs" / "unfinished").glob(f"{BAD}.*")]) <= 1
        body = update.sign()
        await bad.send(update.head, body)

    assert torch.equal(run(tmp_path, act, raw=BIG).model, large.model)


@pytest.mark.slow
def test_what_others_have_brought_is_not_told(tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        await broken_off(bad, update, body)
        other = Link(bad.link.address, None, "learner/site-0")
        known = await other._stored(pb.Parcel(task=order.task, sha256=update.head.sha256), metadata=other._metadata)
        assert known.offset == 0
        for sha256 in (b"", b"../../../etc/passwd"):
            parcel = pb.Parcel(task=-(2**63), sha256=sha256)
            assert (await bad.link._stored(parcel, metadata=bad.link._metadata)).offset == 0
        with pytest.raises(grpc.aio.AioRpcError, match="such a call may have 65,536"):
            await bad.link._stored(pb.Parcel(sha256=bytes(10**6)), metadata=bad.link._metadata)
        await other.close()
        await bad.send(update.head, body)

    run(tmp_path, act, raw=BIG)


# ------------------------------------------------------------------------------------------------------------- opinions

ASKS = study(algorithms="sync_dvw", validation=0.2)


def opinion(**counts: Any) -> Callable[[pb.Head], None]:
    def spoil(head: pb.Head) -> None:
        told: dict[str, Any] = {
            "count": VALIDATION,
            "loss": 1.0,
            "classes": 2,
            "confusion": [VALIDATION, 0, 0, 0],
            **counts,
        }
        head.scored.CopyFrom(pb.Scored(**told))

    return spoil


def an_update(head: pb.Head) -> None:
    head.trained.CopyFrom(pb.Trained(steps=1))


NO_OPINION: dict[str, tuple[Callable[[pb.Head], None], str]] = {
    "too many": (opinion(confusion=[VALIDATION, 1, 0, 0]), "a confusion matrix of 21 examples, 20 were registered"),
    "too few": (opinion(confusion=[1, 1, 0, 0]), "a confusion matrix of 2 examples, 20 were registered"),
    "of the test part": (opinion(count=TEST, confusion=[TEST, 0, 0, 0]), "counts of 10 examples, 20 were registered"),
    "wraps around": (opinion(confusion=[2**63, 2**63, VALIDATION, 0]), "in one place"),
    "three classes": (opinion(classes=3), "of shape (3, 3)"),
    "no matrix": (opinion(classes=0, confusion=[]), "of shape (0, 0) with 0 counts"),
    "loss of infinity": (opinion(loss=np.inf), "a loss of inf"),
    "an update": (an_update, "an update in answer to a question"),
    "nothing": (lambda head: None, "an answer without a result to a question"),
}


@pytest.fixture(scope="module")
def no_opinion(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """A run in which the learner had no opinion in its first round."""

    async def act(bad: Liar, order: pb.Evaluate) -> None:
        bad.sequence += 1
        await bad.send(pb.Head(task=order.task, sequence=bad.sequence, failed="no"))

    return run(tmp_path_factory.mktemp("none"), raw=ASKS, opinions=[act] * 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NO_OPINION)
def test_a_malformed_opinion_is_no_opinion(kind: str, no_opinion: Left, tmp_path: Path) -> None:
    spoil, reason = NO_OPINION[kind]

    async def act(bad: Liar, order: pb.Evaluate) -> None:
        bad.sequence += 1
        head = pb.Head(task=order.task, sequence=bad.sequence)
        spoil(head)
        receipt = await bad.send(head)
        assert receipt.verdict == pb.Receipt.REFUSED
        assert reason in receipt.reason

    left = run(tmp_path, raw=ASKS, opinions=[act] * 3)
    assert torch.equal(left.model, no_opinion.model)
    assert left.version == no_opinion.version == 3
    assert left.metrics["archipel_refusals_total_opinion"] == 3
    assert all(reason in told for told in left.refused_calls())
    assert len(left.refused_calls()) == 3


def test_a_histogram_of_another_shape(tmp_path: Path) -> None:
    bins = 1024
    told: list[str] = []

    def act(shape: int, first: int) -> Act:
        async def give(bad: Liar, order: pb.Evaluate) -> None:
            assert order.bins == bins
            bad.sequence += 1
            histogram = [0] * (2 * 2 * shape)
            histogram[0] = histogram[2 * shape] = first
            scored = pb.Scored(
                count=TEST, loss=1.0, classes=2, confusion=[TEST, 0, 0, 0], bins=shape, histogram=histogram
            )
            told.append((await bad.send(pb.Head(task=order.task, sequence=bad.sequence, scored=scored))).reason)

        return give

    raw = study(evaluation={"every": 1, "at": "learners", "metric": "auc"})
    acts = [act(8, TEST), act(bins, TEST - 1), act(bins, TEST + 1), act(bins, TEST)]
    left = run(tmp_path, raw=raw, opinions=acts, part="test")
    assert left.version == 3
    assert "of shape (2, 2, 8) with 32 counts, expected (2, 2, 1024)" in told[0]
    assert "does not count 10 examples for each class" in told[1]
    assert "counts 11 examples in one place, 10 were registered" in told[2]
    assert told[3:] in ([""], [])


# --------------------------------------------------------------------------------------------------- models of others


def test_only_ones_own_models_are_fetched(undisturbed: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        names = list(bad.layout.names)

        async def fetch(task: int, layers: list[str], offset: int = 0) -> bytes:
            want = pb.Want(task=task, layers=layers, offset=offset)
            return b"".join([piece async for piece in bad.link._fetch(want, metadata=bad.link._metadata)])

        for task in (order.task - 1, order.task + 100, 2**63 - 1, -(2**63), -(1 << 62)):
            with pytest.raises(grpc.aio.AioRpcError, match=f"Task {task} is not one of {BAD}'s") as caught:
                await fetch(task, names)
            assert code_of(caught) == grpc.StatusCode.NOT_FOUND
        for layers, reason in (
            (["nonsense" * 10_000], "There is no layer 'nonsense"),
            ([names[0]] * 2, "wanted twice"),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match=reason) as caught:
                await fetch(order.task, layers)
            assert code_of(caught) == grpc.StatusCode.FAILED_PRECONDITION
        whole = await fetch(order.task, names)
        for offset in (0, 1, 7, len(whole) - 1):
            assert await fetch(order.task, names, offset) == whole[offset:]
        for offset in (len(whole), len(whole) + 1, 2**64 - 1):
            assert await fetch(order.task, names, offset) == b""
        assert (await bad.send(update.head, update.sign())).verdict == pb.Receipt.KEPT

    left = run(tmp_path, act)
    assert torch.equal(left.model, undisturbed.model)
    assert left.metrics["archipel_refusals_total_call"] == 7
    assert len(left.refused_calls()) == 7


# ------------------------------------------------------------------------------------------------------------- messages

METHODS = {
    "Join": "unary_unary",
    "Listen": "unary_stream",
    "Beat": "unary_unary",
    "Fetch": "unary_stream",
    "Stored": "unary_unary",
    "Answer": "stream_unary",
    "Reply": "unary_unary",
    "Steer": "unary_unary",
    "Look": "unary_unary",
}


@pytest.mark.slow
def test_messages_that_are_too_large(undisturbed: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        options = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(bad.link.address, options) as channel:
            for method, kind in METHODS.items():
                stub = getattr(channel, kind)(f"/archipel.v1.Federation/{method}")
                message = bytes(5 * CHUNK)
                made = stub(iter([message]) if kind == "stream_unary" else message, metadata=bad.link._metadata)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    _ = [x async for x in made] if kind == "unary_stream" else await made
                assert code_of(caught) == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await bad.send(update.head, update.sign())).verdict == pb.Receipt.KEPT

    assert torch.equal(run(tmp_path, act).model, undisturbed.model)


@pytest.mark.slow
def test_random_bytes(undisturbed: Left, tmp_path: Path) -> None:
    """To every method, as whole messages and as the head of an answer to a task that is out."""
    tries: list[tuple[str, bytes]] = []

    @settings(max_examples=150, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(st.sampled_from([m for m in METHODS if m != "Listen"]), st.binary(max_size=200))
    def draw(method: str, data: bytes) -> None:
        tries.append((method, data))

    draw()

    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        answered = 0
        for method, data in tries:
            if method == "Steer" and b"withdraw" in data:
                continue
            try:
                await bad.raw(method, data, METHODS[method])
                answered += 1
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.UNAVAILABLE:
                    raise
        assert answered < len(tries)
        assert (await bad.send(update.head, body)).verdict == pb.Receipt.KEPT

    left = run(tmp_path, act)
    assert torch.equal(left.model, undisturbed.model)
    assert left.version == 3


# -------------------------------------------------------------------------------------------------------------- joining


def joins_with(change: Callable[[pb.Hello], None], reason: str) -> Act:
    """Is turned away with this reason; then it joins as it should."""

    async def act(bad: Liar, _: None) -> None:
        wrong = pb.Hello()
        wrong.CopyFrom(bad.hello)
        change(wrong)
        with pytest.raises(TurnedAway, match=reason) as caught:
            await bad.link.join(wrong)
        assert caught.value.code == grpc.StatusCode.FAILED_PRECONDITION

    return act


def newer(said: pb.Hello) -> None:
    said.protocol = messages.PROTOCOL + 1


def older(said: pb.Hello) -> None:
    said.protocol = 0


def another_study(said: pb.Hello) -> None:
    said.study["[training]"] = "another"


def other_code(said: pb.Hello) -> None:
    said.study["mine.py"] = "another"


def other_model_and_data(said: pb.Hello) -> None:
    said.study["[model]"] = said.study["[data]"] = "another"


def other_layers(said: pb.Hello) -> None:
    said.layout = "another"


def too_many(said: pb.Hello) -> None:
    said.validation = 2**64 - 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (newer, r"This controller speaks version 2 of the protocol, the learner version 3\. Install the same version"),
        (older, "speaks version 2 of the protocol, the learner version 0"),
        (another_study, rf"The study of {BAD} is not the controller's: they differ in \[training\]\. Give both"),
        (other_code, r"they differ in mine\.py\. Give both sides the same study file and the same code"),
        (other_model_and_data, r"they differ in \[data\], \[model\]\."),
        (other_layers, f"The network of {BAD} has other layers or shapes than the controller's"),
        (too_many, f"{BAD} says it has 18446744073709551615 examples \\(validation\\); at most"),
    ],
)
def test_who_cannot_join_is_told_why(
    change: Callable[[pb.Hello], None], reason: str, undisturbed: Left, tmp_path: Path
) -> None:
    left = run(tmp_path, before=joins_with(change, reason))
    assert torch.equal(left.model, undisturbed.model)
    assert left.metrics["archipel_refusals_total_call"] == 1
    assert len(left.refused_calls()) == 1
    assert [event.learner for event, _ in left.lines if isinstance(event, Joined)].count(BAD) == 1


def test_an_operator_is_no_learner(tmp_path: Path) -> None:
    async def act(bad: Liar, _: None) -> None:
        operator = Link(bad.link.address, None, "operator/alice")
        with pytest.raises(TurnedAway, match=r"alice is an operator, not a learner\."):
            await operator.join(bad.hello)
        with pytest.raises(grpc.aio.AioRpcError, match=r"alice is an operator, not a learner\."):
            async for _order in operator.listen():
                pass
        await operator.close()

    run(tmp_path, before=act)


@pytest.mark.slow
def test_moments_that_are_nonsense(tmp_path: Path) -> None:
    good = moments()
    wrong = {
        "0 examples": moments(count=0),
        "18446744073709551615 examples": moments(count=2**64 - 1),
        "of 99 examples, 100 were registered": moments(count=99),
        "sums of 5 features, expected 6": pb.Moments(count=100, sum=good.sum[:40], squares=good.squares),
        "squares of 0 features, expected 6": pb.Moments(count=100, sum=good.sum),
        "or negative squares": moments(squares=-1.0),
        "numbers that are not finite": moments(total=np.nan),
        "or too large": moments(total=1e200),
    }

    async def act(bad: Liar, _: None) -> None:
        bad.hello.ClearField("moments")
        with pytest.raises(TurnedAway, match="the learner tells none"):
            await bad.link.join(bad.hello)
        for reason, nonsense in wrong.items():
            bad.hello.moments.CopyFrom(nonsense)
            with pytest.raises(TurnedAway, match=reason):
                await bad.link.join(bad.hello)
        bad.hello.moments.CopyFrom(good)
        async with asyncio.timeout(LIMIT):
            while (welcome := await bad.link.join(bad.hello)).wait:
                assert "of 3 learners have told the moments" in welcome.wait
                await asyncio.sleep(0.1)
        assert welcome.moments == moments(300, 3.0, 300.0)

    left = run(tmp_path, raw=study(data={"standardise": "global"}), before=act)
    assert left.version == 3
    assert len(left.refused_calls()) == 1 + len(wrong)


# ---------------------------------------------------------------------------------------------------- late, and refused


@pytest.mark.slow
def test_who_answers_when_the_round_is_closed_is_late(without: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        assert bad.federation is not None
        update = await bad.update(order)
        durable = bad.federation.durable
        await reached(lambda: {task for task in durable.out if task >= 0} == {order.task}, "the others' updates")
        (deadline,) = durable.replay.alarms
        durable.replay.alarms[:] = [replace(deadline, due=0.0)]  # it has come
        await reached(lambda: order.task not in durable.out, "the round to be closed")
        receipt = await bad.send(update.head, update.sign())
        assert (receipt.verdict, receipt.reason) == (pb.Receipt.LATE, LATE)
        said.set()

    async def wait(bad: Liar, order: pb.Train) -> None:
        await said.wait()  # before the run is over
        update = await bad.update(order)
        assert (await bad.send(update.head, update.sign())).verdict == pb.Receipt.KEPT

    said = asyncio.Event()
    raw = study(algorithms={"name": "fedavg", "deadline": 5 * LIMIT})
    left = run(tmp_path, act, wait, raw=raw)
    assert torch.equal(left.model, without.model)
    assert [failed.reason for failed in left.failed()] == [LATE]
    assert [event.reason for event, whose in left.lines if isinstance(event, Failed) and whose is None] == ["cancelled"]
    assert left.metrics["archipel_updates_total_late"] == 1
    assert [d["verdict"] for who, what, d in left.audit if (who, what) == (BAD, "update")].count("late") == 1
    assert len(left.trained()) == 2


@pytest.mark.slow
def test_an_operator_who_refuses_probes(no_opinion: Left, tmp_path: Path) -> None:
    """The federation goes on without this learner's opinions; its own updates are weighed by the others'."""

    async def refuse(bad: Liar, order: pb.Evaluate) -> None:
        bad.sequence += 1
        reason = "the operator refuses to try models on the validation part"
        await bad.send(pb.Head(task=order.task, sequence=bad.sequence, failed=reason))

    left = run(tmp_path, raw=ASKS, opinions=[refuse] * 100)
    assert left.version == 3
    told = [detail["reason"] for who, what, detail in left.audit if (who, what) == (BAD, "no opinion")]
    assert set(told) == {"the operator refuses to try models on the validation part"}
    assert len(left.trained()) == 3


def test_a_list_that_got_shorter(tmp_path: Path) -> None:
    """Taken off the list while it is at a task, and the controller begun again: the others go on without it."""
    raw = study(federation={"keep_updates": False})

    async def go() -> None:
        hosting = host(study_of(raw))
        federation = hosting.open(tmp_path)
        running = asyncio.create_task(federation.run())
        for name in ("site-0", "site-1", BAD):
            await federation.joining.join(name, hello(hosting))
        assert set(federation.durable.out) == {-1, 0, 1, 2}
        running.cancel()
        await federation.close()

    asyncio.run(go())
    raw["federation"]["learners"] = ["site-0", "site-1"]

    async def again() -> None:
        federation = host(study_of(raw)).open(tmp_path)
        running = asyncio.create_task(federation.run())
        members = federation.durable.controller.state.members
        await reached(lambda: not members[BAD].active, f"{BAD} to be taken for gone")
        assert set(federation.durable.out) <= {-1, 0, 1}
        assert not running.done()
        running.cancel()
        await federation.close()

    asyncio.run(again())


def test_a_failed_task_makes_another_model(without: Left, undisturbed: Left) -> None:
    """The control to all of the above: what is compared does differ where something was, or was not, applied."""
    assert not torch.equal(without.model, undisturbed.model)

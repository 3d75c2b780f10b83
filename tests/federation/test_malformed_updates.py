"""Malformed updates over a real connection: each is a task that failed, and its sender reads what was wrong."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.body import HEADER
from archipel.federation.wire.channel import CHUNK
from tests.federation.hand_made import (
    BAD,
    VALIDATION,
    Left,
    Liar,
    Spoil,
    Update,
    numbers,
    run,
    study,
)

# ------------------------------------------------------------------------------------- updates that are no updates


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
    "wrong hash of a layer": (other_hash_of_a_layer, "is not the announced one"),
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
    "opinion": (an_opinion, "an evaluation in answer to a training task"),
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
def test_an_honest_update_sent_in_the_same_way_is_accepted(undisturbed: Left, tmp_path: Path) -> None:
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

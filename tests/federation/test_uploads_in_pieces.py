"""Uploads that are interrupted, resumed, end too early or start at a wrong offset."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from archipel.federation.learner.link import Link
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.channel import CHUNK
from tests.federation.hand_made import (
    BAD,
    Left,
    Liar,
    Update,
    code_of,
    portions,
    run,
    study,
)
from tests.waiting import LIMIT, reached

# ---------------------------------------------------------------------------------------------------- uploads in pieces

BIG = study(model={"name": "mlp", "hidden": [60_000]})
"""Of 2 MB: three pieces."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return run(tmp_path_factory.mktemp("large"), raw=BIG)


async def broken_off(bad: Liar, update: Update, body: bytes) -> int:
    """Upload a first part and disconnect; return how many bytes are stored."""

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
def test_an_interrupted_upload_is_resumed(large: Left, tmp_path: Path) -> None:
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
def test_an_upload_from_a_wrong_offset(offset: int, large: Left, tmp_path: Path) -> None:
    """It is told the right offset and may retry: an earlier call may have stored more than it knew of."""

    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        for here in (0, CHUNK):
            if here:
                await broken_off(bad, update, body)
            update.head.offset = offset
            with pytest.raises(
                grpc.aio.AioRpcError, match=f"The data begin at byte {offset:,}, but {here:,} bytes are stored"
            ):
                await bad.send_portions(portions(update.head, body[offset : offset + 100]))
            update.head.offset = 0
        await bad.send(update.head, body)
        assert bad.told[-1].verdict == pb.Receipt.KEPT

    assert torch.equal(run(tmp_path, act, raw=BIG).model, large.model)


@pytest.mark.slow
def test_an_upload_that_ends_too_early(large: Left, tmp_path: Path) -> None:
    """A broken connection looks like that too, so the part is kept, and the rest may follow."""

    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        body = update.sign()
        with pytest.raises(grpc.aio.AioRpcError, match="The answer was interrupted after") as caught:
            await bad.send(update.head, body[:-4])
        assert code_of(caught) == grpc.StatusCode.ABORTED
        update.head.offset = len(body) - 4
        assert (await bad.send(update.head, body[-4:])).verdict == pb.Receipt.KEPT

    assert torch.equal(run(tmp_path, act, raw=BIG).model, large.model)


@pytest.mark.slow
def test_a_damaged_partial_upload_is_sent_again(large: Left, tmp_path: Path) -> None:
    """As after a power failure at the controller: data that were not acknowledged may be anything."""

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
def test_partial_uploads_do_not_fill_the_disk(large: Left, tmp_path: Path) -> None:
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
def test_partial_uploads_of_others_are_not_disclosed(tmp_path: Path) -> None:
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

"""Messages that are no messages, and learners that cannot join: each is told why, and the run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.core.types import Joined
from archipel.federation.learner.link import Link, TurnedAway
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.federation.wire.channel import CHUNK
from tests.federation.hand_made import (
    BAD,
    Act,
    Left,
    Liar,
    code_of,
    moments,
    run,
    study,
)
from tests.waiting import LIMIT

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

    @settings(max_examples=150)
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
    """Is rejected for this reason, and then joins with a valid message."""

    async def act(bad: Liar, _: None) -> None:
        wrong = pb.Hello()
        wrong.CopyFrom(bad.hello)
        change(wrong)
        with pytest.raises(TurnedAway, match=reason) as caught:
            await bad.link.join(wrong)
        assert caught.value.code == grpc.StatusCode.FAILED_PRECONDITION

    return act


SPOKEN = messages.PROTOCOL


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


def another_base(said: pb.Hello) -> None:
    said.layout += " " + "0123456789abcdef" * 4


def too_many(said: pb.Hello) -> None:
    said.validation = 2**64 - 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            newer,
            rf"controller speaks version {SPOKEN} of the protocol, the learner version {SPOKEN + 1}\. Install the same",
        ),
        (older, f"speaks version {SPOKEN} of the protocol, the learner version 0"),
        (another_study, rf"The study of {BAD} differs from the controller's in \[training\]\. Give both"),
        (
            other_code,
            r"differs from the controller's in mine\.py\. Give both sides the same study file and the same code",
        ),
        (other_model_and_data, r"differs from the controller's in \[data\], \[model\]\."),
        (other_layers, f"The network of {BAD} has other layers or shapes than the controller's"),
        (
            another_base,
            rf"The frozen weights of {BAD} differ from .*: their SHA-256 is 0123456789abcdef, here it is missing\.",
        ),
        (too_many, f"{BAD} claims 18446744073709551615 examples \\(validation\\); at most"),
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
                assert "of 3 learners have sent the moments" in welcome.wait
                await asyncio.sleep(0.1)
        assert welcome.moments == moments(300, 3.0, 300.0)

    left = run(tmp_path, raw=study(data={"standardise": "global"}), before=act)
    assert left.version == 3
    assert len(left.refused_calls()) == 1 + len(wrong)

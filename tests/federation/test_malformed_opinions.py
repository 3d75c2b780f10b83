"""Malformed opinions over a real connection: each counts as none; and nobody fetches the models of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from archipel.federation.wire import federation_pb2 as pb
from tests.federation.hand_made import (
    BAD,
    TEST,
    VALIDATION,
    Act,
    Left,
    Liar,
    code_of,
    run,
    study,
)

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


@pytest.mark.slow
def test_only_ones_own_models_are_fetched(undisturbed: Left, tmp_path: Path) -> None:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        names = list(bad.layout.names)

        async def fetch(task: int, layers: list[str], offset: int = 0) -> bytes:
            want = pb.Want(task=task, layers=layers, offset=offset)
            return b"".join([piece async for piece in bad.link._fetch(want, metadata=bad.link._metadata)])

        for task in (order.task - 1, order.task + 100, 2**63 - 1, -(2**63), -(1 << 62)):
            with pytest.raises(
                grpc.aio.AioRpcError, match=f"Task {task} is not a task of {BAD}, or is closed"
            ) as caught:
                await fetch(task, names)
            assert code_of(caught) == grpc.StatusCode.NOT_FOUND
        for layers, reason in (
            (["nonsense" * 10_000], "There is no layer 'nonsense"),
            ([names[0]] * 2, "requested twice"),
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

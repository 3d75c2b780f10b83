"""Answers to tasks that were not given, given to others, or answered before: none changes the model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch

from archipel.core.types import Failed
from archipel.federation.storage.durable_controller import LATE
from archipel.federation.wire import federation_pb2 as pb
from archipel.study.federate import host
from archipel.study.files import study_of
from tests.federation.hand_made import (
    BAD,
    Left,
    Liar,
    code_of,
    hello,
    numbers,
    run,
    study,
)
from tests.waiting import LIMIT, reached

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


@pytest.mark.slow
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
        assert (receipt.verdict, receipt.reason) == (pb.Receipt.REFUSED, "conflicts with an earlier answer")

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
            (grpc.StatusCode.ABORTED, "Another call is sending this update.")
        }
        assert (await bad.send(update.head, body)).verdict == pb.Receipt.KEPT

    left = run(tmp_path, act)
    assert torch.equal(left.model, undisturbed.model)
    assert len(left.trained()) == 3


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

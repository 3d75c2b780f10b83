"""A learner's reports are those that its plan asks for, finite, and no more of them than there can be."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from archipel.core.types import Metrics, Progress
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.body import InvalidUpdate
from archipel.federation.wire.messages import decode_scored
from tests.federation.hand_made import Act, Liar, run, study
from tests.federation.scene import scene

pytestmark = pytest.mark.slow

COUNTS = pb.Scored(count=20, loss=1.0, classes=2, confusion=[20, 0, 0, 0])


def tells(**fields: Any) -> Act:
    async def act(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        update.head.trained.MergeFrom(pb.Trained(**fields))
        await bad.send(update.head, update.sign())

    return act


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"losses": [1.0, 0.5, 0.25]}, "3 losses, at most 2 of 1 epochs are taken"),
        ({"epochs": 2.0}, "2.0 epochs, the plan asks for at most 1"),
        ({"steps": 5}, "5 steps, the plan asks for at most 4"),
    ],
    ids=["losses", "epochs", "steps"],
)
def test_more_than_a_task_can_come_to_is_refused(told: dict[str, Any], reason: str, tmp_path: Path) -> None:
    left = run(tmp_path, tells(**told))
    (receipt,) = left.bad.told
    assert (receipt.verdict, receipt.reason) == (pb.Receipt.REFUSED, reason)
    assert [event.reason for event in left.failed()] == [f"refused: {reason}"]


def test_what_the_plan_does_not_ask_for_is_dropped(tmp_path: Path) -> None:
    left = run(tmp_path, tells(losses=[1.0, 0.5], validation=COUNTS, gradient_norm=math.nan))
    assert left.failed() == []
    assert [event.metrics for event in left.trained()] == [Metrics()] * 3


def test_losses_are_as_many_as_epochs_and_finite(tmp_path: Path) -> None:
    raw = study(algorithms={"name": "fedavg", "more_planners": ["ValidationCycle(0.5, 1, at_most=3)"]}, validation=0.2)
    left = run(
        tmp_path, tells(losses=[1.0] * 5), tells(losses=[1.0, math.inf]), tells(losses=[1.0] * 4, epochs=3.0), raw=raw
    )
    assert [event.reason for event in left.failed()] == ["refused: 5 losses, at most 4 of 3 epochs are taken"]
    assert [event.metrics.losses for event in left.trained()][:2] == [(), (1.0,) * 4]


def test_progress_beyond_a_tasks_last_step_is_not_written_down(tmp_path: Path) -> None:
    raw = study(algorithms={"name": "async_fedavg", "recall": "MedianStaleness(20)"}, ending={"commits": 1_000_000})

    async def go() -> None:
        async with scene(raw, tmp_path) as one:
            for name in ("site-0", "site-1"):
                one.light(name, 0.02)
            one.light("site-2", 1000.0)
            task = await one.at_work("site-2")
            line = one.link("learner/site-2")
            for steps in (2**63, 5, 3):
                await line.beat(pb.Pulse(steps=[pb.Steps(task=task, steps=steps)]))
            await line.close()

            async def told() -> list[int]:
                return [event.steps for event in await one.events() if isinstance(event, Progress)]

            await one.until(told)
            assert await told() == [3]
            assert one.federation.durable.controller.state.out[task].steps == 3

    asyncio.run(go())


ABSURD = {
    "qfedavg": ({"name": "qfedavg", "q": 2.0}, {"training_loss": 1e300, "squared_loss": 1e300}),
    "radfed_i": ({"name": "radfed_i", "hops": 1, "fraction": 1.0}, {"gradient_norm": 1.7e308}),
    "oort": ({"name": "oort", "fraction": 1.0}, {"training_loss": 1.0, "squared_loss": 1.7e308}),
}


@pytest.mark.parametrize("method", ABSURD)
def test_an_absurd_report_costs_its_update_and_not_the_controller(method: str, tmp_path: Path) -> None:
    """Powers and sums of it overflow: the error ended the controller, and again at every restart."""
    algorithm, fields = ABSURD[method]
    left = run(tmp_path, tells(**fields), raw=study(algorithms=algorithm))
    (receipt, *_) = left.bad.told
    assert receipt.verdict == pb.Receipt.REFUSED
    assert receipt.reason.endswith(" is taken")


def test_an_absurd_loss_of_an_opinion_is_none() -> None:
    for loss in (1e13, -1e13):
        with pytest.raises(InvalidUpdate, match="a loss of"):
            decode_scored(pb.Scored(count=3, loss=loss), count=3, classes=None, bins=0)
    assert decode_scored(pb.Scored(count=3, loss=2e12), count=3, classes=None, bins=0).loss == 2e12

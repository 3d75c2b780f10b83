"""When a validation cycle ends: Metis section V, C1 and C2 with tombstones."""

from __future__ import annotations

import math
from typing import Any

import pytest

from archipel.core.types import Cycle
from archipel.learner.stopping import ended, failed


@pytest.mark.parametrize(
    ("before", "after", "threshold", "fails"),
    [
        # C1: Vpct >= 0
        (2.0, 3.0, 0.0, True),  # +50 %
        (2.0, 2.0, 0.0, True),  # a plateau
        (2.0, 3.0, 10.0, True),
        # with VC_loss = 0 any fall is progress
        (2.0, 1.9999, 0.0, False),
        # C2: Vpct < 0 and |Vpct| <= VC_loss
        (4.0, 3.0, 30.0, True),  # -25 %, within 30
        (4.0, 3.0, 20.0, False),  # -25 %, beyond 20
        (4.0, 3.0, 25.0, True),  # exactly the threshold does not suffice
        (4.0, 3.0, 24.0, False),
        (1.0, 0.5, 50.0, True),
        # what is not a number shows no progress
        (math.nan, 1.0, 0.0, True),
        (1.0, math.nan, 0.0, True),
        (math.nan, math.nan, 0.0, True),
        (1.0, math.inf, 0.0, True),
        # a loss of zero cannot fall
        (0.0, 0.0, 0.0, True),
        (1.0, 0.0, 99.0, False),  # -100 %
    ],
)
def test_an_epoch_fails_by_c1_or_c2(before: Any, after: Any, threshold: float, fails: bool) -> None:
    assert failed(before, after, threshold) is fails


@pytest.mark.parametrize("threshold", [0.0, 1.0, 12.5, 40.0])
def test_failures_are_the_papers_conditions(threshold: float) -> None:
    for before in (0.25, 1.0, 3.0):
        for after in (0.0, 0.125, 0.25, 0.9921875, 1.0, 2.0, 2.9375, 3.0, 8.0):
            vpct = 100 * (after - before) / before
            assert failed(before, after, threshold) is (vpct >= 0 or (vpct < 0 and abs(vpct) <= threshold))


FALLS = [8.0, 4.0, 5.0, 3.0, 3.5, 2.0, 2.5]  # the received model's loss, then one an epoch: epochs 2, 4 and 6 fail


def length(cycle: Cycle, losses: list[float]) -> int:
    """Epochs of the cycle: the first number of epochs after which it is over."""
    return next(epoch for epoch in range(1, len(losses)) if ended(cycle, losses[: epoch + 1]))


@pytest.mark.parametrize(("tombstones", "epochs"), [(0, 2), (1, 4), (2, 6)])
def test_a_cycle_ends_at_the_first_failure_after_the_tombstones(tombstones: int, epochs: int) -> None:
    assert length(Cycle(tombstones=tombstones), FALLS) == epochs


def test_a_cycle_that_has_tombstones_left_goes_on() -> None:
    assert not ended(Cycle(tombstones=3), FALLS)


def test_failures_need_not_follow_one_another() -> None:
    # C2 at 60 %: falls of 50 %, rise, 40 % fail, rise ...: every epoch does
    assert length(Cycle(loss=60.0, tombstones=2), FALLS) == 3


def test_the_first_epoch_is_compared_with_the_received_model() -> None:
    assert length(Cycle(), [1.0, 2.0, 0.5]) == 1
    assert not ended(Cycle(), [1.0])


def test_a_cycle_ends_at_its_largest_number_of_epochs() -> None:
    falling = [1 / (epoch + 1) for epoch in range(9)]
    assert length(Cycle(at_most=5), falling) == 5
    assert not ended(Cycle(at_most=5), falling[:5])


def test_a_loss_that_is_not_a_number_ends_the_cycle() -> None:
    assert length(Cycle(), [math.nan, math.nan]) == 1
    assert length(Cycle(tombstones=1), [1.0, math.nan, 0.5]) == 2

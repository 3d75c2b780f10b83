"""Crash anywhere: whatever event comes next, a controller made from what was saved does what the old one would have.

`replay.py` holds the checkers. They are tried on parts that break the laws as well: a checker that finds nothing there
would prove nothing here.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from archipel.core.parts import (
    Stream,
)
from archipel.core.types import Cancel, Failed, Finish, Left, Progress
from tests.core.crash_cases import (
    ALGORITHMS,
    both,
    every,
    log_of,
)
from tests.core.replay import crash, crash_at_every_event, other_arrivals


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.slow
@both
@every
def test_a_controller_goes_on_from_wherever_it_was_cut_off(name: str, lost: float, tmp_path: Path) -> None:
    log = log_of(name, lost)
    assert log.state is not None
    assert log.state.version >= 2
    points = {0, len(log.events) - 1, *np.random.default_rng(1).integers(len(log.events), size=2).tolist()}
    assert crash(ALGORITHMS[name], log, points, tmp_path) is None


@pytest.mark.slow
@every
def test_a_controller_that_is_cut_off_before_every_event(name: str, tmp_path: Path) -> None:
    assert crash_at_every_event(ALGORITHMS[name], log_of(name, 0.2), tmp_path) is None


def test_the_logs_hold_what_may_go_wrong() -> None:
    def events(name: str, lost: float = 0.0) -> set[type]:
        return {type(event) for event, _ in log_of(name, lost).events}

    def commands(name: str) -> set[type]:
        return {type(command) for said in log_of(name, 0.0).commands for command in said}

    assert Failed in events("fedavg", 0.2)
    assert Progress in events("async_dvw")
    assert Left in events("a community that forgets")
    assert Cancel in commands("a deadline")
    assert Finish in commands("async_dvw")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, make in ALGORITHMS.items()
        if not isinstance(make().protocol, Stream) and not make().needs.validation and name != "a deadline"
    ],
)
def test_the_model_does_not_depend_on_who_answered_first(name: str) -> None:
    for seed in range(3):
        assert other_arrivals(ALGORITHMS[name], log_of(name, 0.2), np.random.default_rng(seed)) is None

"""Parts that break the laws of replay are caught."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archipel.algorithms import fedavg
from archipel.core.algorithm import Algorithm
from archipel.core.parts import (
    Weighting,
)
from archipel.core.state import Update, View
from archipel.core.types import Scored
from tests.core.crash_cases import (
    Make,
    simulator,
)
from tests.core.replay import Log, crash, crash_at_every_event, difference, logged, other_arrivals


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_what_differs_in_one_bit_differs() -> None:
    one = Scored(2, float("nan"), np.array([[1, 1], [0, 0]]))
    assert difference([one], [replace(one, confusion=np.array([[1, 1], [0, 0]]))]) is None
    for other in (
        replace(one, count=3),
        replace(one, loss=0.0),
        replace(one, confusion=None),
        replace(one, confusion=np.array([[1, 0], [1, 0]])),
        replace(one, confusion=np.array([[1, 1], [0, 0]], dtype=np.int32)),
    ):
        assert difference([one], [other]) is not None
    assert difference(torch.tensor([0.0]), torch.tensor([-0.0])) is not None
    assert difference({"a": 1, "b": 2}, {"b": 2, "a": 1}) is not None
    assert difference((1, 2), [1, 2]) is not None


@dataclass(frozen=True)
class ByNumpysDice(Weighting):
    """Draws from numpy's global generator."""

    def weigh(self, view: View, update: Update) -> float:
        return float(np.random.random())


@dataclass(frozen=True)
class ByPythonsDice(Weighting):
    """Draws from Python's global generator."""

    def weigh(self, view: View, update: Update) -> float:
        return random.random()


@dataclass(frozen=True)
class ByTheClock(Weighting):
    """Weighs by the time of day."""

    def weigh(self, view: View, update: Update) -> float:
        return float(time.perf_counter_ns())


@dataclass(frozen=True)
class OnItself(Weighting):
    """Counts on itself how many it has weighed."""

    def weigh(self, view: View, update: Update) -> float:
        object.__setattr__(self, "count", getattr(self, "count", 0) + 1)
        return float(self.count)  # type: ignore[attr-defined]


WEIGHED: list[int] = []


@dataclass(frozen=True)
class InTheModule(Weighting):
    """Counts in a global of its module."""

    def weigh(self, view: View, update: Update) -> float:
        WEIGHED.append(update.task)
        return float(len(WEIGHED))


@dataclass
class Arrivals:
    came: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ByArrival(Weighting):
    """Its memory is in the right place, but its sums depend on the order of arrival."""

    def observe(self, view: View, update: Update) -> None:
        came = view.memory(Arrivals).came
        came[update.task] = len(came) + 1

    def weigh(self, view: View, update: Update) -> float:
        return 1.0 / view.memory(Arrivals).came[update.task]


@dataclass
class Counted:
    count: int = 0


@dataclass(frozen=True)
class InTheMemory(Weighting):
    """Counts where a part should: the counter-example to the counter-examples."""

    def weigh(self, view: View, update: Update) -> float:
        memory = view.memory(Counted)
        memory.count += 1
        return float(memory.count)


def with_weighting(weighting: Callable[[], Weighting]) -> tuple[Make, Log]:
    def make() -> Algorithm:
        return replace(fedavg(0.5, batch=8), weighting=weighting())

    return make, logged(simulator(make()))


@pytest.mark.slow
@pytest.mark.parametrize("weighting", [ByNumpysDice, ByPythonsDice, ByTheClock, OnItself, InTheModule])
def test_a_part_that_breaks_the_law_is_caught(weighting: Callable[[], Weighting], tmp_path: Path) -> None:
    make, log = with_weighting(weighting)
    middle = len(log.events) // 2
    found = crash(make, log, {middle}, tmp_path)
    assert found is not None
    assert ".weights" in found, "it says what differs"
    assert crash_at_every_event(make, log, tmp_path) is not None


def test_memory_on_itself_shows_only_after_a_crash(tmp_path: Path) -> None:
    make, log = with_weighting(OnItself)
    assert crash(make, log, (), tmp_path) is None
    assert "after a crash" in str(crash(make, log, {len(log.events) // 2}, tmp_path))


def test_sums_by_order_of_arrival_are_caught() -> None:
    make, log = with_weighting(ByArrival)
    found = other_arrivals(make, log, np.random.default_rng(0))
    assert found is not None
    assert ".weights" in found


def test_a_part_that_keeps_the_law_is_not_suspected(tmp_path: Path) -> None:
    make, log = with_weighting(InTheMemory)
    assert crash(make, log, {len(log.events) // 2}, tmp_path) is None
    assert crash_at_every_event(make, log, tmp_path) is None


@dataclass
class Hoard:
    seen: Any = None


@dataclass(frozen=True)
class Hoarder(Weighting):
    """Remembers a set, which has no order and cannot be saved."""

    def weigh(self, view: View, update: Update) -> float:
        view.memory(Hoard).seen = {update.task}
        return 1.0


def test_a_part_that_remembers_what_cannot_be_saved_is_told_so_when_it_is_saved(tmp_path: Path) -> None:
    make, log = with_weighting(Hoarder)
    with pytest.raises(TypeError, match=r"memory\['weighting'\].seen holds a builtins.set, which cannot be saved"):
        crash(make, log, {len(log.events) - 1}, tmp_path)

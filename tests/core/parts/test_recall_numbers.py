"""Condition C3 of Metis: effective staleness by a timeline, and its median."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel import Ending, MedianStaleness, async_fedavg
from archipel.core.controller import Controller
from archipel.core.parts import Recall
from archipel.core.records import Committed
from archipel.core.state import Assignment
from archipel.core.types import Command, Finish, Joined, Keep, Model, Plan, Progress, Train, Trained
from archipel.kernels import kernels
from archipel.simulation.vectors import MemoryModels
from tests.core.parts.by_hand import Bench, layout


class Timeline:
    """An engine driven by hand: the test decides when learners report."""

    def __init__(self, recall: Recall | None, *learners: str) -> None:
        self.models = MemoryModels()
        algorithm = replace(async_fedavg(), recall=recall)
        self.controller = Controller(
            algorithm,
            layout(w=1),
            self.models,
            ending=Ending(commits=1000),
            initial=torch.zeros(1),
            kernels=kernels(),
            learners=len(learners),
        )
        self.at: dict[str, int] = {}
        for name in learners:
            self.hear(self.controller.handle(Joined(name, examples=1)))

    def hear(self, commands: list[Command]) -> list[Command]:
        for command in commands:
            if isinstance(command, Train):
                self.at[command.learner] = command.task
        return commands

    def commit(self, learner: str, steps: int) -> int:
        """The learner reports after so many steps; the effective staleness that its commit was stamped with."""
        task = self.at[learner]
        self.models.write(f"t{task}", torch.zeros(1))
        commands = self.hear(self.controller.handle(Trained(task, f"t{task}", ("w",), steps)))
        (record,) = [c.record for c in commands if isinstance(c, Keep) and isinstance(c.record, Committed)]
        return record.stale_steps[0]

    def progress(self, learner: str, steps: int) -> list[Command]:
        return self.controller.handle(Progress(self.at[learner], steps))


def test_effective_staleness_by_a_timeline() -> None:
    # S_k = S_c(t') - S_c(t) + S_k: what was committed since the model was handed out, and its own steps
    line = Timeline(None, "a", "b", "c")
    assert line.commit("a", 5) == 5  # nothing was committed before: 0 - 0 + 5; S_c = 5
    assert line.commit("b", 7) == 12  # handed out at 0: 5 - 0 + 7; S_c = 12
    assert line.commit("a", 4) == 11  # handed out at 5: 12 - 5 + 4; S_c = 16
    assert line.commit("c", 3) == 19  # handed out at 0: 16 - 0 + 3; S_c = 19
    assert line.commit("b", 2) == 9  # handed out at 12: 19 - 12 + 2; S_c = 21
    assert line.controller.state.committed == 5 + 7 + 4 + 3 + 2


def test_a_learner_is_recalled_when_its_staleness_exceeds_its_median() -> None:
    line = Timeline(MedianStaleness(after=2), "a", "b")
    assert [line.commit("a", 3), line.commit("a", 5)] == [3, 5]  # median 4; S_c = 8
    assert line.progress("a", 4) == []  # 8 - 8 + 4 = 4 is not above 4
    assert line.progress("a", 5) == [Finish(line.at["a"])]
    assert line.progress("a", 6) == []  # it has been told


def test_a_commit_of_others_makes_it_stale_too() -> None:
    line = Timeline(MedianStaleness(after=2), "a", "b")
    line.commit("a", 3)
    line.commit("a", 5)  # median 4; a starts again at S_c = 8
    task = line.at["a"]
    assert line.progress("a", 3) == []
    line.models.write("b", torch.zeros(1))
    commands = line.controller.handle(Trained(line.at["b"], "b", ("w",), 2))  # S_c = 10: 10 - 8 + 3 = 5 > 4
    assert Finish(task) in commands


# ------------------------------------------------------------------------------------------------------- the median


def assignment(learner: str, committed: int, steps: int) -> Assignment:
    return Assignment(0, learner, Model("v0", ()), Plan(), 0, committed, 0, False, steps)


def remember(bench: Bench, part: MedianStaleness, learner: str, values: list[int]) -> None:
    for value in values:
        update = bench.update(learner)
        update.stale_steps = value
        part.committed(bench.view(), [update])


@pytest.mark.parametrize(("cycles", "due"), [(0, False), (19, False), (20, True), (21, True)])
def test_the_median_counts_from_the_twentieth_cycle(cycles: Any, due: Any) -> None:
    bench = Bench(layout(w=1))
    part = MedianStaleness()
    remember(bench, part, "a", [10] * cycles)
    assert part.due(bench.view(), assignment("a", 0, 1000)) is due


@pytest.mark.parametrize("length", [20, 21, 40, 57])
def test_the_median_is_of_all_cycles_so_far(length: Any) -> None:
    bench = Bench(layout(w=1))
    part = MedianStaleness()
    values = np.random.default_rng(length).integers(1, 100, length).tolist()
    remember(bench, part, "a", values)
    bar = statistics.median(values)
    # at S_c = 500, handed out at 500 - s: staleness s
    bench.state.committed = 500
    for s in range(100):
        assert part.due(bench.view(), assignment("a", 500 - s, 0)) is (s > bar)


@pytest.mark.parametrize(("window", "bar"), [(None, 4.5), (2, 5.0), (4, 4.5), (9, 4.5)])
def test_the_median_of_the_first_cycles_only(window: Any, bar: Any) -> None:
    # of 4, 6, 3, 5 the first two have the median 5, all four 4.5; later cycles do not enter a window
    bench = Bench(layout(w=1))
    part = MedianStaleness(after=2, window=window)
    remember(bench, part, "a", [4, 6, 3, 5])
    if window is not None and window <= 4:
        remember(bench, part, "a", [100, 100, 100])
    assert not part.due(bench.view(), assignment("a", 0, math.floor(bar)))
    assert part.due(bench.view(), assignment("a", 0, math.floor(bar) + 1))


def test_every_learner_has_a_median_of_its_own() -> None:
    bench = Bench(layout(w=1))
    part = MedianStaleness(after=1)
    remember(bench, part, "fast", [5])
    remember(bench, part, "slow", [50])
    assert part.due(bench.view(), assignment("fast", 0, 6))
    assert not part.due(bench.view(), assignment("slow", 0, 6))
    assert not part.due(bench.view(), assignment("new", 0, 6))


def test_recall_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="MedianStaleness: after should be at least 1, got 0"):
        MedianStaleness(0)
    with pytest.raises(ValueError, match="MedianStaleness: window should be at least 1, got 0"):
        MedianStaleness(window=0)


STORY = st.lists(st.tuples(st.sampled_from(["hand out", "progress", "commit"]), st.sampled_from("abcd")), max_size=120)


@settings(max_examples=75)
@given(story=STORY, after=st.integers(1, 3), window=st.one_of(st.none(), st.integers(1, 4)))
def test_overdue_tasks_are_those_that_a_walk_finds(
    story: list[tuple[str, str]], after: int, window: int | None
) -> None:
    bench, part = Bench(layout(w=1)), MedianStaleness(after, window)
    view, recalled = bench.view("recall"), set[int]()
    history: dict[str, list[int]] = {}
    tasks: dict[str, Assignment] = {}
    for number, (what, learner) in enumerate(story):
        if what == "hand out" and learner not in tasks:
            tasks[learner] = Assignment(
                number, learner, bench.state.model, Plan(), 0, bench.state.committed, 0, travels=False
            )
            bench.state.out[number] = tasks[learner]
            part.watch(view, tasks[learner])
        elif what == "progress" and learner in tasks:
            tasks[learner].steps += 1 + number % 3
            part.watch(view, tasks[learner])
        elif what == "commit" and learner in tasks:
            task = tasks.pop(learner)
            del bench.state.out[task.task]
            update = bench.update(learner)
            update.stale_steps = bench.state.committed - task.committed + task.steps
            bench.state.committed += task.steps + 1
            history.setdefault(learner, []).append(update.stale_steps)
            part.committed(view, [update])
        found = set(part.overdue(view))
        walked = {
            task.task
            for task in tasks.values()
            if len(history.get(task.learner, [])) >= after
            and bench.state.committed - task.committed + task.steps > statistics.median(history[task.learner][:window])
        }
        assert found <= walked
        assert found | recalled >= walked, "a task that was recalled need not be found again"
        recalled |= found

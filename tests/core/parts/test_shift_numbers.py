"""Shifts of gradients by pencil: what is sent with a task, and what a commit makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from archipel.core.parts.server import Replace
from archipel.core.parts.shifts import ControlVariates, DynamicMean, DynamicRegulariser, GradientShift, LearnerMomentum
from archipel.core.state import Update
from archipel.core.types import Plan
from tests.core.parts.by_hand import Bench, layout

PLAN = Plan(rate=0.1)


def bench(**sizes: int) -> Bench:
    """A model of zeros, and the learners a, b and c."""
    made = Bench(layout(**(sizes or {"fc": 1})))
    for name in "abc":
        made.join(name)
    return made


def answered(made: Bench, planner: GradientShift, learner: str, numbers: list[float], steps: int = 4) -> Update:
    """The update of a task that this planner planned, after so many steps."""
    plan = planner.plan(made.view("planner.0"), made.state.members[learner], PLAN)
    return replace(made.update(learner, numbers), plan=plan, steps=steps)


def shift(made: Bench, planner: GradientShift, learner: str) -> list[float]:
    return planner.shift(made.view("planner.0"), learner).tolist()


def test_control_variates() -> None:
    made, planner = bench(), ControlVariates()
    view = made.view("planner.0")
    assert shift(made, planner, "a") == [0]
    # a moved by -.4 in 4 steps of .1: a mean gradient of 1; b by .2: -.5; c took no part: c = (1 - .5) / 3
    planner.committed(view, [answered(made, planner, "a", [-0.4]), answered(made, planner, "b", [0.2])])
    assert shift(made, planner, "a") == pytest.approx([1 / 6 - 1])
    assert shift(made, planner, "b") == pytest.approx([1 / 6 + 0.5])
    assert shift(made, planner, "c") == pytest.approx([1 / 6])
    # a moves by -.2 in 2 steps of .1 along gradients - 5 / 6: their mean is 1 + 5 / 6, and c grows by a third of 5 / 6
    planner.committed(view, [answered(made, planner, "a", [-0.2], steps=2)])
    assert shift(made, planner, "c") == pytest.approx([1 / 6 + 5 / 18])
    assert shift(made, planner, "a") == pytest.approx([1 / 6 + 5 / 18 - 11 / 6])


def test_a_variate_changes_only_in_layers_that_were_trained_and_sent() -> None:
    made, planner = bench(fc1=1, norm_buffers=1, fc2=1, head=1), ControlVariates()
    update = answered(made, planner, "a", [-0.4, -0.4, -0.4, -0.4])
    update.plan = replace(update.plan, trains=("fc1", "fc2"))
    update.layers = made.layout.indices(["fc1", "norm.buffers", "head"])
    planner.committed(made.view("planner.0"), [update])
    assert shift(made, planner, "c") == pytest.approx([1 / 3, 0, 0, 0])


def test_a_task_without_a_step_and_numbers_that_are_not_finite_change_nothing() -> None:
    made, planner = bench(), ControlVariates()
    planner.committed(made.view("planner.0"), [answered(made, planner, "a", [-0.4], steps=0)])
    assert shift(made, planner, "a") == [0]
    planner.committed(made.view("planner.0"), [answered(made, planner, "a", [3e38], steps=1)])  # 3e39 is infinite
    assert shift(made, planner, "a") == shift(made, planner, "b") == [0]


def test_feddyn() -> None:
    made, planner, merge = bench(), DynamicRegulariser(0.5), DynamicMean()
    view = made.view("planner.0")
    assert planner.plan(view, made.state.members["a"], PLAN).proximal == 0.5
    # a at 1, b at 3: d = -(1 + 3) / 3, w = 2 + 4 / 3; h_a = .5 x 1, h_b = .5 x 3
    first = [answered(made, planner, "a", [1.0]), answered(made, planner, "b", [3.0])]
    assert made.commit(merge, Replace(), first, [1, 1]) == pytest.approx([10 / 3])
    planner.committed(view, first)
    assert shift(made, planner, "a") == pytest.approx([0.5])
    assert shift(made, planner, "b") == pytest.approx([1.5])
    assert shift(made, planner, "c") == [0]
    # a moves from 10 / 3 to 13 / 3: d = -4 / 3 - 1 / 3, w = 13 / 3 + 5 / 3; h_a = .5 + .5
    second = [answered(made, planner, "a", [13 / 3])]
    assert made.commit(merge, Replace(), second, [1]) == pytest.approx([6])
    planner.committed(view, second)
    assert shift(made, planner, "a") == pytest.approx([1.0])


def test_a_refused_model_leaves_no_drift() -> None:
    made, planner, merge = bench(), DynamicRegulariser(0.5), DynamicMean()
    update = answered(made, planner, "a", [3.0])
    proposal = merge.merge(made.view("merge"), [update], [(1.0,)])
    assert proposal.undo is not None
    proposal.undo()
    assert made.commit(merge, Replace(), [update], [1]) == pytest.approx([4]), "3 + 3 / 3"


def test_momentum_of_the_learners() -> None:
    made, planner = bench(), LearnerMomentum(0.25)
    view = made.view("planner.0")
    assert planner.plan(view, made.state.members["a"], PLAN).rate == pytest.approx(0.025)
    # directions -(-.4) / (4 x .1) = 1 and -.2 / (2 x .1) = -1: D = 0; then a alone: D = 1, a shift of 1 x .75 / .25
    both = [answered(made, planner, "a", [-0.4]), answered(made, planner, "b", [0.2], steps=2)]
    planner.committed(view, both)
    assert shift(made, planner, "c") == pytest.approx([0], abs=1e-7)
    planner.committed(view, both[:1])
    assert shift(made, planner, "c") == pytest.approx([3])


def test_the_name_of_a_shift_is_the_tasks_own() -> None:
    made, planner = bench(), ControlVariates()
    member = made.state.members["a"]
    first = planner.plan(made.view("planner.0"), member, PLAN)
    member.given += 1
    second = planner.plan(made.view("planner.0"), member, PLAN)
    assert (first.shift, second.shift) == ("planner.0/a.0", "planner.0/a.1")
    assert torch.equal(made.models.read("planner.0/a.0"), torch.zeros(1))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DynamicRegulariser(0), "DynamicRegulariser: alpha should be more than 0"),
        (lambda: LearnerMomentum(1.5), "LearnerMomentum: alpha should be"),
    ],
)
def test_bad_settings_are_refused(make: Any, words: Any) -> None:
    with pytest.raises(ValueError, match=words):
        make()

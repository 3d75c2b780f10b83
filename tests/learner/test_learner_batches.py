"""Which examples make which mini-batch."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from archipel.core.layout import Layout
from archipel.core.types import Cycle, Plan
from archipel.learner.batches import batches, epochs_of, shuffled, steps_after, steps_of_epoch
from archipel.learner.learner import Job

from tests.learner.one_learner import learner  # isort: skip


def sizes(plan: Plan, examples: int) -> list[list[int]]:
    return [[len(batch) for batch in batches(plan, 0, examples, epoch)] for epoch in range(epochs_of(plan, examples))]


@pytest.mark.parametrize(
    ("examples", "batch", "steps"), [(10, 4, 3), (12, 4, 3), (13, 4, 4), (3, 4, 1), (4, 4, 1), (1, 100, 1)]
)
def test_steps_of_an_epoch_round_up(examples: Any, batch: int, steps: int) -> None:
    assert steps_of_epoch(examples, batch) == steps


def test_the_last_batch_is_what_is_left() -> None:
    assert sizes(Plan(epochs=2, batch=4), 10) == [[4, 4, 2], [4, 4, 2]]
    assert sizes(Plan(epochs=1, batch=4), 8) == [[4, 4]]


def test_a_learner_with_fewer_examples_trains_on_all_at_once() -> None:
    assert sizes(Plan(epochs=2, batch=100), 7) == [[7], [7]]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (7, [[4, 4, 2], [4, 4, 2], [4]]),  # two passes and one batch of a third
        (6, [[4, 4, 2], [4, 4, 2]]),
        (2, [[4, 4]]),
        (3, [[4, 4, 2]]),
        (4, [[4, 4, 2], [4]]),
    ],
)
def test_a_plan_by_steps_runs_on_into_further_passes(steps: int, expected: Any) -> None:
    # epochs count for nothing then
    assert sizes(Plan(epochs=50, steps=steps, batch=4), 10) == expected


def test_steps_when_so_many_passes_have_ended() -> None:
    by_epochs, by_steps = Plan(epochs=4, batch=4), Plan(steps=7, batch=4)
    assert [steps_after(by_epochs, 10, epoch) for epoch in range(5)] == [0, 3, 6, 9, 12]
    assert [steps_after(by_steps, 10, epoch) for epoch in range(5)] == [0, 3, 6, 7, 7]


def test_a_validation_cycle_has_as_many_epochs_as_it_may() -> None:
    assert epochs_of(Plan(epochs=3, cycle=Cycle(at_most=17)), 10) == 17


def test_a_job_tells_its_passes_even_if_the_last_was_cut_short() -> None:
    # 7 steps of 3 a pass
    layout = Layout.of(torch.nn.Linear(1, 1))
    job = Job.begin(learner(torch.arange(10)), layout, torch.zeros(2), Plan(steps=7, batch=4))
    assert job.metrics(3, None, None).epochs == pytest.approx(7 / 3)
    assert (job.steps_at(2), job.steps_at(3)) == (6, 7)


def test_every_pass_sees_every_example_once() -> None:
    plan = Plan(epochs=5, batch=4)
    for epoch in range(5):
        assert sorted(chain.from_iterable(b.tolist() for b in batches(plan, 11, 10, epoch))) == list(range(10))


def test_the_order_is_a_function_of_key_and_pass() -> None:
    assert np.array_equal(shuffled(11, 50, 3), shuffled(11, 50, 3))
    others = [shuffled(11, 50, 4), shuffled(12, 50, 3)]
    assert not any(np.array_equal(shuffled(11, 50, 3), other) for other in others)
    whole, cut = batches(Plan(batch=50), 11, 50, 3), batches(Plan(batch=7), 11, 50, 3)
    assert torch.equal(torch.cat(whole), torch.cat(cut)), "the plan has no part in it"


def test_every_order_has_the_same_chance() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for key in range(1200):
        order = tuple(shuffled(key, 4, 0).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert scipy.stats.chisquare(list(counts.values())).pvalue > 0.01

"""Merges that add up changes, number by number."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from archipel.core.parts import FairChange, MeanChange, Momentum, NormalisedChange, Replace
from archipel.core.types import Metrics, Model
from tests.core.parts.by_hand import Bench, layout


def test_fedbuff_adds_the_changes_to_the_current_model() -> None:
    bench = Bench(layout(w=1), [10.0])
    first = bench.update("a", [12.0])  # moved by +2 from version 0
    bench.state.version, bench.state.model = 1, Model("v1", ("v1",))
    bench.models.write("v1", bench.models.read("v0") + 5)
    second = bench.update("b", [11.0])  # moved by -4 from version 1
    # s = 1/2 and 1: 15 + (1/2) (1/2 x 2 + 1 x -4)
    assert bench.commit(MeanChange(), Replace(), [first, second], [0.5, 1.0]) == [13.5]


def test_the_models_that_waiting_updates_started_from_are_held() -> None:
    bench = Bench(layout(w=1), [0.0])
    bench.join("a")
    bench.state.enqueue(bench.update("a", [1.0]))
    bench.state.set_model(Model("v1", ("v1",)), {})
    assert list(bench.state.vectors.unneeded()) == [], "a merge of changes will read v0"
    bench.state.dequeue([*bench.state.queue])
    assert "v0" in bench.state.vectors.unneeded()


def test_each_layer_is_moved_by_those_who_sent_it() -> None:
    bench = Bench(layout(x=1, y=1, nobody=1), [1.0, 1.0, 1.0])
    updates = [bench.update("a", [3.0, 9.0, 9.0], ["x"]), bench.update("b", [5.0, 7.0, 9.0], ["x", "y"])]
    # x: 1 + (2 + 4) / 2; y: b alone, 1 + 6 / 1
    proposal = MeanChange().merge(bench.view(), updates, [(1.0,) * 3] * 2)
    assert proposal.layers == (0, 1)
    assert bench.commit(MeanChange(), Replace(), updates, [1.0, 1.0]) == [4.0, 7.0, 1.0]


def test_the_server_optimiser_takes_the_mean_change_for_a_gradient() -> None:
    bench = Bench(layout(w=1), [0.0])
    momentum = Momentum(0.5, 0.5)
    assert bench.commit(MeanChange(), momentum, [bench.update("a", [4.0])], [1.0]) == [2.0]
    # m = .5 x 4 + 2 = 4
    assert bench.commit(MeanChange(), momentum, [bench.update("a", [4.0])], [1.0]) == [4.0]


def test_fednova_counts_a_learner_by_its_examples_not_by_its_steps() -> None:
    bench = Bench(layout(w=1), [0.0])
    few, many = bench.update("a", [2.0]), bench.update("b", [-30.0])
    few.steps, many.steps = 2, 10
    # d = 1 and -3 a step; p = 3/4 and 1/4; tau = 3/4 x 2 + 1/4 x 10 = 4; w = 4 (3/4 x 1 - 1/4 x 3)
    assert bench.commit(NormalisedChange(), Replace(), [few, many], [3.0, 1.0]) == pytest.approx([0.0], abs=1e-6)
    bench = Bench(layout(w=1), [0.0])
    few, many = bench.update("a", [2.0]), bench.update("b", [10.0])
    few.steps, many.steps = 2, 10
    # FedAvg would give 4 for equal weights of 2 and 6; d is 1 at both
    assert bench.commit(NormalisedChange(), Replace(), [few, many], [1.0, 1.0]) == [6.0]


def test_equal_steps_make_fednova_fedavg() -> None:
    bench = Bench(layout(w=1), [1.0])
    updates = [bench.update("a", [3.0]), bench.update("b", [7.0])]
    assert bench.commit(NormalisedChange(), Replace(), updates, [1.0, 3.0]) == [6.0]


def test_what_steps_add_up_to() -> None:
    """|a|_1 by the sums of FedNova section 4.1, gradient by gradient."""
    for steps in (1, 2, 7):
        with_momentum = sum(sum(0.9**later for later in range(steps - step)) for step in range(steps))
        assert NormalisedChange(momentum=0.9).length(steps) == pytest.approx(with_momentum)
        with_anchor = sum(0.95 ** (steps - 1 - step) for step in range(steps))
        assert NormalisedChange(decay=0.05).length(steps) == pytest.approx(with_anchor)
        assert NormalisedChange().length(steps) == steps


def test_a_learner_that_made_no_step_moves_nothing() -> None:
    found = NormalisedChange().coefficients(
        [bench_update(steps) for steps in (0, 4)],
        [1.0, 1.0],
    )
    assert found == [0.0, 0.25]
    assert all(map(math.isfinite, NormalisedChange().coefficients([bench_update(0)], [1.0])))


def bench_update(steps: int) -> Any:
    update = Bench(layout(w=1)).update("a", [1.0])
    update.steps = steps
    return update


def test_q_fedavg_by_hand() -> None:
    """L = 2, q = 2: D = 2 x (1 - 2) and 2 x (1 - 4), F = 3 and 1."""
    bench = Bench(layout(w=1), [1.0])
    updates = [
        bench.update("a", [2.0], metrics=Metrics(training_loss=3.0)),
        bench.update("b", [4.0], metrics=Metrics(training_loss=1.0)),
    ]
    # h = 2 x 3 x 4 + 2 x 9 = 42 and 2 x 1 x 36 + 2 x 1 = 74; the model moves by (9 x 2 + 1 x 6) / 116
    assert bench.commit(FairChange(2.0, 0.5), Replace(), updates, [1.0, 1.0]) == pytest.approx([1 + 24 / 116])


def test_q_fedavg_without_q_is_the_mean() -> None:
    bench = Bench(layout(w=1), [1.0])
    updates = [
        bench.update("a", [2.0], metrics=Metrics(training_loss=0.0)),
        bench.update("b", [4.0], metrics=Metrics(training_loss=9.0)),
    ]
    assert bench.commit(FairChange(0.0, 0.5), Replace(), updates, [1.0, 1.0]) == [3.0]


def test_q_fedavg_adds_up_the_bounds_of_a_round_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, added = Bench(layout(w=1), [1.0]), list[int]()
    updates = [bench.update(str(number), [2.0], metrics=Metrics(training_loss=1.0)) for number in range(20)]
    plain = math.fsum

    def fsum(numbers: Iterable[float]) -> float:
        listed = list(numbers)
        added.append(len(listed))
        return plain(listed)

    monkeypatch.setattr(math, "fsum", fsum)
    FairChange().merge(bench.view(), updates, [(1.0,)] * 20)
    assert sum(added) == 40, "a norm of one piece for each update, and once all updates"


def test_q_fedavg_refuses_a_weight_for_each_layer() -> None:
    bench = Bench(layout(x=1, y=1))
    update = bench.update("a", [1.0, 1.0], metrics=Metrics(training_loss=1.0))
    with pytest.raises(ValueError, match="the weights of learner 'a' differ from layer to layer"):
        FairChange().merge(bench.view(), [update], [(1.0, 2.0)])

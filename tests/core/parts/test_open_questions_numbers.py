"""What the authors left open: a rate that falls on a plateau, evaluators by class counts, a relay in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import archipel as ap
from archipel.core.parts.plateau import PlateauMemory
from archipel.core.parts.weighting import ValidationMemory, representative
from archipel.core.scored import Scored
from archipel.core.types import Cycle, Metrics, Plan, Score
from tests.core.parts.by_hand import Bench, layout

# ------------------------------------------------------------------------------------------ a rate that falls (Metis)


class Losses:
    """Commits whose updates have these validation losses."""

    def __init__(self, part: ap.Plateau) -> None:
        self.bench, self.part = Bench(layout(w=1)), part
        self.learner = self.bench.join("a", validation=10)

    def commit(self, *losses: float) -> float:
        """Commit an update for each loss, of ten examples each; return the rate of the next task."""
        updates = [self.bench.update("a", metrics=Metrics(validation=Scored(10, 10 * loss))) for loss in losses]
        self.part.committed(self.bench.view("planner.0"), updates)
        return self.part.plan(self.bench.view("planner.0"), self.learner, Plan(rate=0.8)).rate


def test_the_rate_is_lowered_when_the_loss_has_not_fallen_for_so_many_commits() -> None:
    line = Losses(ap.Plateau(factor=0.5, patience=2, window=1))
    assert [line.commit(loss) for loss in (3, 2, 2.5)] == [0.8] * 3
    assert line.commit(2) == 0.4, "the second one that is not below 2"
    assert [line.commit(loss) for loss in (5, 4, 4.5)] == [0.4] * 3, "it begins anew, and 4 is lower than 5"
    assert line.commit(4.2) == pytest.approx(0.2)


def test_the_mean_of_a_window_is_compared_and_a_fall_has_to_count() -> None:
    line = Losses(ap.Plateau(patience=1, window=2, threshold=0.1))
    assert [line.commit(loss) for loss in (4, 2)] == [0.8] * 2  # the first mean is 3
    assert line.commit(3.2) == 0.8, "2.6 is lower by more than a tenth"
    assert line.commit(1.8) == 0.4, "2.5 is not"


def test_losses_of_everybodys_validation_parts_are_pooled() -> None:
    line = Losses(ap.Plateau(window=1))
    own, other = Scored(10, 20.0), Scored(30, 30.0)
    update = line.bench.update("a", metrics=Metrics(validation=own), evidence=[("b", Score("validation"), other)])
    line.part.committed(line.bench.view("planner.0"), [update])
    assert line.bench.view("planner.0").memory(PlateauMemory).best == pytest.approx(50 / 40)


def test_plateau_refuses_nonsense_and_needs_validation() -> None:
    assert ap.Plateau().needs.validation
    refused: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: ap.Plateau(factor=0), "Plateau: factor should be above 0 and at most 1, got 0"),
        (lambda: ap.Plateau(patience=0), "Plateau: patience should be at least 1, got 0"),
        (lambda: ap.Plateau(threshold=1), "Plateau: threshold should be below 1, got 1"),
    )
    for make, message in refused:
        with pytest.raises(ValueError, match=message):
            make()


@pytest.mark.slow
def test_a_run_with_a_falling_rate_ends_as_one_that_is_replayed() -> None:
    algorithm = replace(ap.sync_dvw(epochs=1, batch=8, rate=0.5), planners=(ap.Plateau(patience=1, window=1),))
    data = ap.data.digits().split(learners=3, sizes=(40,) * 3)
    first, again = (ap.simulate(algorithm, data, ending=ap.Ending(rounds=8)) for _ in range(2))
    steady = ap.simulate(replace(algorithm, planners=()), data, ending=ap.Ending(rounds=8))
    assert torch.equal(first.model, again.model)
    assert not torch.equal(first.model, steady.model)


# -------------------------------------------------------------------------------- evaluators by class counts (Metis)

CLASSES = {"a": (10, 0), "b": (10, 0), "c": (0, 10), "d": (5, 5), "e": (9, 1)}


@pytest.mark.parametrize(
    ("sites", "count", "chosen"),
    [
        # everybody has 34 and 16: shares .68 and .32; e (.9) and d (.5) are nearest alone, d by .18
        (("a", "b", "c", "d", "e"), 1, ["d"]),
        (("a", "b", "c", "d", "e"), 2, ["d", "e"]),  # 14 and 6: .7
        (("a", "c"), 2, ["a", "c"]),
        (("b", "a"), 1, ["b"]),  # as good as a, and first in the order that was drawn
        (("a",), 2, []),  # nothing to choose from
    ],
)
def test_evaluators_have_everybodys_shares_of_the_classes(sites: Any, count: Any, chosen: Any) -> None:
    assert representative(sites, CLASSES, count) == chosen


def test_evaluators_are_drawn_until_counts_are_known() -> None:
    bench = Bench(layout(w=1))
    for name in CLASSES:
        bench.join(name, validation=5)
    part = ap.ByDistributedValidation(evaluators=2, choice="representative")
    (drawn,) = part.ask(bench.view("weighting"), bench.update("a"))
    assert len(drawn.sites) == 2
    for name, counts in CLASSES.items():
        part.observe(bench.view("weighting"), bench.update(name, metrics=Metrics(classes=counts)))
    assert bench.view("weighting").memory(ValidationMemory).classes == CLASSES
    (chosen,) = part.ask(bench.view("weighting"), bench.update("a"))
    assert chosen.sites == ("d", "e")
    assert part.needs.reports == ("validation", "class counts")
    with pytest.raises(ValueError, match="choice should be one of drawn, representative, got 'best'"):
        ap.ByDistributedValidation(choice="best")  # type: ignore[arg-type]


# ------------------------------------------------------------------------ all data after the validation phase (Metis)


def test_after_the_validation_phase_updates_keep_the_last_weights_of_their_learners() -> None:
    bench, part = Bench(layout(w=1)), ap.ByDistributedValidation("accuracy", until=1)
    for name in "abc":
        bench.join(name, validation=10)
    view = bench.view("weighting")
    for name, right in (("a", 8), ("b", 4)):
        opinion = Scored(10, 1.0, np.array([[right, 10 - right], [0, 0]]))
        update = bench.update(name, evidence=[("c", Score("validation"), opinion)])
        assert part.ask(view, update)
        part.committed(view, [update])
    bench.state.version = 1
    later = [bench.update(name) for name in "abc"]
    assert not any(part.ask(view, update) for update in later)
    assert [part.weigh(view, update) for update in later] == pytest.approx([0.8, 0.4, 0.6]), "c has the mean"


def test_all_data_begins_at_its_version_and_ends_cycles_and_reports() -> None:
    bench, part = Bench(layout(w=1)), ap.AllData(after=2)
    learner, cycle = bench.join("a", validation=10), Cycle()
    plan = Plan(cycle=cycle, reports=("validation", "losses", "class counts"))
    view = bench.view("planner.0")
    assert part.plan(view, learner, plan) is plan
    bench.state.version = 2
    assert part.plan(view, learner, plan) == Plan(all_data=True, reports=("class counts",))
    assert part.plans(bench.layout, plan) == (plan, Plan(all_data=True, reports=("class counts",)))


def test_all_data_is_refused_where_validation_parts_still_judge() -> None:
    with pytest.raises(ValueError, match=r"use ByDistributedValidation\(until=3\), or another"):
        replace(ap.sync_dvw(), planners=(ap.AllData(3),))
    with pytest.raises(ValueError, match="put AllData behind ValidationCycle"):
        replace(ap.fedavg(), planners=(ap.AllData(3), ap.ValidationCycle()))
    with pytest.raises(ValueError, match="AllData: after should be at least 1, got 0"):
        ap.AllData(0)
    with pytest.raises(ValueError, match="has no validation part left for its cycle"):
        Plan(all_data=True, cycle=Cycle())
    data = ap.data.digits().split(learners=3, sizes=(40,) * 3)
    with pytest.raises(ValueError, match="trains on the validation parts in the end, and is scored on them"):
        ap.simulate(ap.sync_dvw(all_data_after=2), data, evaluation=ap.Evaluation(at="validation parts"))


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["plain", "stacked", "native", "workers"])
def test_every_executor_trains_on_the_validation_parts_in_the_end(execution: Any) -> None:
    data = ap.data.digits().split(learners=3, sizes=(40,) * 3)
    settings: Any = {"epochs": 1, "batch": 8, "metric": "accuracy"}
    run = ap.simulate(
        ap.sync_dvw(all_data_after=2, **settings),
        data,
        validation=0.2,
        ending=ap.Ending(rounds=4),
        execution=execution,
    )
    steps = [task.steps for _, task in run.cycles]
    assert steps == [4] * 6 + [5] * 6, "32 examples make 4 steps of 8, and 40 make 5"


# ---------------------------------------------------------------------------------- a relay in turn (RADFed)


@pytest.mark.parametrize(("learners", "slots"), [(4, 2), (5, 2), (6, 3), (6, 6), (7, 3)])
def test_every_slot_visits_every_learner_once_in_a_round_of_the_circle(learners: int, slots: int) -> None:
    bench = Bench(layout(w=1))
    names = [f"{number:02}" for number in range(learners)]
    for name in names:
        bench.join(name)
    for round_ in range(2):
        hops = [
            ap.LatinSquare().select(bench.view("selection"), names, slots, f"round {round_ * learners + hop}")
            for hop in range(learners)
        ]
        assert all(len(set(hop)) == slots for hop in hops), "nobody has two models at a time"
        for path in zip(*hops, strict=True):
            assert sorted(path) == names


def test_who_is_not_there_is_passed_over() -> None:
    bench = Bench(layout(w=1))
    for name in "abcd":
        bench.join(name)
    first = ap.LatinSquare().select(bench.view("selection"), list("abcd"), 2, "round 0")
    away = first[0]
    there = [name for name in "abcde" if name != away]  # and e has joined since
    for number in range(1, 4):
        chosen = ap.LatinSquare().select(bench.view("selection"), there, 4, f"round {number}")
        assert sorted(chosen) == there


def test_a_relay_in_turn_spreads_its_visits() -> None:
    algorithm = replace(ap.radfed(0.5, 4, batch=8), selection=ap.LatinSquare())
    data = ap.data.digits().split(learners=4, sizes=(20,) * 4)
    run = ap.simulate(algorithm, data, ending=ap.Ending(rounds=8))
    for _, commit in run.commits:
        assert all(len(set(path)) == 4 for path in commit.paths)
        assert set(Counter(name for path in commit.paths for name in path).values()) == {2}

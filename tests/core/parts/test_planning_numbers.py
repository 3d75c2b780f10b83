"""What one task asks of a learner: the planners one by one and in chains."""

from __future__ import annotations

import math
from typing import Any

import pytest

from archipel.core.parts import Decay, PeriodicLayers, PrivateLayers, Proximal, ValidationCycle
from archipel.core.types import Cycle, Plan
from tests.core.parts.by_hand import Bench, layout

FOUR = layout(conv1=1, conv2=1, fc=1, head=1)


def plan_at(version: int, *planners: Any, plan: Plan | None = None, group: str = "", layers: Any = FOUR) -> Plan:
    """The plan of a task that is handed out at this version."""
    bench = Bench(layers)
    bench.state.version = version
    learner = bench.join("a", group=group)
    plan = plan or Plan()
    for i, planner in enumerate(planners):
        plan = planner.plan(bench.view(f"planner.{i}"), learner, plan)
    return plan


# ------------------------------------------------------------------------------------------------- proximal, decay


def test_proximal_sets_its_weight_and_nothing_else() -> None:
    assert plan_at(3, Proximal(0.01)) == Plan(proximal=0.01)
    assert plan_at(3, Proximal(0)) == Plan()


def test_decay_falls_by_a_tenth_at_every_version() -> None:
    # D&C section 4.2: from .001 by 10 % a round: .001, .0009, .00081, .000729
    rates = [plan_at(version, Decay(0.9), plan=Plan(rate=0.001)).rate for version in range(4)]
    assert rates == pytest.approx([0.001, 0.0009, 0.00081, 0.000729], rel=1e-14)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Proximal(-0.1), "Proximal: mu should be at least 0, got -0.1"),
        (lambda: Proximal(math.nan), "Proximal: mu should be at least 0, got nan"),
        (lambda: Decay(0), "Decay: factor should be above 0 and at most 1, got 0"),
        (lambda: Decay(1.1), "Decay: factor should be above 0 and at most 1, got 1.1"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# -------------------------------------------------------------------------------------------------- validation cycle


def test_validation_cycle_of_one_number_for_all() -> None:
    plan = plan_at(0, ValidationCycle(loss=1.0, tombstones=2, at_most=30), plan=Plan(reports=("progress",)))
    assert plan == Plan(cycle=Cycle(1.0, 2, 30), reports=("progress", "losses"))


def test_validation_cycle_of_a_number_for_each_group() -> None:
    # Metis fig. 3: VC_loss 0 and 1, VC_tomb 4 and 1, for fast and slow learners
    part = ValidationCycle(loss={"fast": 0, "slow": 1}, tombstones={"fast": 4, "slow": 1})
    assert plan_at(0, part, group="fast").cycle == Cycle(0, 4)
    assert plan_at(0, part, group="slow").cycle == Cycle(1, 1)
    mixed = ValidationCycle(loss={"fast": 0, "slow": 1}, tombstones=3)
    assert plan_at(0, mixed, group="slow").cycle == Cycle(1, 3)
    with pytest.raises(ValueError, match=r"no thresholds for learners of group 'medium'; groups given: fast, slow\."):
        plan_at(0, part, group="medium")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ValidationCycle(loss=-1), "Cycle: loss should be at least 0, got -1"),
        (lambda: ValidationCycle(tombstones=-1), "Cycle: tombstones should be at least 0, got -1"),
        (lambda: ValidationCycle(tombstones={"fast": 0, "slow": -1}), "tombstones should be at least 0, got -1"),
        (lambda: ValidationCycle(at_most=0), "Cycle: at_most should be at least 1, got 0"),
        (lambda: ValidationCycle({"fast": 0}, {"slow": 1}), "loss and tombstones name different groups"),
    ],
)
def test_validation_cycle_refuses_nonsense_when_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# --------------------------------------------------------------------------------------------------- periodic layers


def test_deep_layers_are_uploaded_in_the_last_rounds_of_a_period() -> None:
    # P = 10, D = 7: the first period whole, then rounds 14 to 20, 24 to 30 ...
    part = PeriodicLayers(10, 7)
    silent = [round_ for round_ in range(1, 41) if not part.uploads_deep(round_)]
    assert silent == [11, 12, 13, 21, 22, 23, 31, 32, 33]


@pytest.mark.parametrize(("period", "last", "silent"), [(3, 1, [4, 5, 7, 8]), (3, 3, []), (4, 0, [5, 6, 7, 8, 9])])
def test_other_periods(period: int, last: int, silent: Any) -> None:
    part = PeriodicLayers(period, last)
    assert [round_ for round_ in range(1, 10) if not part.uploads_deep(round_)] == silent


def test_by_hand_out_a_task_belongs_to_the_round_that_would_follow() -> None:
    part = PeriodicLayers(10, 7, deep=("fc", "head"), by="hand-out")
    assert plan_at(9, part) == Plan()  # round 10
    assert plan_at(10, part) == Plan(uploads=("conv1", "conv2"))  # round 11
    assert plan_at(12, part) == Plan(uploads=("conv1", "conv2"))
    assert plan_at(13, part) == Plan()  # round 14
    # layers are trained whether they are sent or not
    assert plan_at(10, part).trains is None


@pytest.mark.parametrize(("version", "unwanted"), [(9, ()), (10, ("fc", "head")), (12, ("fc", "head")), (13, ())])
def test_by_arrival_an_answer_belongs_to_the_round_that_would_follow(version: int, unwanted: Any) -> None:
    part = PeriodicLayers(10, 7, deep=("fc", "head"))
    bench = Bench(FOUR)
    bench.state.version = version
    assert plan_at(version, part) == Plan()
    assert part.optional(FOUR) == ("fc", "head")
    assert part.unwanted(bench.view()) == unwanted


def test_deep_is_what_lies_behind_the_first_layer_where_nothing_convolves() -> None:
    assert plan_at(10, PeriodicLayers(10, 7, by="hand-out")).uploads == ("conv1",)


@pytest.mark.parametrize("last", range(11))
def test_cost_of_plu_is_the_papers_formula(last: int) -> None:
    # section 3.3.1: R s + (P - D) d + (R / P) D d, with R = 300, P = 10, s = 2, d = 5
    part = PeriodicLayers(10, last)
    cost = sum(2 + 5 * part.uploads_deep(round_) for round_ in range(1, 301))
    assert cost == 300 * 2 + (10 - last) * 5 + 30 * last * 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PeriodicLayers(7, 10), r"last \(D\) should be between 0 and the period 7, got 10"),
        (lambda: PeriodicLayers(10, -1), r"last \(D\) should be between 0 and the period 10, got -1"),
        (
            lambda: PeriodicLayers(by="arival"),  # type: ignore[arg-type]
            "by should be one of arrival, hand-out, got 'arival'",
        ),
        (lambda: PeriodicLayers(0, 0), "period should be at least 1, got 0"),
        (lambda: PeriodicLayers(deep="all").check(FOUR), r"all layers \(conv1, conv2, fc, head\) are deep"),
        (
            lambda: PeriodicLayers(deep="fc3").check(FOUR),
            "no layer named 'fc3'. Layers of this model: conv1, conv2, fc",
        ),
    ],
)
def test_periodic_layers_refuse_nonsense(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# ---------------------------------------------------------------------------------------------------- private layers


def test_private_layers_stay_and_the_others_are_sent() -> None:
    assert plan_at(0, PrivateLayers("head")) == Plan(private=("head",), uploads=("conv1", "conv2", "fc"))
    assert plan_at(0, PrivateLayers("features")) == Plan(private=("conv1", "conv2", "fc"), uploads=("head",))
    assert plan_at(0, PrivateLayers("all")) == Plan(private=FOUR.names, uploads=())
    assert plan_at(7, PrivateLayers(("conv2", "fc"))) == Plan(private=("conv2", "fc"), uploads=("conv1", "head"))


def test_private_and_periodic_layers_in_either_order() -> None:
    private, periodic = PrivateLayers("head"), PeriodicLayers(10, 7, deep=("fc", "head"), by="hand-out")
    for chain in ((private, periodic), (periodic, private)):
        assert plan_at(10, *chain) == Plan(private=("head",), uploads=("conv1", "conv2"))
        assert plan_at(13, *chain) == Plan(private=("head",), uploads=("conv1", "conv2", "fc"))


def test_batch_norm_statistics_can_stay_private() -> None:
    layers = layout(conv=1, norm=1, norm_buffers=1, head=1)
    plan = plan_at(0, PrivateLayers("buffers"), layers=layers)
    assert plan == Plan(private=("norm.buffers",), uploads=("conv", "norm", "head"))
    # a module's name means its statistics too
    assert plan_at(0, PrivateLayers("norm"), layers=layers).private == ("norm", "norm.buffers")


def test_private_layers_refuse_names_the_model_does_not_have() -> None:
    with pytest.raises(
        ValueError, match=r"PrivateLayers: no layer named 'fc3'\. Layers of this model: conv1, conv2, fc"
    ):
        PrivateLayers("fc3").check(FOUR)

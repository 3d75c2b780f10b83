"""Fed2A's Table 4: all its gigabytes follow from one learner's upload a round.

The rounds are the paper's, the bytes are what our planners ask a learner to send of the paper's networks (formula 12
and Table 3). So the table confirms the schedule, the networks and what counts as deep.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from archipel import Algorithm, algorithms, models
from archipel.core.layout import Layout
from archipel.core.members import Member
from archipel.core.parts import PeriodicLayers
from archipel.core.state import State, View
from archipel.core.types import Model, Plan
from archipel.kernels import kernels
from archipel.simulation.vectors import MemoryModels

MB = 1024**2
GB = 1024**3

with torch.device("meta"):  # shapes only: nothing here is trained
    LAYOUTS = {
        "FMNIST": Layout.of(models.fed2a_cnn_fmnist()),
        "CIFAR-10": Layout.of(models.fed2a_cnn_cifar10()),
        "GermanTS": Layout.of(models.fed2a_cnn_germants()),
    }

# round at which the target accuracy is reached, and Cost_target in GB; FMNIST, CIFAR-10, GermanTS; "-" is left out
TABLE_4: list[tuple[Algorithm | list[Algorithm], list[int | None], list[float | None]]] = [
    (algorithms.fedavg(), [94, 97, 265], [1.27, 3.76, 2.58]),
    (algorithms.fedprox(1.0), [77, 89, None], [1.04, 3.45, None]),
    (algorithms.fedasync(rho=1.0), [95, 132, None], [1.28, 5.12, None]),
    (algorithms.plu(last=1), [168, 150, None], [0.44, 1.32, None]),
    (algorithms.plu(last=2), [120, 119, 269], [0.50, 1.47, 0.76]),
    (algorithms.plu(last=3), [118, 118, 258], [0.61, 1.83, 0.94]),
    (algorithms.plu(last=4), [99, 101, 257], [0.65, 1.95, 1.16]),
    (algorithms.plu(last=5), [107, 100, 272], [0.81, 2.27, 1.47]),
    (algorithms.plu(last=6), [90, 97, 285], [0.81, 2.48, 1.78]),
    (algorithms.plu(last=7), [88, 97, 209], [0.88, 2.80, 1.50]),
    (algorithms.plu(last=8), [94, 86, 172], [1.04, 2.76, 1.37]),
    (algorithms.plu(last=9), [88, 88, 228], [1.09, 3.13, 2.03]),
    (algorithms.tvw("exp"), [44, 62, 133], [0.59, 2.40, 1.29]),
    (algorithms.tvw("inv"), [39, 60, 133], [0.53, 2.33, 1.29]),
    (algorithms.tvw("log"), [44, 66, 144], [0.59, 2.56, 1.40]),
    (algorithms.rce(), [51, 84, 200], [0.69, 3.26, 1.95]),
    # with D = 7, 8 and 8 for the three sets
    ([algorithms.fed2a(last=7), *[algorithms.fed2a(last=8)] * 2], [18, 54, 120], [0.20, 1.74, 0.97]),
]


def cells() -> list[Any]:
    found = []
    for row, rounds, costs in TABLE_4:
        algorithms_ = row if isinstance(row, list) else [row] * 3
        for algorithm, data, round_, cost in zip(algorithms_, LAYOUTS, rounds, costs, strict=True):
            if round_ is not None:
                last = "".join(str(p.last) for p in algorithm.planners if isinstance(p, PeriodicLayers))
                found.append(pytest.param(algorithm, data, round_, cost, id=f"{algorithm.name}{last}-{data}"))
    return found


def upload(algorithm: Algorithm, layout: Layout, round_: int) -> int:
    """Bytes that one learner sends in this round, by the plan it is given."""
    state = State(0, Model("v", ()), version=round_ - 1)
    learner = Member("a", 1, 0, 0, "", "train")
    plan = Plan()
    view = View(state, layout, MemoryModels(), kernels(), "planner")
    unwanted: set[str] = set()
    for planner in algorithm.planners:
        plan = planner.plan(view, learner, plan)
        unwanted |= set(planner.unwanted(view))
    return layout.bytes(layout.indices([name for name in plan.sends(layout.names) if name not in unwanted]))


def gigabytes(algorithm: Algorithm, layout: Layout, rounds: int) -> float:
    return sum(upload(algorithm, layout, round_) for round_ in range(1, rounds + 1)) / GB


@pytest.mark.parametrize(
    ("data", "shallow", "deep", "shallow_mb", "deep_mb"),
    [
        ("FMNIST", 206_592, 3_413_770, 0.79, 13.02),
        ("CIFAR-10", 829_184, 9_574_154, 3.16, 36.52),
        ("GermanTS", 209_792, 2_403_499, 0.80, 9.17),
    ],
)
def test_table_3(data: Any, shallow: Any, deep: Any, shallow_mb: Any, deep_mb: Any) -> None:
    # formula 12: 4 n / 1024^2; for FMNIST 4 x 206592 / 1048576 = 0.788
    layout = LAYOUTS[data]
    for word, count, mb in (("shallow", shallow, shallow_mb), ("deep", deep, deep_mb)):
        size = layout.bytes(layout.indices(layout.select("test", word)))
        assert size == 4 * count
        assert round(size / MB, 2) == mb


def test_one_cell_by_hand() -> None:
    # PLU(300, 10, 7) on FMNIST, 88 rounds: deep layers in rounds 1 to 10, 7 of each of 11-20 ... 71-80, and of 81 to 88
    # in 84 to 88: 10 + 7 x 7 + 5 = 64 rounds. (88 x 206592 + 64 x 3413770) x 4 bytes = 946,645,504 = 0.88 GB
    assert 88 * 206_592 + 64 * 3_413_770 == 236_661_376
    bytes_ = sum(upload(algorithms.plu(last=7), LAYOUTS["FMNIST"], round_) for round_ in range(1, 89))
    assert bytes_ == 946_645_504
    assert round(bytes_ / GB, 2) == 0.88


@pytest.mark.parametrize(("algorithm", "data", "rounds", "cost"), cells())
def test_table_4(algorithm: Any, data: Any, rounds: Any, cost: Any) -> None:
    assert gigabytes(algorithm, LAYOUTS[data], rounds) == pytest.approx(cost, abs=0.01)


def test_all_but_three_cells_follow_to_the_last_digit() -> None:
    # in three the paper's own rounding differs: 0.447 is printed 0.44, 1.772 is 1.78, 2.023 is 2.03
    off = {
        param.id: round(found, 3)
        for param in cells()
        if f"{(found := gigabytes(param.values[0], LAYOUTS[param.values[1]], param.values[2])):.2f}"
        != f"{param.values[3]:.2f}"
    }
    assert off == {"plu1-FMNIST": 0.447, "plu6-GermanTS": 1.772, "plu9-GermanTS": 2.023}
    assert len(cells()) == 48


def test_methods_that_never_reach_the_target_cost_300_rounds() -> None:
    # fig. 7: FedProx and FedAsync on GermanTS, 2.92 GB
    assert round(gigabytes(algorithms.fedasync(), LAYOUTS["GermanTS"], 300), 2) == 2.92


def test_the_table_tells_this_schedule_from_others() -> None:
    # without a whole first period, or with the deep layers first in a period, most of the PLU cells would not follow
    def off(deep: Any) -> int:
        wrong = 0
        for param in cells():
            algorithm, data, rounds, cost = param.values
            if algorithm.name == "plu":
                (part,) = algorithm.planners
                layout = LAYOUTS[data]
                shallow, all_ = (layout.bytes(layout.indices(layout.select("test", w))) for w in ("shallow", "all"))
                total = sum(all_ if deep(part.last, t) else shallow for t in range(1, rounds + 1)) / GB
                wrong += abs(total - cost) > 0.01
        return wrong

    assert off(lambda last, t: t <= 10 or (t - 1) % 10 >= 10 - last) == 0
    assert off(lambda last, t: (t - 1) % 10 >= 10 - last) > 20
    assert off(lambda last, t: t <= 10 or (t - 1) % 10 < last) > 15

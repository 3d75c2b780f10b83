"""Checks before a run starts, and what a user's network or loss may do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel.core.binding import Binding
from archipel.core.layout import Layout
from archipel.core.types import Cycle, Plan
from archipel.executors.choice import choose
from archipel.simulation.simulate import prepare
from tests.simulation.engine_cases import small_islands


class Centred(nn.Module):
    """Its outputs depend on the neighbours in a batch, so a padded batch would change them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x - x.mean(dim=0))
        return out


class Looking(Centred):
    """Its forward branches on values, which vmap cannot."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x * 2 if float(x.max()) > 1 else x)
        return out


@pytest.mark.parametrize(("network", "way"), [(Centred, "stacked"), (Looking, "workers")])
def test_networks_whose_examples_do_not_stand_alone(network: Any, way: str) -> None:
    simulator = prepare(ap.fedavg(batch=16), small_islands(3), model=network, ending=ap.Ending(rounds=2))
    assert choose(simulator.context, Plan())[0] == way
    simulator.begin()
    simulator.run()
    assert simulator.controller.state.version == 2


def test_a_loss_may_look_at_its_numbers() -> None:
    def capped(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(outputs, targets)
        return loss if loss.item() < 100 else loss * 0.5

    run = ap.simulate(ap.fedavg(batch=16), small_islands(3), loss=capped, ending=ap.Ending(rounds=2))
    way: Any = run.execution
    same = ap.simulate(ap.fedavg(batch=16), small_islands(3), ending=ap.Ending(rounds=2), execution=way)
    assert torch.allclose(run.model, same.model, atol=1e-6)


def test_float_buffers_of_another_type_are_not_rounded() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2)
            self.register_buffer("scale", torch.tensor([0.4], dtype=torch.float64))

    module = Scaled()
    layout = Layout.of(module)
    Binding(layout, module).bind(layout.vector(module))
    scale = module.get_buffer("scale")
    assert scale.dtype == torch.float64
    assert scale.item() == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: replace(ap.radfed_i(), weighting=ap.ByGradientNorm()),
            r"different gradient norms.*ByImportance\(score='batch'\)",
        ),
        (
            lambda: replace(ap.fedavg(), planners=(ap.DivideAndConquer(), ap.PrivateLayers())),
            "put PrivateLayers before DivideAndConquer",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (replace(ap.fedavg(), protocol=ap.Rounds(at_least=9)), "needs 9 learners, and 4 train"),
        (ap.divide_and_conquer(fraction=0.25), r"of 4 learners brings 1; give split="),
        (replace(ap.fedavg(), merge=ap.Krum()), r"Krum compares the updates of a commit and needs 5, and .* brings 4"),
        (
            replace(ap.fedavg(), plan=Plan(trains=("typo",))),
            "plan.trains names the layer 'typo'; layers",
        ),
        (replace(ap.fedavg(), plan=Plan(private=("typo",))), "plan.private names the layer 'typo'"),
    ],
)
def test_a_run_that_could_not_go_well_is_refused(algorithm: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(algorithm, small_islands(4))


def test_a_plan_of_its_own_with_a_cycle_has_a_validation_part() -> None:
    algorithm = replace(ap.fedavg(), plan=Plan(batch=16, cycle=Cycle(at_most=3)))
    run = ap.simulate(algorithm, small_islands(3), ending=ap.Ending(rounds=1))
    assert all(len(record.losses) >= 2 and all(loss > 0 for loss in record.losses) for _, record in run.cycles)


def test_losses_can_be_asked_for_by_the_plan() -> None:
    algorithm = replace(ap.fedavg(), plan=Plan(batch=16, epochs=2, reports=("losses",)))
    run = ap.simulate(algorithm, small_islands(3), ending=ap.Ending(rounds=1))
    assert [len(record.losses) for _, record in run.cycles] == [3, 3, 3]


@pytest.mark.parametrize("call", [ap.simulate, prepare])
def test_every_setting_is_a_keyword_of_its_own(call: Callable[..., object]) -> None:
    parameters = inspect.signature(call).parameters
    assert not [name for name, one in parameters.items() if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    settings = {name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert {"model", "fleet", "ending", "evaluation", "loss", "validation", "seed", "device"} <= settings
    assert all(parameters[name].default is not inspect.Parameter.empty for name in settings)
    assert all(one.annotation is not inspect.Parameter.empty for one in parameters.values())


def test_a_setting_that_does_not_exist_is_named() -> None:
    with pytest.raises(TypeError, match="'seeds'"):
        ap.simulate(ap.fedavg(), small_islands(3), seeds=3)  # type: ignore[call-arg]

"""Frozen parameters: no part of the vector, never sent, shared by all copies, the same at all sites."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import archipel as ap
from archipel.core.frozen_weights import copied, frozen_parameters, frozen_weights, put_together, taken_apart
from archipel.core.layout import Layout
from archipel.executors.choice import choose
from archipel.executors.plain import Plain
from archipel.executors.stacked import Stacked
from archipel.executors.workers import Workers
from archipel.learner.learner import TrainingContext
from archipel.simulation.simulate import prepare
from archipel.study.build import _load_weights
from archipel.study.federate import layout_hash
from tests.simulation.engine_cases import PLAN, agree, jobs, learners, small_islands, work


def frozen_base() -> nn.Sequential:
    """Two layers, of which the first is frozen."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    module[0].requires_grad_(False)
    return module


class Residual(nn.Module):
    """A frozen base in half precision with batch norm, a tied frozen pair, and a head that trains."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.base = nn.Linear(64, 64, dtype=dtype).requires_grad_(False)
        self.again = nn.Linear(64, 64, dtype=dtype).requires_grad_(False)
        self.again.weight = self.base.weight
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.again(self.base(x.to(self.base.weight.dtype)).relu()).float()
        outputs: Tensor = self.head(self.norm(x + inner))
        return outputs


# ----------------------------------------------------------------------------------------------------------- the layout


def test_the_vector_holds_what_trains() -> None:
    layout = Layout.of(frozen_base(), torch.zeros(1, 64))
    assert layout.names == ("2",)
    assert layout.size == 16 * 10 + 10
    assert layout.frozen is not None
    assert (layout.frozen.parameters, layout.frozen.types, layout.frozen.head) == (64 * 16 + 16, ("float32",), "")


def test_a_layer_may_be_frozen_in_part() -> None:
    module = nn.Linear(3, 2)
    module.weight.requires_grad_(False)
    layout = Layout.of(module)
    assert [entry.name for entry in layout.layers[0].entries] == ["bias"]
    assert layout.select("test", "head") == (".",)


def test_buffers_stay_and_tied_weights_count_once() -> None:
    layout = Layout.of(Residual(), torch.zeros(2, 64))
    assert layout.names == ("norm", "norm.buffers", "head")
    assert layout.tied == {}
    assert layout.frozen is not None
    assert layout.frozen.parameters == 64 * 64 + 64 + 64
    assert layout.frozen.types == ("bfloat16",)


def test_a_trainable_parameter_in_half_precision_is_refused() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.bfloat16))
    told = (
        r"^Layout: parameter '1\.weight' is torch\.bfloat16, models are float32 vectors; .*requires_grad_\(False\)\.$"
    )
    with pytest.raises(ValueError, match=told):
        Layout.of(module)


def test_the_hash_depends_on_every_number_name_and_type() -> None:
    module = frozen_base()
    digests = [digest(module)]
    changes: list[Callable[[nn.Sequential], object]] = [
        lambda m: m.get_parameter("0.weight").data[3, 4].add_(1e-6),
        lambda m: setattr(m, "0", m[0].bfloat16()),
        lambda m: m[2].requires_grad_(False),
    ]
    for change in changes:
        other = copy.deepcopy(module)
        change(other)
        digests.append(digest(other))
    other = copy.deepcopy(module)
    other.get_parameter("2.weight").data.add_(1)  # it trains
    assert digest(other) == digests[0]
    assert len(set(digests)) == 4


def digest(module: nn.Module) -> str:
    frozen = frozen_weights(module)
    assert frozen is not None
    return frozen.digest


def test_a_frozen_last_layer_is_no_head() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    module[1].requires_grad_(False)
    layout = Layout.of(module, torch.zeros(1, 4))
    assert layout.select("test", "features") == ("0",)
    told = r"^PrivateLayers: the last layer, '1', is frozen, so this model has no head\. Let it train, or name other"
    with pytest.raises(ValueError, match=told):
        layout.select("PrivateLayers", "head")
    with pytest.raises(ValueError, match=r"^test: this model has no adapters\. Layers of this model: 0\.$"):
        layout.select("test", "adapters")


def test_both_sides_of_a_federation_compare_the_hash() -> None:
    one, other = frozen_base(), frozen_base()
    assert layout_hash(Layout.of(one)) == layout_hash(Layout.of(other))
    other.get_parameter("0.bias").data[0] += 1
    mine, theirs = (layout_hash(Layout.of(module)).split(" ") for module in (one, other))
    assert mine[0] == theirs[0]
    assert mine[1] != theirs[1]


# --------------------------------------------------------------------------------------------------------------- copies


def places(module: nn.Module) -> list[int]:
    return [parameter.data_ptr() for parameter in frozen_parameters(module).values()]


def test_copies_share_the_frozen_weights_alone() -> None:
    module = Residual()
    other = copied(module)
    assert places(other) == places(module)
    assert other.head.weight.data_ptr() != module.head.weight.data_ptr()
    assert not {id(own) for own in other.head.parameters()} & {id(own) for own in module.parameters()}


def test_a_network_is_taken_apart_and_put_together() -> None:
    module = Residual().eval()
    empty, numbers = taken_apart(module)
    assert all(parameter.numel() == 0 for parameter in frozen_parameters(empty).values())
    shapes = [parameter.shape for parameter in frozen_parameters(module).values()]
    put_together(empty, shapes, [torch.from_numpy(own) for own in numbers])
    assert places(empty) == places(module)
    x = torch.randn(3, 64)
    assert torch.equal(empty(x), module(x))
    assert numbers[0].dtype == np.uint8


def test_no_execution_copies_the_frozen_weights() -> None:
    module = frozen_base()
    simulator = prepare(ap.fedavg(), small_islands(), model=module)
    assert places(simulator.context.module) == places(module)
    context = context_of(module)
    assert places(Workers(context)._faster.module) == places(module)
    assert places(Stacked(context).network.module) == places(module)


def context_of(module: nn.Module) -> TrainingContext:
    data = small_islands()
    return work(module, data.x, data.y)


def test_weights_of_a_file_are_mapped_and_not_read(tmp_path: Path) -> None:
    save_file(frozen_base().state_dict(), tmp_path / "base.safetensors")
    module = frozen_base()
    weight = module.get_parameter("0.weight")
    weight.data.zero_()
    _load_weights(module, tmp_path / "base.safetensors")
    weight = module.get_parameter("0.weight")
    assert torch.equal(weight, frozen_base().get_parameter("0.weight"))
    start = weight.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split(" ")[0].split("-"))
        if first <= start < last:
            assert line.endswith("base.safetensors")
            break
    else:
        raise AssertionError("the weights are nowhere in memory")


# ----------------------------------------------------------------------------------------------------------- executions


@pytest.mark.parametrize(
    ("way", "made"),
    [
        (Stacked, frozen_base),
        (Stacked, lambda: Residual(torch.float32)),  # batched products of bfloat16 round differently
        (Workers, frozen_base),
        (Workers, Residual),
    ],
)
@pytest.mark.slow
def test_all_executions_train_what_plain_pytorch_trains(way: Any, made: Callable[[], nn.Module]) -> None:
    context = context_of(made())
    before = {name: tensor.clone() for name, tensor in frozen_parameters(context.module).items()}
    who = learners(context.x, (40, 16, 23))
    mine, theirs = jobs(context, who, [PLAN] * len(who)), jobs(context, who, [PLAN] * len(who))
    executor = way(context)
    executor.submit(mine)
    executor.wait()
    executor.close()
    Plain(context).submit(theirs)
    for a, b in zip(mine, theirs, strict=True):
        agree(a, b)
    assert all(torch.equal(tensor, before[name]) for name, tensor in frozen_parameters(context.module).items())


def test_a_frozen_perceptron_is_not_for_the_library() -> None:
    assert choose(context_of(frozen_base()), PLAN) == ("stacked", "")


def test_only_what_trains_is_sent_and_saved(tmp_path: Path) -> None:
    module = frozen_base()
    data = small_islands(learners=3)
    run = ap.simulate(ap.fedavg(), data, model=module, ending=ap.Ending(rounds=2))
    assert run.traffic["train down bytes"] == run.traffic["train up bytes"] == 2 * 3 * 4 * 170
    assert set(run.state_dict()) == {"2.weight", "2.bias"}
    run.save(tmp_path / "run")
    assert ap.load_run(tmp_path / "run").layout == run.layout
    assert run.layout.frozen == frozen_weights(module)

"""Linear layers by torch's other library: torch's outputs and gradients, and torch itself where it does not suit."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from archipel.executors.shortcuts import with_shortcuts
from archipel.kernels import products

ONE_DNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
needs_one_dnn = pytest.mark.skipif(not ONE_DNN, reason="this torch has no oneDNN")
ROWS, INPUTS, OUTPUTS = 160, 128, 192
"""Together more multiplications than LARGE."""


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Use oneDNN whatever the processor is; return a list that gets longer with every product."""
    calls: list[int] = []
    plain = products._multiplied

    def counted(*given: Tensor) -> Tensor:
        calls.append(1)
        return plain(*given)

    monkeypatch.setattr(products, "one_dnn_is_faster", lambda: True)
    monkeypatch.setattr(products, "_multiplied", counted)
    return calls


def outcome(apply: Callable[..., Tensor], *given: Tensor | None, expanded: bool = False) -> list[Tensor]:
    """Return outputs and gradients."""
    leaves = [None if one is None else one.detach().clone().requires_grad_(one.requires_grad) for one in given]
    out = apply(*(one if one is None else one.expand(ROWS, -1) if one.shape[0] == 1 else one for one in leaves))
    (out.sum() if expanded else (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum()).backward()
    return [out, *(one.grad for one in leaves if one is not None and one.grad is not None)]


def drawn(*sizes: int, trains: bool = True) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(len(sizes))).requires_grad_(trains)


@needs_one_dnn
@pytest.mark.parametrize(
    ("x", "weight", "bias"),
    [
        (drawn(ROWS, INPUTS), drawn(OUTPUTS, INPUTS), drawn(OUTPUTS)),
        (drawn(ROWS, INPUTS), drawn(OUTPUTS, INPUTS), None),
        (drawn(8, ROWS // 8, INPUTS), drawn(OUTPUTS, INPUTS), drawn(OUTPUTS)),
        (drawn(INPUTS, ROWS).t(), drawn(INPUTS, OUTPUTS).t(), drawn(OUTPUTS)),
        (drawn(1, INPUTS), drawn(OUTPUTS, INPUTS), drawn(OUTPUTS)),
        (drawn(ROWS, INPUTS, trains=False), drawn(OUTPUTS, INPUTS), drawn(OUTPUTS)),
        (drawn(ROWS, INPUTS), drawn(OUTPUTS, INPUTS, trains=False), drawn(OUTPUTS, trains=False)),
    ],
    ids=["plain", "no bias", "three dimensions", "transposed", "expanded", "no gradient of x", "frozen"],
)
@pytest.mark.parametrize("expanded", [False, True], ids=["any gradient", "one number as gradient"])
def test_outputs_and_gradients_are_torchs(
    called: list[int], x: Tensor, weight: Tensor, bias: Tensor | None, expanded: bool
) -> None:
    mine = outcome(products.linear, x, weight, bias, expanded=expanded)
    assert called
    expected = outcome(functional.linear, x, weight, bias, expanded=expanded)
    assert len(mine) == len(expected)
    for one, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@needs_one_dnn
@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (drawn(10, INPUTS), drawn(OUTPUTS, INPUTS)),
        (drawn(ROWS, INPUTS).detach().double(), drawn(OUTPUTS, INPUTS).detach().double()),
    ],
    ids=["small", "double precision"],
)
def test_other_products_are_torchs_own(called: list[int], x: Tensor, weight: Tensor) -> None:
    assert torch.equal(products.linear(x, weight, None), functional.linear(x, weight, None))
    assert not called


@needs_one_dnn
def test_under_autocast_torch_chooses_the_precision(called: list[int]) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert products.linear(drawn(ROWS, INPUTS), drawn(OUTPUTS, INPUTS), None).dtype == torch.bfloat16
    assert not called


@needs_one_dnn
def test_a_network_takes_them_and_keeps_its_names(called: list[int]) -> None:
    plain = nn.Sequential(nn.Linear(INPUTS, OUTPUTS), nn.ReLU(), nn.Linear(OUTPUTS, 3))
    faster = with_shortcuts(copy.deepcopy(plain))
    x = drawn(ROWS, INPUTS)
    torch.testing.assert_close(faster(x), plain(x), rtol=1e-4, atol=1e-4)
    assert len(called) == 1
    assert [*faster.state_dict()] == [*plain.state_dict()]


def test_a_layer_that_somebody_listens_to_stays_as_it_is() -> None:
    layer = nn.Linear(4, 2)
    layer.register_forward_hook(lambda *_: None)
    assert type(with_shortcuts(nn.Sequential(layer))[0]) is nn.Linear  # type: ignore[index]

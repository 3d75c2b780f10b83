"""Vectors with numbers that are not finite are told from others."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from archipel.kernels import kernels


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_one_number_that_is_not_finite_is_found_anywhere(size: int) -> None:
    vector = torch.full((size,), 3.0e38)  # the sum overflows: it says nothing
    assert kernels().finite(vector)
    for place in {0, size // 2, size - 1}:
        for number in (math.nan, math.inf, -math.inf):
            wrong = vector.clone()
            wrong[place] = number
            assert not kernels().finite(wrong)


def test_a_vector_is_checked_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second thread would have to be waited for on a machine whose cores are busy."""
    used: list[int] = []
    add_up = Tensor.sum

    def watched(vector: Tensor) -> Tensor:
        used.append(torch.get_num_threads())
        return add_up(vector)

    monkeypatch.setattr(Tensor, "sum", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert kernels().finite(torch.zeros(1 << 20))
        assert (used, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)

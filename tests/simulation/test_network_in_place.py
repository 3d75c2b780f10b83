"""Inspecting a network that changes its input in place leaves the data unchanged."""

from __future__ import annotations

import torch
from torch import nn

from archipel.assembly.contexts import context_of
from archipel.data import Island, Islands


def test_the_first_examples_stay_as_they_are() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    x = torch.tensor([[-1.0, 1.0], [-2.0, 2.0]])
    y = torch.tensor([0, 1])
    for examples in (x.clone(), torch.zeros(()).expand(2, 2)):  # the second is what a controller without data has
        data = Islands(examples, y, (Island("a", torch.arange(2), nothing),), nothing, nothing, 2, "two")
        before = examples.clone()
        context_of(data, nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2)), None, 0, "cpu")
        assert torch.equal(data.x, before)

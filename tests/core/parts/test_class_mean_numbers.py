"""The last layer averaged class by class, by hand numbers and in whole runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import archipel as ap
from archipel.core.layout import Layout
from archipel.core.types import Metrics
from tests.core.parts.by_hand import Bench


def two_layers() -> Layout:
    """One weight before a head of two classes: [w | head weights a, b | biases a, b]."""
    return Layout.of(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2)))


def merged(*updates: tuple[list[float], tuple[int, ...], float], layers: list[str] | None = None) -> list[float]:
    bench = Bench(two_layers())
    made = [
        bench.update(f"{number}", numbers, metrics=Metrics(classes=counts))
        for number, (numbers, counts, _) in enumerate(updates)
    ]
    weights = [(weight, weight) for *_, weight in updates]
    proposal = ap.MeanByClass().merge(bench.view("merge"), made, weights)
    return proposal.vector.tolist()


def test_a_class_is_averaged_over_those_who_have_it() -> None:
    # class 0: 3 examples at one, 1 at the other: (3 x 10 + 1 x 20) / 4; class 1 only at the other
    found = merged(([1.0, 10.0, 30.0, 10.0, 30.0], (3, 0), 1.0), ([3.0, 20.0, 50.0, 20.0, 50.0], (1, 5), 1.0))
    assert found == [2.0, 12.5, 50.0, 12.5, 50.0]


def test_weights_count_beside_the_examples() -> None:
    # class 0: (2 x 1 x 10 + 1 x 2 x 40) / 4 = 25; the first layer: (2 x 1 + 1 x 4) / 3
    found = merged(([1.0, 10.0, 0.0, 0.0, 0.0], (1, 1), 2.0), ([4.0, 40.0, 0.0, 0.0, 0.0], (2, 1), 1.0))
    assert found[:2] == [2.0, 25.0]


def test_without_counts_and_for_a_class_that_nobody_has_the_weights_alone_count() -> None:
    one, other = [0.0, 1.0, 3.0, 0.0, 0.0], [0.0, 3.0, 7.0, 0.0, 0.0]
    assert merged((one, (), 1.0), (other, (9, 9), 1.0))[1:3] == [2.0, 5.0]
    assert merged((one, (1, 0), 1.0), (other, (0, 0), 1.0))[1:3] == [1.0, 5.0]


def test_it_needs_a_linear_last_layer_and_single_models() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    with pytest.raises(ValueError, match="MeanByClass: the last layer, '1', is a LayerNorm"):
        ap.MeanByClass().check(Layout.of(module))
    with pytest.raises(ValueError, match="Relay does not go with MeanByClass"):
        ap.Algorithm("x", ap.Relay(), merge=ap.MeanByClass())


def test_one_round_differs_from_the_mean_in_the_head_alone() -> None:
    data = ap.data.digits().split(learners=2, classes="disjoint(5)", sizes=(40, 40))

    def run(merge: ap.Merge) -> ap.Run:
        algorithm = ap.Algorithm("x", merge=merge, weighting=ap.Equally())
        return ap.simulate(algorithm, data, ending=ap.Ending(rounds=1))

    plain, by_class = run(ap.Mean()), run(ap.MeanByClass())
    head = plain.layout.slices((len(plain.layout.layers) - 1,))[0]
    assert torch.equal(plain.model[: head.start], by_class.model[: head.start])
    assert not torch.equal(plain.model[head], by_class.model[head])

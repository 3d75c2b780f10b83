"""What a commit adds to a controller's journal grows with its learners, and not with learners times layers."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

import archipel as ap
from archipel.core import commit as commits
from archipel.core.parts.weighting import Weighting
from archipel.core.records import Committed
from archipel.core.state import Update, View
from archipel.federation.storage.durable_controller import CODEC

LEARNERS = 500


def commit(layers: int) -> Committed:
    """As a mean over learners makes one: a learner's weight is the same for every layer."""
    names = tuple(f"hospital-{number}" for number in range(LEARNERS))
    weights = tuple((100.0 + number / 7,) * layers for number in range(LEARNERS))
    tasks, zeros = tuple(range(LEARNERS)), (0,) * LEARNERS
    paths = tuple((name,) for name in names)
    return Committed(1, 1, names, paths, tasks, weights, zeros, zeros, tuple(range(layers)), {"train up": 1})


def test_a_commit_does_not_grow_with_the_layers() -> None:
    """One of 5,000 learners and 62 layers had 2.4 MB."""
    few, many = (CODEC.text(commit(layers)).encode() for layers in (2, 62))
    assert len(many) < 1.05 * len(few)
    assert len(zlib.compress(many)) < 30 * LEARNERS
    assert CODEC.value(many.decode()) == commit(62)


class ByLayer(Weighting):
    """Another number for each layer of each update."""

    by_layer = True

    def weigh(self, view: View, update: Update) -> tuple[float, ...]:
        return tuple(1.0 + update.task + place / 7 for place in range(len(view.layout.layers)))


def simulated() -> ap.Run:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(600, 4))).float()
    data = ap.data.from_arrays(x, (x[:, 0] > 0).long()).split(3, test="0.2")
    algorithm = ap.Algorithm("by layer", weighting=ByLayer())
    return ap.simulate(algorithm, data, ending=ap.Ending(rounds=2), execution="plain")


def test_many_weights_that_differ_by_layer_are_recorded_as_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """One commit of 5,000 learners and 62 layers had 5.6 MB. What is merged does not change."""
    whole = simulated()
    monkeypatch.setattr(commits, "MOST_WEIGHTS", 2)
    short = simulated()
    assert torch.equal(whole.model, short.model)
    for (_, full), (_, mean) in zip(whole.commits, short.commits, strict=True):
        assert len({*full.weights[0]}) == len(full.weights[0]) > 1
        assert all(len({*row}) == 1 for row in mean.weights)
        assert [row[0] for row in mean.weights] == pytest.approx([sum(row) / len(row) for row in full.weights])


def test_a_commit_does_not_grow_with_weights_by_layer() -> None:
    draw = np.random.default_rng(0)
    weights = [tuple(draw.random(62).tolist()) for _ in range(LEARNERS)]
    recorded = replace(commit(62), weights=commits._recorded(weights))
    assert len(CODEC.text(recorded)) < 1.2 * len(CODEC.text(commit(62)))
    assert len(CODEC.text(replace(recorded, weights=tuple(weights)))) > 5 * len(CODEC.text(recorded))
    huge = [(1.7e308,) * 61 + (1.6e308,)] * LEARNERS
    assert all(max(row) < float("inf") for row in commits._recorded(huge)), "a sum would overflow"

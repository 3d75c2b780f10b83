"""D&C: the pre-pass, where the net is split, and the rounds that train its two parts in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import archipel as ap
from tests.algorithms.straight import Client, Net, clients, islands, mean, run, selected

pytestmark = pytest.mark.slow

WIDTHS = (64, 32, 24, 16, 10)
NAMES = ("fc1", "fc2", "fc3", "head")
PREPASS, ROUNDS, FRACTION = 2, 7, 0.6
FEATURE_EPOCHS, TUNING_EPOCHS = 2, 1
BATCH, RATE, DECAY = 16, 0.2, 0.9
LOCAL: dict[str, Any] = {"epochs": FEATURE_EPOCHS, "batch": BATCH, "rate": RATE}


def eq2(w1: Tensor, w2: Tensor) -> float:
    """W_d = ||W_1 - W_2|| / ||W_1||."""
    return float((w1 - w2).norm() / w1.norm())


def eq3(w1: Tensor, w2: Tensor) -> float:
    """W_d = CosineDist(W_1, W_2) / ||W_1||."""
    return float((1 - (w1 @ w2) / (w1.norm() * w2.norm())) / w1.norm())


@dataclass
class Outcome:
    w: Tensor
    divergence: list[list[float]] = field(default_factory=list)
    """Of every round, of every layer that was trained."""
    sent: list[list[int]] = field(default_factory=list)
    """Of every round, the layers that were trained and sent."""
    split: int = 0
    """The first class-specific layer."""


def divide_and_conquer(w_d: Callable[[Tensor, Tensor], float], threshold: float, split: int | None) -> Outcome:
    net = Net(*WIDTHS)
    learners = clients(net, islands(5))
    everything = list(range(len(net.layers)))
    done = Outcome(net.initial())
    for t in range(ROUNDS):
        rate = RATE * DECAY**t  # starting from RATE and reducing by 10 % for every round
        if t < PREPASS:
            layers, epochs = everything, FEATURE_EPOCHS
        elif (t - PREPASS) % 2 == 0:  # feature learning: the class-agnostic layers
            layers, epochs = everything[: done.split], FEATURE_EPOCHS
        else:  # fine-tuning: the class-specific layers, few epochs, half the rate
            layers, epochs, rate = everything[done.split :], TUNING_EPOCHS, rate / 2
        part = net.span(layers)
        s_t = sorted(selected(list(learners), 3, t))  # Algorithm 1: a subset of K clients at random
        w = [train(learners[k], done.w, epochs, rate, part) for k in s_t]
        done.w = done.w.clone()
        done.w[part] = mean([w_k[part] for w_k in w], [1.0] * len(w))  # w_t+1 = 1/K sum w_k
        done.sent.append(layers)
        done.divergence.append([divergence(w, net.layers[layer], w_d) for layer in layers])
        if t == PREPASS - 1:
            done.split = leaves_the_plateau(done.divergence[-1], threshold) if split is None else split
    return done


def train(learner: Client, w: Tensor, epochs: int, rate: float, part: slice) -> Tensor:
    """SGD on one part of the net, the other part frozen."""
    return learner.train(w, epochs, batch=BATCH, rate=rate, trains=part)


def divergence(w: list[Tensor], layer: slice, w_d: Callable[[Tensor, Tensor], float]) -> float:
    """Of one layer between all local models: the mean over pairs."""
    pairs = [w_d(a[layer].double(), b[layer].double()) for a, b in combinations(w, 2)]
    return sum(pairs) / len(pairs)


def leaves_the_plateau(values: list[float], threshold: float) -> int:
    """The first layer, not the very first, whose divergence is so far on the way from the lowest to the highest.

    Where all diverge, the lowest more than that share of the highest, the last layer (section 4.2.2).
    """
    last = len(values) - 1
    if min(values) >= threshold * max(values):
        return last
    bar = min(values) + threshold * (max(values) - min(values))
    return next((layer for layer, value in enumerate(values) if layer and value > bar), last)


CASES = {  # divergence, threshold, split as given -> the first class-specific layer
    "EQ3": ("cosine", eq3, 0.5, None, 3),
    "EQ3, low bar": ("cosine", eq3, 0.15, None, 2),
    "EQ2": ("euclidean", eq2, 0.3, None, 2),
    "EQ2, no plateau": ("euclidean", eq2, 0.2, None, 3),
    "Divide1": ("cosine", eq3, 0.5, 1, 1),
    "behind fc2": ("euclidean", eq2, 0.5, "fc2", 2),
}


@pytest.mark.parametrize("case", list(CASES))
def test_divide_and_conquer(case: str) -> None:
    kind: Any
    kind, w_d, threshold, split, first = CASES[case]
    expected = divide_and_conquer(w_d, threshold, None if split is None else first)
    assert expected.split == first
    found, _ = run(
        ap.divide_and_conquer(
            PREPASS,
            split,
            TUNING_EPOCHS,
            divergence=kind,
            threshold=threshold,
            decay=DECAY,
            fraction=FRACTION,
            **LOCAL,
        ),
        islands(5),
        WIDTHS,
        ending=ap.Ending(rounds=ROUNDS),
    )
    assert [list(commit.layers) for _, commit in found.commits] == expected.sent
    for (_, note), layers, values in zip(found.divergences, expected.sent, expected.divergence, strict=True):
        assert [note.values[layer] for layer in layers] == pytest.approx(values, rel=1e-9)
    assert found.divergences[-1][1].split == NAMES[first]
    assert torch.equal(found.model, expected.w)


def test_learners_send_only_what_they_train() -> None:
    """Behind the pre-pass two rounds move one whole model for each learner, up and down."""
    found, _ = run(
        ap.divide_and_conquer(PREPASS, 2, TUNING_EPOCHS, decay=DECAY, **LOCAL),
        islands(5),
        WIDTHS,
        ending=ap.Ending(rounds=PREPASS + 5),
    )
    whole = 5 * 4 * found.layout.size
    features = 5 * 4 * Net(*WIDTHS).span([0, 1]).stop
    up, down = (
        [after.traffic[way] - before.traffic[way] for (_, before), (_, after) in pairwise(found.commits)]
        for way in ("train up bytes", "train down bytes")
    )
    assert up == [whole, features, whole - features, features, whole - features, features]
    # what a round changed comes down at the next: the first after the pre-pass still brings everything
    assert down == [whole, whole, features, whole - features, features, whole - features]

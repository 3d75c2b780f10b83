"""HDAFL Algorithm 1: generic layers are averaged, the specific ones stay; and LG-FedAvg, the other way round."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import archipel as ap
from tests.algorithms.straight import Client, Net, clients, islands, mean, run, selected

WIDTHS = (64, 32, 10)
ROUNDS, C, E = 6, 3, 2
LOCAL: dict[str, Any] = {"batch": 16, "rate": 0.1}


def gradient_norm(learner: Client, w: Tensor) -> float:
    """Root of the mean over mini-batches of ||grad F_k(w)||^2, the batches in the order of the examples."""
    squares = [
        float(learner.net.gradient(w, x, y).double().pow(2).sum())
        for x, y in zip(learner.x.split(LOCAL["batch"]), learner.y.split(LOCAL["batch"]), strict=True)
    ]
    return math.sqrt(sum(squares) / len(squares))


def hdafl(generic: list[int], by_gradient_norm: bool = False) -> tuple[Tensor, dict[str, Tensor], list[list[float]]]:
    """The server's model, every client's specific layers, and the weights of every round."""
    net = Net(*WIDTHS)
    learners = clients(net, islands(6))
    w_0 = net.initial()  # initialize wb_0, wl_0
    b = net.span(generic)
    is_generic = torch.zeros(net.size, dtype=torch.bool)
    is_generic[b] = True
    w = {k: w_0.clone() for k in learners}  # ClientInit: wb_0^k <- wb_0, wl_0^k <- wl_0
    wb = w_0[b]
    weights = []
    for t in range(ROUNDS):  # for each round t = 1 .. T
        s_t = sorted(selected(list(learners), C, t))  # S_t = random set of C clients
        for k in s_t:  # ClientUpdate(k, wb_t)
            w[k][b] = wb  # wb_t^k <- wb_t
            w[k] = learners[k].train(w[k], E, **LOCAL)  # update wb_t^k, wl_t^k on local data
        n = [gradient_norm(learners[k], w[k]) if by_gradient_norm else float(learners[k].n) for k in s_t]
        wb = mean([w[k][b] for k in s_t], n)  # wb_t+1 <- sum n_k / sum n_k wb_t^k
        weights.append(n)
    w_0[b] = wb
    return w_0, {k: w[k][~is_generic] for k in w}, weights


METHODS = {
    "hdafl": (ap.hdafl(0.5, epochs=E, **LOCAL), [0], False, "head"),
    "hdafl by gradient norm": (ap.hdafl(0.5, by_gradient_norm=True, epochs=E, **LOCAL), [0], True, "head"),
    "lg-fedavg": (ap.lg_fedavg(0.5, epochs=E, **LOCAL), [1], False, "fc1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(METHODS))
def test_private_layers(name: str) -> None:
    algorithm, generic, by_gradient_norm, private = METHODS[name]
    expected, specific, weights = hdafl(generic, by_gradient_norm)
    found, simulator = run(algorithm, islands(6), WIDTHS, ending=ap.Ending(rounds=ROUNDS))
    assert torch.equal(found.model, expected)
    kept = {k: site.learner.private for k, site in simulator.sites.items()}
    for k, wl in specific.items():
        assert torch.equal(kept[k][private], wl)
    assert len({tuple(wl.tolist()) for wl in specific.values()}) == 6  # no two alike
    got = [[spread[generic[0]] for spread in commit.weights] for _, commit in found.commits]
    assert np.array(got) == pytest.approx(np.array(weights), rel=1e-12)


@pytest.mark.slow
def test_private_layers_come_once_and_never_leave() -> None:
    found, _ = run(ap.hdafl(0.5, epochs=1, **LOCAL), islands(6), WIDTHS, ending=ap.Ending(rounds=ROUNDS))
    generic = 4 * (64 * 32 + 32)
    specific = 4 * (32 * 10 + 10)
    tasks = ROUNDS * C
    took_part = {learner for _, commit in found.commits for learner in commit.learners}
    assert found.traffic["train up bytes"] == tasks * generic
    assert found.traffic["train down bytes"] == tasks * generic + len(took_part) * specific


@pytest.mark.slow
def test_the_score_is_the_mean_of_the_learners_own() -> None:
    """Section 5: each client tests the generic layers with its own specific layer on its own data."""
    net, data = Net(*WIDTHS), islands(6)
    w, specific, _ = hdafl([0])
    found, _ = run(ap.hdafl(0.5, epochs=E, **LOCAL), data, WIDTHS, ending=ap.Ending(rounds=ROUNDS))
    accuracies = []
    for island in data.learners:
        mine = w.clone()
        mine[net.layers[1]] = specific[island.name]
        right = net.outputs(mine, data.x[island.test])[-1].argmax(1) == data.y[island.test]
        accuracies.append(right.double().mean().item())
    assert found.score == pytest.approx(sum(accuracies) / len(accuracies), rel=1e-12)

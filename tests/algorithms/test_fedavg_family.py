"""FedAvg, FedProx and the adaptive servers of Reddi et al. against loops over rounds and learners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import archipel as ap
from tests.algorithms.straight import Net, clients, islands, mean, run, selected

pytestmark = pytest.mark.slow

WIDTHS = (64, 32, 10)
LOCAL: dict[str, Any] = {"batch": 16, "rate": 0.1}
Server = Callable[[Tensor, Tensor], Tensor]


def federated(
    rounds: int,
    fraction: float,
    epochs: int,
    server: Server = lambda w, average: average,
    equally: bool = False,
    **local: Any,
) -> tuple[Tensor, list[list[float]]]:
    """McMahan's Algorithm 1: the last model, and the weights of every round."""
    net = Net(*WIDTHS)
    learners = clients(net, islands(5))
    w = net.initial()
    m = max(int(fraction * len(learners)), 1)
    weights = []
    for t in range(rounds):
        s_t = sorted(selected(list(learners), m, t))  # random set of m clients
        local_models = [learners[k].train(w, epochs, **(LOCAL | local)) for k in s_t]
        n = [1.0 if equally else float(learners[k].n) for k in s_t]
        w = server(w, mean(local_models, n))  # w <- sum n_k / n w_k
        weights.append(n)
    return w, weights


def simulated(algorithm: ap.Algorithm, rounds: int) -> ap.Run:
    found, _ = run(algorithm, islands(5), WIDTHS, ending=ap.Ending(rounds=rounds))
    return found


def weights_of(found: ap.Run) -> list[list[float]]:
    return [[spread[0] for spread in commit.weights] for _, commit in found.commits]


@pytest.mark.parametrize("equally", [False, True], ids=["by examples", "equally"])
def test_fedavg_with_a_part_of_the_learners(equally: bool) -> None:
    expected, weights = federated(6, 0.6, 2, equally=equally)
    found = simulated(ap.fedavg(0.6, equally=equally, epochs=2, **LOCAL), 6)
    assert torch.equal(found.model, expected)
    assert weights_of(found) == weights
    assert all(len(commit.learners) == 3 for _, commit in found.commits)


def test_fedavg_with_local_momentum() -> None:
    expected, _ = federated(3, 1.0, 2, momentum=0.75)
    assert torch.equal(simulated(ap.fedavg(epochs=2, momentum=0.75, **LOCAL), 3).model, expected)


def test_fedprox_pulls_towards_the_received_model() -> None:
    expected, _ = federated(4, 0.6, 2, proximal=0.5)
    plain, _ = federated(4, 0.6, 2)
    assert torch.equal(simulated(ap.fedprox(0.5, 0.6, epochs=2, **LOCAL), 4).model, expected)
    assert not torch.equal(plain, expected)


# ------------------------------------------------------------------------------------ Reddi et al., Algorithm 2

ETA, TAU, BETA1, BETA2, V0 = 0.03, 1e-3, 0.9, 0.99, 1e-6


def adaptive(second_moment: Callable[[Tensor, Tensor], Tensor]) -> Server:
    """delta = mean - x; m <- b1 m + (1 - b1) delta; v by the method; x <- x + eta m / (sqrt(v) + tau)."""
    m = v = None

    def step(x: Tensor, average: Tensor) -> Tensor:
        nonlocal m, v
        m = torch.zeros_like(x) if m is None else m
        v = torch.full_like(x, V0) if v is None else v
        delta = average - x
        m = (m * BETA1).add(delta, alpha=1 - BETA1)
        v = second_moment(v, delta * delta)
        return x.addcdiv(m, v.sqrt() + TAU, value=ETA)

    return step


def adagrad(v: Tensor, square: Tensor) -> Tensor:
    return v + square


def yogi(v: Tensor, square: Tensor) -> Tensor:
    return v.sub(square * torch.sign(v - square), alpha=1 - BETA2)


def adam(v: Tensor, square: Tensor) -> Tensor:
    return (v * BETA2).add(square, alpha=1 - BETA2)


SERVERS = [(ap.fedadagrad, adagrad), (ap.fedyogi, yogi), (ap.fedadam, adam)]


@pytest.mark.parametrize(("method", "second_moment"), SERVERS, ids=["fedadagrad", "fedyogi", "fedadam"])
def test_adaptive_servers(method: Callable[..., ap.Algorithm], second_moment: Callable[..., Tensor]) -> None:
    expected, _ = federated(5, 0.6, 1, adaptive(second_moment))
    found = simulated(method(ETA, TAU, V0, fraction=0.6, epochs=1, **LOCAL), 5)
    assert torch.equal(found.model, expected)


def test_fedadam_is_reddis_formula_in_exact_enough_arithmetic() -> None:
    """The same without fused operations and in float64, as one would write it down."""
    m = v = None

    def step(x: Tensor, average: Tensor) -> Tensor:
        nonlocal m, v
        m = 0 * x.double() if m is None else m
        v = V0 + 0 * x.double() if v is None else v
        delta = average.double() - x.double()
        m = BETA1 * m + (1 - BETA1) * delta
        v = BETA2 * v + (1 - BETA2) * delta**2
        return (x.double() + ETA * m / (v**0.5 + TAU)).float()

    expected, _ = federated(5, 0.6, 1, step)
    found = simulated(ap.fedadam(ETA, TAU, V0, fraction=0.6, epochs=1, **LOCAL), 5)
    assert torch.allclose(found.model, expected, rtol=0, atol=1e-5)


def test_fedadam_without_bias_correction_is_torchs_adam() -> None:
    """torch.optim.Adam corrects m and v for their start at zero; Reddi's servers do not.

    Its rate and epsilon of every step can be chosen so that the two corrections cancel; the gradient is -delta.
    """
    x = torch.zeros(0)
    optimiser: torch.optim.Adam | None = None
    t = 0

    def step(w: Tensor, average: Tensor) -> Tensor:
        nonlocal x, optimiser, t
        if optimiser is None:
            x = w.clone()
            optimiser = torch.optim.Adam([x], betas=(BETA1, BETA2))
        t += 1
        root = (1 - BETA2**t) ** 0.5
        optimiser.param_groups[0].update(lr=ETA * (1 - BETA1**t) / root, eps=TAU / root)
        x.grad = w - average
        optimiser.step()
        return x.clone()

    expected, _ = federated(5, 0.6, 1, step)
    found = simulated(ap.fedadam(ETA, TAU, 0.0, fraction=0.6, epochs=1, **LOCAL), 5)
    assert torch.allclose(found.model, expected, rtol=0, atol=1e-5)

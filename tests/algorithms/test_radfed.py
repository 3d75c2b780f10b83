"""RADFed Algorithms 1 and 2: models travel through S learners before one mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import archipel as ap
from archipel.core.randomness import generator
from tests.algorithms.straight import SEED, Client, Net, clients, islands, mean, run, selected

pytestmark = pytest.mark.slow

WIDTHS = (64, 32, 10)
C, S, T, E = 0.5, 3, 3, 1
LOCAL: dict[str, Any] = {"batch": 16, "rate": 0.1}
Server = Callable[[Tensor, Tensor], Tensor]


class Uniformly:
    """Algorithm 1, line 7."""

    def begin(self, learners: dict[str, Client], w: Tensor) -> None:
        """Nothing is measured."""

    def sample(self, m: int, iteration: int) -> list[str]:
        return selected([f"{k:02}" for k in range(6)], m, iteration)

    def client_update(self, k: Client, w: Tensor) -> None:
        """No score is asked for."""


def radfed(
    server: Server = lambda w, average: average, sampling: Uniformly | None = None, **local: float
) -> tuple[Tensor, list[tuple[tuple[str, ...], ...]]]:
    """Return the last model, and for every round the learners that each model visited."""
    net = Net(*WIDTHS)
    learners = clients(net, islands(6))
    sampling = sampling or Uniformly()
    w = net.initial()  # 1
    sampling.begin(learners, w)  # (Alg. 2: 2)
    m = max(int(C * len(learners)), 1)  # 2
    paths = []
    for t in range(T):  # 3
        models = [w] * m  # 4, 5
        path: list[tuple[str, ...]] = [()] * m
        for s in range(S):  # 6
            u = sampling.sample(m, t * S + s)  # 7 (Alg. 2: 8)
            for i in range(m):  # 8
                models[i] = learners[u[i]].train(models[i], E, **(LOCAL | local))  # 9
                sampling.client_update(learners[u[i]], models[i])
                path[i] = (*path[i], u[i])
        w = server(w, mean(models, [1.0] * m))  # 12
        paths.append(tuple(path))
    return w, paths


def assert_same(algorithm: ap.Algorithm, expected: tuple[Tensor, Sequence[object]]) -> ap.Run:
    found, _ = run(algorithm, islands(6), WIDTHS, ending=ap.Ending(rounds=S * T))
    assert [commit.paths for _, commit in found.commits] == expected[1]
    assert torch.equal(found.model, expected[0])
    return found


def test_radfed() -> None:
    found = assert_same(ap.radfed(C, S, epochs=E, **LOCAL), radfed())
    assert [commit.rounds for _, commit in found.commits] == [3, 6, 9]
    assert {weight for _, commit in found.commits for weights in commit.weights for weight in weights} == {1.0}


def test_radfed_with_one_redistribution_is_fedavg_with_equal_weights() -> None:
    relay, _ = run(ap.radfed(C, hops=1, epochs=E, **LOCAL), islands(6), WIDTHS, ending=ap.Ending(rounds=4))
    rounds, _ = run(ap.fedavg(C, equally=True, epochs=E, **LOCAL), islands(6), WIDTHS, ending=ap.Ending(rounds=4))
    # the same learners and the same models; only the order of the sum differs, by slot or by name
    assert [set(c.learners) for _, c in relay.commits] == [set(c.learners) for _, c in rounds.commits]
    assert torch.allclose(relay.model, rounds.model, rtol=0, atol=1e-5)


def test_radfedp_anchors_at_the_model_that_came() -> None:
    """Algorithm 2, ClientUpdate line 1: F_k(w) + rho / 2 ||w - w'||^2, w' being what was passed on, not w_t."""
    assert_same(ap.radfed_p(C, S, rho=0.7, epochs=E, **LOCAL), radfed(proximal=0.7))


def test_radfedm() -> None:
    """Algorithm 2, line 14."""
    alpha = 0.6
    expected = radfed(lambda w, average: w.add(average - w, alpha=alpha))
    found = assert_same(ap.radfed_m(C, S, alpha, epochs=E, **LOCAL), expected)
    as_written, _ = radfed(lambda w, average: alpha * average + (1 - alpha) * w)
    assert torch.allclose(found.model, as_written, rtol=0, atol=1e-5)


def test_radfeda() -> None:
    """Algorithm 2, lines 15 to 17, with the root of v as in Reddi et al."""
    eta, tau, v_0 = 0.05, 1e-3, 1e-6
    m_t: Tensor | None = None
    v_t: Tensor | None = None

    def server(w: Tensor, average: Tensor) -> Tensor:
        nonlocal m_t, v_t
        m_t = torch.zeros_like(w) if m_t is None else m_t
        v_t = torch.full_like(w, v_0) if v_t is None else v_t
        delta = average - w  # 15
        m_t = (m_t * 0.9).add(delta, alpha=1 - 0.9)  # 16
        v_t = (v_t * 0.99).add(delta * delta, alpha=1 - 0.99)
        return w.addcdiv(m_t, v_t.sqrt() + tau, value=eta)  # 17

    assert_same(ap.radfed_a(C, S, eta, tau, v_0, epochs=E, **LOCAL), radfed(server))


class ByImportance:
    """Algorithm 2, lines 2, 8 and 11, and ClientUpdate line 3.

    Line 8 is drawn by an exponential race: learner k's clock rings after e_k / p_k seconds, e_k being independent
    exponential numbers from generator(seed, "selection", "round n"); the first m to ring are the sample, in that
    order. So they are different, and the first is k with probability p_k / sum p. Who was never scored (line 2) stands
    at the mean of those that were, everybody at 1 in the first iteration; the first score replaces that.
    """

    def __init__(self, gamma: float, batch: int | None = None, first: str = "mean") -> None:
        self.gamma, self.batch, self.first = gamma, batch, first
        self.p: dict[str, float] = {}

    def begin(self, learners: dict[str, Client], w: Tensor) -> None:
        if self.first == "measured":  # all clients score w_1 before the first iteration
            for k in learners.values():
                k.tasks += 1
                self.client_update(k, w)

    def sample(self, m: int, iteration: int) -> list[str]:
        guess = sum(self.p[k] for k in sorted(self.p)) / len(self.p) if self.p else 1.0
        p = np.array([self.p.get(f"{k:02}", guess) for k in range(6)])
        rings = generator(SEED, "selection", f"round {iteration}").exponential(size=6) / (p / p.sum())
        return [f"{k:02}" for k in np.argsort(rings)[:m]]

    def client_update(self, k: Client, w: Tensor) -> None:
        squares = [  # ||grad l_d(w*)||^2
            float(k.net.gradient(w, x, y).double().pow(2).sum())
            for x, y in zip(k.x.split(self.batch or 1), k.y.split(self.batch or 1), strict=True)
        ]
        new = sum(squares) / len(squares)  # 3
        old = self.p.get(k.name)
        self.p[k.name] = new if old is None else (1 - self.gamma) * old + self.gamma * new  # 11


@pytest.mark.parametrize("first", ["mean", "measured"])
@pytest.mark.parametrize("score", ["sample", "batch"])
def test_radfedi(score: Any, first: Any) -> None:
    sampling: Any = ByImportance(0.7, None if score == "sample" else LOCAL["batch"], first)
    expected = radfed(sampling=sampling)
    assert_same(ap.radfed_i(C, S, 0.7, score, first, epochs=E, **LOCAL), expected)
    assert expected[1] != radfed()[1]  # others are visited than by a uniform draw
    assert max(sampling.p.values()) > 2 * min(sampling.p.values())

"""Ditto, pFedMe, APFL, Per-FedAvg, MOON and fine-tuning before scores, against straight-line programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, relu

import archipel as ap
from archipel.core.randomness import derive, generator
from tests.algorithms.straight import Client, Net, clients, islands, mean, run, selected

pytestmark = pytest.mark.slow

WIDTHS = (64, 32, 10)
ROUNDS, BATCH, RATE = 4, 16, 0.1
LOCAL: dict[str, Any] = {"batch": BATCH, "rate": RATE}


def simulated(algorithm: ap.Algorithm, rounds: int = ROUNDS) -> ap.Run:
    found, _ = run(algorithm, islands(5), WIDTHS, ending=ap.Ending(rounds=rounds))
    return found


def first(client: Client, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield mini-batches of another task."""
    return islice(client.batches(steps, BATCH), steps)


def rounds_of(train: Callable[[str, Client, Tensor], Tensor], by_examples: bool = False, beta: float = 1.0) -> Tensor:
    """Rounds in which train(k, client, received model) makes the model that learner k sends."""
    net = Net(*WIDTHS)
    learners = clients(net, islands(5))
    w = net.initial()
    for _ in range(ROUNDS):
        local = [train(k, learners[k], w) for k in sorted(learners)]
        weights = [float(learners[k].n) if by_examples else 1.0 for k in sorted(learners)]
        found = mean(local, weights)
        w = found if beta == 1 else w.add(found - w, alpha=beta)
    return w


def in_pieces(net: Net, w: Tensor) -> list[Tensor]:
    """Weight and bias of every layer."""
    found: list[Tensor] = []
    for (n, m), layer in zip(net.shapes, net.layers, strict=True):
        found += [w[layer][: n * m], w[layer][n * m :]]
    return found


# ----------------------------------------------------------------------------------------------- models of their own


def test_ditto() -> None:
    lam, epochs, own_epochs = 0.5, 2, 3
    v: dict[str, Tensor] = {}

    def train(k: str, client: Client, received: Tensor) -> Tensor:
        w, v_k = received.clone(), v.get(k, received).clone()
        for number, (x, y) in enumerate(client.batches(epochs + own_epochs, BATCH)):
            if number < epochs * client.steps(BATCH):
                w = w.add(client.net.gradient(w, x, y), alpha=-RATE)
            else:
                g = client.net.gradient(v_k, x, y)
                g.add_(v_k - received, alpha=lam)
                v_k = v_k.add(g, alpha=-RATE)
        v[k] = v_k
        return w

    w = rounds_of(train)
    found = simulated(ap.ditto(lam, own_epochs, epochs=epochs, **LOCAL))
    assert torch.equal(found.model, w)
    assert found.personal.keys() == v.keys()
    assert all(torch.equal(found.personal[k], v[k]) for k in v)
    assert found.score == accuracy(v)


@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_pfedme(beta: float) -> None:
    lam, inner, steps, eta = 5.0, 3, 4, 0.02
    theta: dict[str, Tensor] = {}

    def train(k: str, client: Client, received: Tensor) -> Tensor:
        w, t = received.clone(), received.clone()
        for x, y in first(client, steps):
            for _ in range(inner):
                g = client.net.gradient(t, x, y)
                g.add_(t - w, alpha=lam)
                t = t.add(g, alpha=-0.1)
            w = w.add((w - t).mul_(lam), alpha=-eta)
        theta[k] = t
        return w

    w = rounds_of(train, beta=beta)
    found = simulated(ap.pfedme(lam, inner, 0.1, beta, 1.0, steps=steps, batch=BATCH, rate=eta))
    assert torch.equal(found.model, w)
    assert all(torch.equal(found.personal[k], theta[k]) for k in theta)
    assert found.score == accuracy(theta)


@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl(adaptive: bool) -> None:
    v: dict[str, Tensor] = {}
    shares: dict[str, float] = {}

    def train(k: str, client: Client, received: Tensor) -> Tensor:
        net, w = client.net, received.clone()
        own, share = v.get(k, received).clone(), shares.get(k, 0.25)
        for number, (x, y) in enumerate(client.batches(2, BATCH)):
            g = net.gradient((share * own).add_(w, alpha=1 - share), x, y)
            before = share
            if adaptive and number == 0:
                pieces = zip(*(in_pieces(net, one) for one in (own, w, g)), strict=True)
                share -= RATE * math.fsum(float(((a - b) * c).sum()) for a, b, c in pieces)
                share = min(1.0, max(0.0, share))
            own = own.add(g, alpha=-RATE * before)
            w = w.add(net.gradient(w, x, y), alpha=-RATE)
        v[k], shares[k] = own, share
        return w

    w = rounds_of(train)
    found = simulated(ap.apfl(0.25, adaptive, epochs=2, **LOCAL))
    assert torch.equal(found.model, w)
    models = {k: (shares[k] * v[k]).add_(w, alpha=1 - shares[k]) for k in v}
    assert all(torch.equal(found.personal[k], models[k]) for k in models)
    assert found.score == accuracy(models)
    assert (len({*shares.values()}) > 1) == adaptive


@pytest.mark.parametrize("hessian", ["none", "differences", "exact"])
def test_per_fedavg(hessian: Any) -> None:
    alpha, beta, steps = 0.05, 0.1, 5
    count = 2 if hessian == "none" else 3

    def train(k: str, client: Client, received: Tensor) -> Tensor:
        net, w = client.net, received.clone()
        for x, y in first(client, steps):
            parts = torch.arange(len(y)).tensor_split(count) if len(y) >= count else [torch.arange(len(y))] * count
            d, d1, d2 = parts[0], parts[1], parts[-1]
            g = net.gradient(w.add(net.gradient(w, x[d], y[d]), alpha=-alpha), x[d1], y[d1])
            if hessian == "differences":
                there, back = (net.gradient(w.add(g, alpha=sign), x[d2], y[d2]) for sign in (1e-3, -1e-3))
                g = g.add((there - back).div_(2e-3), alpha=-alpha)
            elif hessian == "exact":
                leaf = w.detach().requires_grad_()
                (slope,) = torch.autograd.grad(net.loss(leaf, x[d2], y[d2]), leaf, create_graph=True)
                g = g.add(torch.autograd.grad((slope * g).sum(), leaf)[0], alpha=-alpha)
            w = w.add(g, alpha=-beta)
        return w

    w = rounds_of(train)
    found = simulated(ap.per_fedavg(alpha, hessian, 2, 1.0, steps=steps, batch=BATCH, rate=beta))
    assert torch.equal(found.model, w)
    assert not found.personal
    assert found.score == accuracy(tuned(w, epochs=2, steps=2, rate=alpha, momentum=0.0))


def test_fedbabu_is_fine_tuned_before_it_is_scored() -> None:
    net = Net(*WIDTHS)
    learners, body = clients(net, islands(5)), net.span([0])
    w = net.initial()
    for t in range(ROUNDS):
        s_t = sorted(selected(list(learners), 3, t))
        local = [learners[k].train(w, 1, momentum=0.9, trains=body, **LOCAL)[body] for k in s_t]
        w = w.clone()
        w[body] = mean(local, [float(learners[k].n) for k in s_t])
    found = simulated(ap.fedbabu(tuning_epochs=2, fraction=0.6, **LOCAL))
    assert torch.equal(found.model, w)
    models = tuned(w, epochs=2, rate=RATE, momentum=0.9)
    assert found.score == accuracy(models) > accuracy(dict.fromkeys(models, w))
    untuned = run(
        ap.fedbabu(tuning_epochs=0, fraction=0.6, **LOCAL),
        islands(5),
        WIDTHS,
        ending=ap.Ending(rounds=ROUNDS),
        evaluation=ap.Evaluation(at="learners", mean="learners"),
    )[0]
    assert untuned.score == accuracy(dict.fromkeys(models, w))


def test_moon() -> None:
    mu, tau = 2.0, 0.5
    previous: dict[str, Tensor] = {}

    def train(k: str, client: Client, received: Tensor) -> Tensor:
        net, w, past = client.net, received.clone(), previous.get(k, received)
        for x, y in client.batches(2, BATCH):
            leaf = w.detach().requires_grad_()
            hidden, scores = net.outputs(leaf, x)
            z, z_glob, z_prev = relu(hidden), relu(net.outputs(received, x)[0]), relu(net.outputs(past, x)[0])
            s, p = (cosine_similarity(z, other, dim=1) / tau for other in (z_glob, z_prev))
            contrast = cross_entropy(torch.stack([s, p], dim=1), torch.zeros(len(y), dtype=torch.int64))
            (g,) = torch.autograd.grad(cross_entropy(scores, y) + mu * contrast, leaf)
            w = w.add(g, alpha=-RATE)
        previous[k] = w
        return w

    w = rounds_of(train, by_examples=True)
    found = simulated(ap.moon(mu, tau, epochs=2, momentum=0.0, options={}, **LOCAL))
    assert torch.equal(found.model, w)


# ---------------------------------------------------------------------------------------------------- how it is scored


def tuned(w: Tensor, epochs: int, rate: float, momentum: float, steps: int | None = None) -> dict[str, Tensor]:
    """The shared model after some training at each learner."""
    net, models = Net(*WIDTHS), {}
    for k, client in clients(net, islands(5)).items():
        own, u, left = w.clone(), torch.zeros(net.size), steps
        for epoch in range(epochs):
            order = torch.from_numpy(generator(derive(0, "tuning", k), "epoch", epoch).permutation(client.n))
            for b in order.split(BATCH)[:left]:
                u.mul_(momentum).add_(net.gradient(own, client.x[b], client.y[b]))
                own = own.add(u, alpha=-rate)
            left = None if left is None else max(0, left - client.steps(BATCH))
        models[k] = own
    return models


def accuracy(models: dict[str, Tensor]) -> float:
    """The learners' mean, each on its own test part."""
    net, data, scores = Net(*WIDTHS), islands(5), []
    for island in data.learners:
        predicted = net.outputs(models[island.name], data.x[island.test])[-1].argmax(1)
        scores.append(float((predicted == data.y[island.test]).double().mean()))
    return sum(scores) / len(scores)


def test_a_learner_without_a_task_is_scored_with_the_shared_model() -> None:
    found = simulated(ap.ditto(fraction=0.2, **LOCAL), rounds=1)
    (trained,) = found.personal
    models = dict.fromkeys((island.name for island in islands(5).learners), found.model)
    assert trained in models
    assert found.score == accuracy({**models, **found.personal})


def test_the_shared_model_can_be_scored_at_home() -> None:
    ends = {"ending": ap.Ending(rounds=2), "evaluation": ap.Evaluation(at="home")}
    scores = [
        run(algorithm, islands(5), WIDTHS, **ends)[0].score
        for algorithm in (ap.ditto(**LOCAL), ap.fedavg(equally=True, **LOCAL))
    ]
    assert scores[0] == scores[1]


# ------------------------------------------------------------------------------------------------------------ mixtures


def test_ditto_with_control_variates() -> None:
    """SCAFFOLD's shared model beside Ditto's own ones: the phases of the latter move no control variate."""
    shared = replace(ap.scaffold(fraction=1.0, **LOCAL), name="scaffold")
    both = replace(shared, planners=(*shared.planners, ap.PersonalPhase(0.5)), personal=ap.KeptModel())
    found = simulated(both)
    assert torch.equal(found.model, simulated(shared).model)
    assert len(found.personal) == 5


def test_fine_tuning_changes_no_shared_model() -> None:
    plain = ap.fedavg(**LOCAL)
    found, expected = simulated(replace(plain, personal=ap.FineTuned(1))), simulated(plain)
    assert torch.equal(found.model, expected.model)
    assert found.traffic["train up bytes"] == expected.traffic["train up bytes"]
    assert found.score == accuracy(tuned(found.model, epochs=1, rate=RATE, momentum=0.0))

"""FedAvgM, FedNova, q-FedAvg and FedBuff against straight-line programs."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

import archipel as ap
from tests.algorithms.straight import Client, Net, clients, fleet, islands, mean, run, selected

pytestmark = pytest.mark.slow

WIDTHS = (64, 32, 10)
EPOCHS = 2
LOCAL: dict[str, Any] = {"batch": 16, "rate": 0.1}


def simulated(algorithm: ap.Algorithm, rounds: int) -> Tensor:
    found, _ = run(algorithm, islands(5), WIDTHS, ending=ap.Ending(rounds=rounds))
    return found.model


def chosen(learners: dict[str, Client], t: int) -> list[Client]:
    return [learners[k] for k in sorted(selected(list(learners), 3, t))]


def test_fedavgm() -> None:
    net = Net(*WIDTHS)
    learners = clients(net, islands(5))
    w, v = net.initial(), torch.zeros(net.size)
    for t in range(5):
        s_t = chosen(learners, t)
        average = mean([client.train(w, EPOCHS, **LOCAL) for client in s_t], [float(client.n) for client in s_t])
        v = (v * 0.7).add(average - w)  # v <- beta v + delta
        w = w.add(v, alpha=0.5)
    assert torch.equal(simulated(ap.fedavgm(0.7, 0.5, 0.6, epochs=EPOCHS, **LOCAL), 5), w)


@pytest.mark.parametrize("local", [{}, {"momentum": 0.8}, {"proximal": 0.5}], ids=["sgd", "momentum", "proximal"])
def test_fednova(local: dict[str, float]) -> None:
    net = Net(*WIDTHS)
    learners = clients(net, islands(5))
    rho, decay = local.get("momentum", 0.0), 0.1 * local.get("proximal", 0.0)
    w = net.initial()
    steps = set()
    for t in range(4):
        s_t = chosen(learners, t)
        n = sum(client.n for client in s_t)
        a = []
        for client in s_t:
            tau = EPOCHS * client.steps(LOCAL["batch"])
            steps.add(tau)
            if rho:
                a.append((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho))
            else:
                a.append((1 - (1 - decay) ** tau) / decay if decay else float(tau))
        effective = sum(client.n / n * a_k for client, a_k in zip(s_t, a, strict=True))
        following = w.clone()
        for client, a_k in zip(s_t, a, strict=True):
            change = client.train(w, EPOCHS, **LOCAL, **local) - w
            following.add_(change, alpha=client.n / n * effective / a_k)
        w = following
    assert len(steps) > 1, "learners make different numbers of steps"
    mu = local.get("proximal", 0.0)
    settings: dict[str, Any] = {"momentum": rho} if rho else {}
    found = simulated(ap.fednova(mu, 0.6, epochs=EPOCHS, **LOCAL, **settings), 4)
    assert torch.equal(found, w)


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
def test_q_fedavg(q: float) -> None:
    net = Net(*WIDTHS)
    learners = clients(net, islands(5))
    w = net.initial()
    eta = LOCAL["rate"]  # 1 / L
    for t in range(4):
        delta, h = [], []
        for client in chosen(learners, t):
            each = torch.nn.functional.cross_entropy(net.outputs(w, client.x)[-1], client.y, reduction="none")
            f = float(each.double().mean())
            change = client.train(w, EPOCHS, **LOCAL) - w
            delta.append((f**q / eta, change))  # F^q L (w_k - w)
            h.append(q * f ** (q - 1) * float(change.double().square().sum()) / eta**2 + f**q / eta)
        w = w.clone()
        for factor, change in delta:
            w.add_(change, alpha=factor / math.fsum(h))
    found = simulated(ap.qfedavg(q, 0.6, epochs=EPOCHS, **LOCAL), 4)
    assert torch.equal(found, w)


SECONDS = {"00": 0.011, "01": 0.0371, "02": 0.0127, "03": 0.0871, "04": 0.0237, "05": 0.0193}
K, COMMITS, ETA = 3, 9, 0.8


def test_fedbuff() -> None:
    net = Net(*WIDTHS)
    learners = clients(net, islands(6))
    w, t = net.initial(), 0
    heap: list[tuple[float, int, str, Tensor, Tensor, int]] = []
    order = count()

    def client(now: float, k: str) -> None:
        y = learners[k].train(w, EPOCHS, **LOCAL)
        seconds = EPOCHS * learners[k].steps(LOCAL["batch"]) * SECONDS[k]
        heappush(heap, (now + seconds, next(order), k, y, w, t))

    for k in learners:
        client(0.0, k)
    staleness = []
    while t < COMMITS:
        buffer: list[tuple[str, Tensor, Tensor, int]] = []
        while len(buffer) < K:
            now, _, k, y, received, version = heappop(heap)
            buffer.append((k, y, received, version))
        buffer.sort()
        following = w.clone()
        for _, y, received, version in buffer:  # delta <- delta + s(tau) (y - w')
            staleness.append(t - version)
            following.add_(y - received, alpha=(1 + t - version) ** -0.5 / K)
        w, t = w.add(following - w, alpha=ETA), t + 1
        for k, *_ in buffer:
            client(now, k)
    assert max(staleness) > 1
    algorithm = ap.fedbuff(K, eta=ETA, epochs=EPOCHS, **LOCAL)
    seconds = fleet(SECONDS, dict.fromkeys(SECONDS, 0.0))
    found, _ = run(algorithm, islands(6), WIDTHS, fleet=seconds, ending=ap.Ending(commits=COMMITS))
    assert torch.equal(found.model, w)
    assert [s for _, commit in found.commits for s in commit.stale_versions] == staleness


def test_private_heads_in_a_buffer_and_freshness_in_fednova() -> None:
    """Mixtures of the parts with others'."""
    private = ap.Algorithm(
        "private", ap.Stream(3), weighting=ap.ByFreshness(), merge=ap.MeanChange(), planners=(ap.PrivateLayers("head"),)
    )
    fresh = ap.Algorithm(
        "fresh",
        ap.Stream(3),
        weighting=ap.Product(ap.ByExamples(), ap.ByFreshness("inv")),
        merge=ap.NormalisedChange(),
    )
    relay = ap.Algorithm("relay", ap.Relay(0.5, 2), merge=ap.NormalisedChange())
    for algorithm in (private, fresh, relay):
        data = ap.data.digits().split(6, classes=4, test="own")
        found = ap.simulate(algorithm, data, ending=ap.Ending(rounds=12))
        first, *_, last = (scores.metrics["loss"] for _, scores in found.scores)
        assert last < first
        assert not found.refusals

"""Fed2A: PLU, TVW and RCE alone, and Algorithm 1 that has them all, on a stream with a buffer of K updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import archipel as ap
from tests.algorithms.straight import Net, clients, fleet, islands, run

pytestmark = pytest.mark.slow

WIDTHS = (64, 32, 16, 10)
SHALLOW, DEEP = [0], [1, 2]
"""Without convolutions the layers behind the first are the deep ones."""
K, EPOCHS, ROUNDS = 3, 2, 9
LOCAL: dict[str, Any] = {"batch": 16, "rate": 0.1}
SECONDS = {"00": 0.011, "01": 0.0371, "02": 0.0127, "03": 0.0871, "04": 0.0237, "05": 0.0193}


@dataclass
class Received:
    """What client k uploads: w_k, t_k, n_k, and which of its layers."""

    k: str
    w: Tensor
    t: int
    n: int
    layers: list[int]


Weigh = Callable[[Net, Tensor, list[Received], int], list[list[float]]]
"""Network, global model, what was received, t -> for every received model a weight for every layer."""


def periodic_layers(period: int, last: int) -> Callable[[int], list[int]]:
    """PLU(R, P, D): the layers that are uploaded in round r (section 3.3.1); rounds count from 1."""

    def uploaded(r: int) -> list[int]:
        if r <= period:  # the first period uploads all layers
            return SHALLOW + DEEP
        in_period = (r - 1) % period + 1
        return SHALLOW + DEEP if in_period > period - last else SHALLOW

    return uploaded


def everything(r: int) -> list[int]:
    return SHALLOW + DEEP


def aggregated(net: Net, w: Tensor, buffer: list[Received], weights: list[list[float]]) -> tuple[Tensor, list[int]]:
    """Return the next model and the layers that changed (Algorithm 1, 11 to 18): each layer over those who sent it."""
    w = w.clone()
    changed = []
    for layer, place in enumerate(net.layers):
        sent = [i for i, received in enumerate(buffer) if layer in received.layers]
        if not sent:
            continue
        changed.append(layer)
        total = math.fsum(weights[i][layer] for i in sent)
        following = torch.zeros_like(w[place])
        for i in sent:
            following.add_(buffer[i].w[place], alpha=weights[i][layer] / total)
        w[place] = following
    return w, changed


def two_stages(
    weigh: Weigh,
    uploaded: Callable[[int], list[int]] = everything,
    max_wait: float = math.inf,
    by: str = "arrival",
) -> tuple[Tensor, list[dict[str, Any]], int]:
    """Section 3.2: clients train and upload on their own; the collaborator aggregates K updates as they come.

    The last model, what every aggregation did, and the numbers uploaded.
    """
    net = Net(*WIDTHS)
    learners = clients(net, islands(6))
    w, t = net.initial(), 0
    heap: list[tuple[float, int, Received | int]] = []
    counter = count()
    log: list[dict[str, Any]] = []
    buffer: list[Received] = []
    numbers = 0
    given: dict[str, Tensor] = {}
    """The model that each client has trained from."""

    def client(now: float, k: str) -> None:  # Algorithm 1, part 1
        w_k = learners[k].train(w, EPOCHS, **LOCAL)
        seconds = EPOCHS * learners[k].steps(LOCAL["batch"]) * SECONDS[k]
        given[k] = w
        heappush(heap, (now + seconds, next(counter), Received(k, w_k, t, learners[k].n, [])))

    for k in learners:
        client(0.0, k)
    while t < ROUNDS:  # Algorithm 1, part 2
        now, _, what = heappop(heap)
        waited = what == t  # the timer of this round; that of an older one says nothing
        if isinstance(what, Received):
            what.layers = uploaded(t + 1 if by == "arrival" else what.t + 1)
            for layer in set(SHALLOW + DEEP) - set(what.layers):  # of these the collaborator knows what it gave
                what.w[net.layers[layer]] = given[what.k][net.layers[layer]]
            numbers += sum(net.layers[layer].stop - net.layers[layer].start for layer in what.layers)
            buffer.append(what)
            if len(buffer) == 1 and max_wait < math.inf:
                heappush(heap, (now + max_wait, next(counter), t))
        if not buffer or (len(buffer) < K and not waited):  # 2: the trigger for a global aggregation
            continue
        buffer.sort(key=lambda received: received.k)
        weights = weigh(net, w, buffer, t)
        w, changed = aggregated(net, w, buffer, weights)
        contributors, ages = tuple(one.k for one in buffer), tuple(t - one.t for one in buffer)
        log.append(
            {"time": now, "learners": contributors, "staleness": ages, "layers": tuple(changed), "weights": weights}
        )
        t += 1
        buffer = []
        for k in contributors:  # the new model goes to the clients who have made contributions
            client(now, k)
    return w, log, numbers


def assert_same(algorithm: ap.Algorithm, expected: tuple[Tensor, list[dict[str, Any]], int]) -> ap.Run:
    w, log, numbers = expected
    found, _ = run(
        algorithm,
        islands(6),
        WIDTHS,
        fleet=fleet(SECONDS, dict.fromkeys(SECONDS, 0.002)),
        ending=ap.Ending(commits=ROUNDS),
    )
    commits = [commit for _, commit in found.commits]
    assert [time for time, _ in found.commits] == pytest.approx([entry["time"] for entry in log])
    assert [commit.learners for commit in commits] == [entry["learners"] for entry in log]
    assert [commit.stale_versions for commit in commits] == [entry["staleness"] for entry in log]
    assert [commit.layers for commit in commits] == [entry["layers"] for entry in log]
    for commit, entry in zip(commits, log, strict=True):  # the same up to a factor, which the mean takes out
        mine, theirs = np.array(entry["weights"]), np.array(commit.weights)
        assert theirs / theirs.sum(0) == pytest.approx(mine / mine.sum(0), rel=1e-9)
    assert found.traffic["train up bytes"] == 4 * numbers
    assert torch.equal(found.model, w)
    return found


# ---------------------------------------------------------------------------------------------------------- PLU


def by_examples(net: Net, w: Tensor, received: list[Received], t: int) -> list[list[float]]:
    return [[float(r.n)] * len(net.layers) for r in received]


@pytest.mark.parametrize("by", ["arrival", "hand-out"])
def test_plu(by: Any) -> None:
    expected = two_stages(by_examples, periodic_layers(period=3, last=1), by=by)
    found = assert_same(ap.plu(K, period=3, last=1, by=by, epochs=EPOCHS, **LOCAL), expected)
    whole = 4 * found.layout.size * sum(len(commit.learners) for _, commit in found.commits)
    assert found.traffic["train up bytes"] < whole
    layers = [commit.layers for _, commit in found.commits]
    assert layers[:3] == [(0, 1, 2)] * 3  # the first period
    assert (0,) in layers


# ---------------------------------------------------------------------------------------------------------- TVW

CURVES: dict[str, Callable[[int], float]] = {
    "exp": lambda s: (math.e / 2) ** -s,
    "inv": lambda s: 1 / (s + 1),
    "log": lambda s: 1 / (math.log(s + 1) + 1),
}


def time_weights(curve: str) -> Weigh:
    """Formula 4, with all its factors: TW_kt = n_k / n_t x f(t, k) / f(t)."""

    def weigh(net: Net, w: Tensor, received: list[Received], t: int) -> list[list[float]]:
        f = [CURVES[curve](t - r.t) for r in received]
        n_t = sum(r.n for r in received)
        tw = [r.n / n_t * f_k / sum(f) for r, f_k in zip(received, f, strict=True)]
        return [[tw_k / sum(tw)] * len(net.layers) for tw_k in tw]

    return weigh


@pytest.mark.parametrize("curve", list(CURVES))
def test_tvw(curve: Any) -> None:
    expected = two_stages(time_weights(curve))
    assert_same(ap.tvw(curve, K, epochs=EPOCHS, **LOCAL), expected)
    assert max(s for entry in expected[1] for s in entry["staleness"]) >= 2


def test_tvw_where_the_waiting_time_is_up_before_the_buffer_is_full() -> None:
    expected = two_stages(time_weights("inv"), max_wait=0.15)
    assert_same(ap.tvw("inv", K, max_wait=0.15, epochs=EPOCHS, **LOCAL), expected)
    assert {len(entry["learners"]) for entry in expected[1]} > {K}


# ---------------------------------------------------------------------------------------------------------- RCE


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Formula 7."""
    a, b = a - a.mean(), b - b.mean()
    return float(1 - (a * b).mean() / (math.sqrt((a * a).mean()) * math.sqrt((b * b).mean())))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Formula 8, a likeness as the paper writes it."""
    return float(a @ b) / (math.sqrt(a @ a) * math.sqrt(b @ b))


def euclidean(a: np.ndarray, b: np.ndarray) -> float:
    """Formula 9."""
    return math.sqrt(((a - b) ** 2).sum())


DISTANCES = {"correlation": correlation, "cosine": cosine, "euclidean": euclidean}


def consistency(distance: str) -> Weigh:
    data = islands(6)
    stimuli = data.x[data.stimuli]

    def upper_triangles(net: Net, w: Tensor) -> list[list[float]]:
        """u_l of every layer: the upper triangle of its RDM (formulas 5 and 6)."""
        layers = [v.double().numpy() for v in net.outputs(w, stimuli)]
        m = len(stimuli)
        return [[DISTANCES[distance](v[i], v[j]) for i in range(m) for j in range(i + 1, m)] for v in layers]

    def weigh(net: Net, w: Tensor, received: list[Received], t: int) -> list[list[float]]:
        community = upper_triangles(net, w)
        weights = []
        for r in received:
            local = upper_triangles(net, r.w)
            rho = [np.corrcoef(u_glo, u_loc)[0, 1] for u_glo, u_loc in zip(community, local, strict=True)]
            weights.append([float(value) ** 2 for value in rho])  # formula 10
        return weights

    return weigh


@pytest.mark.parametrize("distance", list(DISTANCES))
def test_rce(distance: Any) -> None:
    expected = two_stages(consistency(distance))
    assert_same(ap.rce(distance, K, epochs=EPOCHS, **LOCAL), expected)
    assert all(0 < rc <= 1 for entry in expected[1] for weight in entry["weights"] for rc in weight)


# --------------------------------------------------------------------------------------------- Fed2A, Algorithm 1


@pytest.mark.parametrize("by", ["arrival", "hand-out"])
@pytest.mark.parametrize("curve", ["inv", "exp"])
def test_fed2a(curve: Any, by: Any) -> None:
    def weigh(net: Net, w: Tensor, received: list[Received], t: int) -> list[list[float]]:
        tw = time_weights(curve)(net, w, received, t)  # 4
        rc = consistency("cosine")(net, w, received, t)  # 7
        return [[a * b for a, b in zip(*pair, strict=True)] for pair in zip(tw, rc, strict=True)]  # 8

    expected = two_stages(weigh, periodic_layers(period=3, last=1), by=by)
    found = assert_same(ap.fed2a(K, period=3, last=1, curve=curve, by=by, epochs=EPOCHS, **LOCAL), expected)
    sent = {task.layers for _, task in found.cycles}
    assert sent == {("fc1",), ("fc1", "fc2", "head")}
    mixed = [  # by hand-out some of a commit's updates hold deep layers and some do not; by arrival all do or none
        commit
        for _, commit in found.commits
        if len({task.layers for _, task in found.cycles if task.task in commit.tasks}) == 2
    ]
    assert bool(mixed) is (by == "hand-out")

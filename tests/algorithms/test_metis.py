"""Metis Algorithm 1: SyncDVW, AsyncFedAvg, AsyncDVW with a fixed and with an adaptive update frequency."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import archipel as ap
from tests.algorithms.straight import Client, Net, clients, fleet, islands, mean, micro_f1, run

pytestmark = pytest.mark.slow

WIDTHS = (64, 32, 10)
UF, BETA, ETA, GAMMA = 2, 32, 0.05, 0.75
LOCAL: dict[str, Any] = {"batch": BETA, "rate": ETA, "momentum": GAMMA}
SECONDS = {"00": 0.011, "01": 0.037, "02": 0.0123, "03": 0.0871, "04": 0.0237}
"""Seconds a training step: fast and slow learners, no two alike."""
QUICK = {"00": 0.0011, "01": 0.0037, "02": 0.0013, "03": 0.0081, "04": 0.0023}
SLOW = {"00": 0.11, "01": 0.17, "02": 0.53, "03": 0.29, "04": 0.13}
"""Seconds an evaluation step. Only learner 02 is judged without waiting for 02, so it overtakes others in line."""


def evaluate(learners: dict[str, Client], w: Tensor) -> float:
    """EVAL(w): confusion matrices of all learners added up, then equation 3."""
    cm = np.zeros((10, 10))
    for k in learners:
        cm = cm + learners[k].confusion(w)  # EVALUATOR_k(w)
    return micro_f1(cm)


def evaluation_seconds(learner: Client, evaluators: dict[str, float]) -> float:
    return -(-len(learner.vy) // BETA) * evaluators[learner.name]


# -------------------------------------------------------------------------------------------------- Synchronous


def test_sync_dvw() -> None:
    net, data = Net(*WIDTHS), islands(5)
    learners = clients(net, data, validation=0.05)
    w_c = net.initial()
    weights = []
    for _ in range(4):  # for t = 0 .. T-1
        w = [learners[k].train(w_c, UF, **LOCAL) for k in sorted(learners)]  # ClientOpt
        p = [evaluate(learners, w_k) for w_k in w]  # p_k = EVAL(w_k)
        w_c = mean(w, p)  # w_c = sum p_k / P w_k
        weights.append(p)
    found, _ = run(ap.sync_dvw(epochs=UF, **LOCAL), data, WIDTHS, ending=ap.Ending(rounds=4))
    assert torch.equal(found.model, w_c)
    assert [[spread[0] for spread in commit.weights] for _, commit in found.commits] == weights
    assert len(set(weights[-1])) > 1


# ------------------------------------------------------------------------------------------------- Asynchronous


@dataclass
class Community:
    """The caching tier: everybody's latest model in one sum, and the staleness of what was committed."""

    w: Tensor
    """w_c"""
    P: float = 0.0
    W: Tensor = field(init=False)
    p: dict[str, float] = field(default_factory=dict)
    latest: dict[str, Tensor] = field(default_factory=dict)
    version: int = 0
    steps: int = 0
    """S_c: steps in all committed updates."""
    log: list[tuple[float, str, float, int, int]] = field(default_factory=list)
    """(time, learner, p_k, staleness in versions, staleness in steps) of every commit."""

    def __post_init__(self) -> None:
        self.W = torch.zeros_like(self.w, dtype=torch.float64)

    def commit(self, now: float, k: str, w_k: Tensor, p_k: float, steps: int, sent: tuple[int, int]) -> None:
        self.log.append((now, k, p_k, self.version - sent[0], self.steps - sent[1] + steps))
        # P = P + p_k - p'_k, the difference first: means of 32-bit numbers by small fractions tie, and P's last bit
        # then decides how w_c is rounded
        self.P += p_k - self.p.get(k, 0.0)
        self.W.add_(w_k, alpha=p_k)  # W_c = W_c + p_k w_k - p'_k w'_k
        if k in self.latest:
            self.W.sub_(self.latest[k], alpha=self.p[k])
        self.w = (self.W / self.P).float()  # w_c = W_c / P
        self.p[k], self.latest[k] = p_k, w_k
        self.version += 1
        self.steps += steps

    @property
    def now(self) -> tuple[int, int]:
        return self.version, self.steps


def asynchronous(dvw: bool, commits: int, evaluators: dict[str, float]) -> Community:
    """The asynchronous half of Algorithm 1 with a fixed update frequency; requests are served first in, first out."""
    net = Net(*WIDTHS)
    learners = clients(net, islands(5), validation=0.05 if dvw else 0.0)
    community = Community(net.initial())
    heap: list[tuple[float, int, str, str]] = []
    counter = count()
    training: dict[str, tuple[Tensor, tuple[int, int]]] = {}
    line: list[str] = []  # requests, in order of arrival
    judged: dict[str, float] = {}

    def client_opt(now: float, k: str) -> None:
        training[k] = learners[k].train(community.w, UF, **LOCAL), community.now
        seconds = UF * learners[k].steps(BETA) * SECONDS[k]
        seconds += evaluation_seconds(learners[k], evaluators)  # its own opinion travels with its update
        heappush(heap, (now + seconds, next(counter), "requests", k))

    for k in learners:
        client_opt(0.0, k)
    while community.version < commits:
        now, _, what, k = heappop(heap)
        if what == "requests":
            line.append(k)
            others = [evaluation_seconds(learners[j], evaluators) for j in learners if j != k]
            heappush(heap, (now + (max(others) if dvw else 0.0), next(counter), "is judged", k))
            continue
        judged[k] = evaluate(learners, training[k][0]) if dvw else float(learners[k].n)
        while line and line[0] in judged and community.version < commits:
            k = line.pop(0)
            w_k, sent = training[k]
            community.commit(now, k, w_k, judged.pop(k), UF * learners[k].steps(BETA), sent)
            client_opt(now, k)  # reply w_c to client k
    return community


def assert_same(found: ap.Run, community: Community) -> None:
    """The same commits at the same times with the same weights and staleness, and the same model to the bit."""
    log = [
        (time, commit.learners[0], commit.weights[0][0], commit.stale_versions[0], commit.stale_steps[0])
        for time, commit in found.commits
    ]
    assert [entry[1:] for entry in log] == [entry[1:] for entry in community.log]
    assert [entry[0] for entry in log] == pytest.approx([entry[0] for entry in community.log])
    assert torch.equal(found.model, community.w)


def test_async_fedavg() -> None:
    expected = asynchronous(dvw=False, commits=25, evaluators=QUICK)
    found, _ = run(
        ap.async_fedavg(epochs=UF, **LOCAL),
        islands(5),
        WIDTHS,
        fleet=fleet(SECONDS, QUICK),
        ending=ap.Ending(commits=25),
    )
    assert_same(found, expected)
    assert {k for _, k, *_ in expected.log} == set(SECONDS)  # the slowest too
    assert max(stale for *_, stale, _ in expected.log) > 4


@pytest.mark.parametrize("evaluators", [QUICK, SLOW], ids=["quick evaluators", "requests wait in line"])
def test_async_dvw_with_a_fixed_update_frequency(evaluators: dict[str, float]) -> None:
    expected = asynchronous(dvw=True, commits=25, evaluators=evaluators)
    found, _ = run(
        ap.async_dvw(adaptive=False, epochs=UF, **LOCAL),
        islands(5),
        WIDTHS,
        fleet=fleet(SECONDS, evaluators),
        ending=ap.Ending(commits=25),
    )
    assert_same(found, expected)
    assert all(0 < p <= 1 for _, _, p, *_ in expected.log)


@pytest.mark.parametrize("own", [False, True], ids=["a fresh update has 0", "as Xie counts: 1"])
def test_fedasync_with_which_it_compares(own: bool) -> None:
    """Xie et al.: w <- (1 - a) w + a w_k, a = alpha (s + 1)^-1/2, and rho / 2 ||w - w'||^2 in the local loss."""
    alpha, rho = 0.6, 0.005
    net, data = Net(*WIDTHS), islands(5)
    learners = clients(net, data)
    w, version = net.initial(), 0
    heap: list[Any]
    counter, heap, log = count(), [], []

    def send(now: float, k: str) -> None:
        w_k = learners[k].train(w, UF, proximal=rho, **LOCAL)
        heappush(heap, (now + UF * learners[k].steps(BETA) * SECONDS[k], next(counter), k, w_k, version))

    for k in learners:
        send(0.0, k)
    while version < 20:
        now, _, k, w_k, sent = heappop(heap)
        a = alpha * (version - sent + own + 1) ** -0.5
        w = (w * (1 - a)).add(w_k, alpha=a)
        log.append((k, version - sent))
        version += 1
        send(now, k)
    found, _ = run(
        ap.fedasync(alpha, epochs=UF, counts_own_commit=own, **LOCAL),
        data,
        WIDTHS,
        fleet=fleet(SECONDS, QUICK),
        ending=ap.Ending(commits=20),
    )
    assert torch.equal(found.model, w)
    assert [(commit.learners[0], commit.stale_versions[0]) for _, commit in found.commits] == log


# ------------------------------------------------------------------- Asynchronous, adaptive (section V, C1 to C3)


@dataclass
class Cycle:
    """A learner in its validation cycle."""

    epochs: Iterator[Tensor]
    sent: tuple[int, int]
    losses: list[float]
    w: Tensor
    """The model after its last whole epoch."""
    ended: int = 0
    began: float = 0.0
    """When its running epoch began."""
    recalled: bool = False
    """C3 holds, and it is asked to report when its running epoch ends."""
    requesting: bool = False


class Adaptive:
    """A run with adaptive update frequency; `ended` has every cycle's learner, its losses and what ended it."""

    def __init__(
        self, vc_loss: dict[str, float], vc_tomb: dict[str, int], recall_after: int, evaluators: dict[str, float]
    ) -> None:
        self.vc_loss, self.vc_tomb, self.recall_after, self.evaluators = vc_loss, vc_tomb, recall_after, evaluators
        net = Net(*WIDTHS)
        self.learners = clients(net, islands(5), validation=0.05)
        self.community = Community(net.initial())
        self.heap: list[tuple[float, int, str, str, int]] = []
        self.counter = count()
        self.cycles: dict[str, Cycle] = {}
        self.staleness: dict[str, list[int]] = defaultdict(list)  # S_i^vc of the cycles so far
        self.line: list[str] = []
        self.judged: dict[str, float] = {}
        self.ended: list[tuple[str, list[float], str]] = []

    def run(self, commits: int) -> None:
        for k in self.learners:
            self.client_opt(0.0, k)
        while self.community.version < commits:
            now, _, what, k, task = heappop(self.heap)
            if what == "ends an epoch":
                self.end_epoch(now, k, task)
            elif what == "requests":
                self.line.append(k)
                others = [self.evaluation_seconds(j) for j in self.learners if j != k]
                heappush(self.heap, (now + max(others), next(self.counter), "is judged", k, 0))
            else:
                self.judged[k] = evaluate(self.learners, self.cycles[k].w)
                while self.line and self.line[0] in self.judged and self.community.version < commits:
                    self.commit(now, self.line.pop(0))

    def evaluation_seconds(self, k: str) -> float:
        return evaluation_seconds(self.learners[k], self.evaluators)

    def client_opt(self, now: float, k: str) -> None:
        w, learner = self.community.w, self.learners[k]
        self.cycles[k] = Cycle(learner.epochs(w, **LOCAL), self.community.now, [learner.validation_loss(w)], w)
        self.another_epoch(now + self.evaluation_seconds(k), k)  # after an evaluation of the model that it received

    def another_epoch(self, now: float, k: str) -> None:
        seconds = self.learners[k].steps(BETA) * SECONDS[k] + self.evaluation_seconds(k)
        heappush(self.heap, (now + seconds, next(self.counter), "ends an epoch", k, self.learners[k].tasks))

    def end_epoch(self, now: float, k: str, task: int) -> None:
        if k not in self.cycles or self.cycles[k].requesting or task != self.learners[k].tasks:
            return  # it was recalled when this epoch was to begin
        cycle = self.cycles[k]
        cycle.w = next(cycle.epochs)
        cycle.ended += 1
        cycle.losses.append(self.learners[k].validation_loss(cycle.w))
        vpct = [100 * (b - a) / a for a, b in pairwise(cycle.losses)]
        failures = [v for v in vpct if v >= 0 or abs(v) <= self.vc_loss[k]]  # (C1) or (C2)
        if len(failures) > self.vc_tomb[k]:
            self.request(now, k, "C1" if vpct[-1] >= 0 else "C2")
        elif cycle.recalled:
            self.request(now, k, "C3")
        else:
            cycle.began = now
            self.another_epoch(now, k)
            self.check_c3(now)

    def request(self, now: float, k: str, why: str) -> None:
        self.cycles[k].requesting = True
        self.ended.append((k, self.cycles[k].losses, why))
        heappush(self.heap, (now + self.evaluation_seconds(k), next(self.counter), "requests", k, 0))

    def check_c3(self, now: float) -> None:
        for k, cycle in self.cycles.items():
            if cycle.requesting or cycle.recalled or len(self.staleness[k]) < self.recall_after:
                continue
            s_k = self.community.steps - cycle.sent[1] + cycle.ended * self.learners[k].steps(BETA)
            if s_k > statistics.median(self.staleness[k]):  # (C3)
                cycle.recalled = True
                if cycle.ended and cycle.began == now:  # Alg. 1 tests after an epoch's batches
                    self.request(now, k, "C3")

    def commit(self, now: float, k: str) -> None:
        cycle = self.cycles.pop(k)
        steps = cycle.ended * self.learners[k].steps(BETA)
        self.community.commit(now, k, cycle.w, self.judged.pop(k), steps, cycle.sent)
        self.staleness[k].append(self.community.log[-1][-1])
        self.check_c3(now)
        self.client_opt(now, k)  # reply w_c to client k


def adaptive(
    commits: int, vc_loss: dict[str, float], vc_tomb: dict[str, int], recall_after: int, evaluators: dict[str, float]
) -> tuple[Community, list[tuple[str, list[float], str]]]:
    """Return the community, and of every cycle the learner, its losses and the condition that ended it."""
    run = Adaptive(vc_loss, vc_tomb, recall_after, evaluators)
    run.run(commits)
    return run.community, run.ended


@pytest.mark.parametrize("evaluators", [QUICK, SLOW], ids=["quick evaluators", "requests wait in line"])
def test_async_dvw_with_an_adaptive_update_frequency(evaluators: dict[str, float]) -> None:
    loss = {"00": 2.0, "01": 5.0, "02": 1.0, "03": 5.0, "04": 4.0}
    tombstones = {"00": 1, "01": 1, "02": 2, "03": 0, "04": 1}
    expected, told = adaptive(35, loss, tombstones, recall_after=2, evaluators=evaluators)
    found, _ = run(
        ap.async_dvw(loss=loss, tombstones=tombstones, at_most=50, recall_after=2, **LOCAL),
        islands(5),
        WIDTHS,
        fleet=fleet(SECONDS, evaluators),
        ending=ap.Ending(commits=35),
    )
    assert_same(found, expected)
    assert {why for *_, why in told} == {"C1", "C2", "C3"}
    assert len({len(losses) for _, losses, _ in told}) > 5  # cycles of many lengths
    for k in SECONDS:
        theirs = [cycle for _, cycle in found.cycles if cycle.learner == k]
        mine = [(losses, why) for name, losses, why in told if name == k]
        for cycle, (losses, why) in zip(theirs, mine, strict=False):  # the last may not have arrived by the end
            assert cycle.losses == pytest.approx(losses, rel=1e-6)
            assert cycle.recalled or why != "C3"

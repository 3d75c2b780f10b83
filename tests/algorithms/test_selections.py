"""Power-of-choice, Oort and TiFL against straight-line programs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import archipel as ap
from archipel.core.randomness import generator
from tests.algorithms.straight import SEED, Client, Net, clients, islands, mean, run

pytestmark = pytest.mark.slow

WIDTHS = (64, 32, 10)
EPOCHS, ROUNDS, M = 2, 9, 3
LOCAL: dict[str, Any] = {"batch": 16, "rate": 0.1}
Losses = dict[str, tuple[float, float]]
"""Of each learner that has trained: the mean loss and the mean squared loss of the model it received."""
Choose = Callable[[dict[str, Client], Losses, dict[str, int], int], list[str]]


def federated(choose: Choose, equally: bool) -> tuple[Tensor, list[list[str]]]:
    net = Net(*WIDTHS)
    learners = clients(net, islands(6))
    w = net.initial()
    losses: Losses = {}
    last: dict[str, int] = {}
    rounds = []
    for t in range(1, ROUNDS + 1):
        s_t = sorted(choose(learners, losses, last, t))
        local = [learners[k].train(w, EPOCHS, **LOCAL) for k in s_t]
        for k in s_t:
            each = cross_entropy(net.outputs(w, learners[k].x)[-1], learners[k].y, reduction="none").double()
            losses[k], last[k] = (float(each.mean()), float(each.square().mean())), t
        w = mean(local, [1.0 if equally else float(learners[k].n) for k in s_t])
        rounds.append(s_t)
    return w, rounds


def raced(rng: np.random.Generator, chances: list[float]) -> list[int]:
    """All of them, drawn without replacement in proportion: an exponential clock each."""
    clocks = [time / chance for time, chance in zip(rng.exponential(size=len(chances)), chances, strict=True)]
    return sorted(range(len(chances)), key=clocks.__getitem__)


def compare(algorithm: ap.Algorithm, choose: Choose, equally: bool = False, **settings: object) -> list[list[str]]:
    w, rounds = federated(choose, equally)
    found, _ = run(algorithm, islands(6), WIDTHS, ending=ap.Ending(rounds=ROUNDS), **settings)
    assert [list(commit.learners) for _, commit in found.commits] == rounds
    assert torch.equal(found.model, w)
    return rounds


def test_power_of_choice() -> None:
    def choose(learners: dict[str, Client], losses: Losses, last: dict[str, int], t: int) -> list[str]:
        names = sorted(learners)
        order = raced(generator(SEED, "selection", f"round {t - 1}"), [float(learners[k].n) for k in names])
        candidates = [names[i] for i in order[:4]]
        unknown = [k for k in candidates if k not in losses]
        known = sorted((k for k in candidates if k in losses), key=lambda k: losses[k][0], reverse=True)
        return (unknown + known)[:M]

    rounds = compare(ap.power_of_choice(4, 0.5, epochs=EPOCHS, **LOCAL), choose, equally=True)
    assert len({k for s_t in rounds for k in s_t}) > M


def test_oort() -> None:
    def choose(learners: dict[str, Client], losses: Losses, last: dict[str, int], t: int) -> list[str]:
        rng = generator(SEED, "selection", f"round {t - 1}")
        names = sorted(learners)
        explored, unexplored = [k for k in names if k in losses], [k for k in names if k not in losses]
        epsilon = max(0.2, 0.7 * 0.9 ** (t - 1))
        new = max(min(len(unexplored), round(epsilon * M)), M - len(explored))
        chosen = [unexplored[i] for i in rng.permutation(len(unexplored))[:new]]
        utility = {
            k: learners[k].n * math.sqrt(losses[k][1]) + math.sqrt(0.1 * math.log(t) / last[k]) for k in explored
        }
        if M - new:
            bar = 0.6 * sorted(utility.values(), reverse=True)[M - new - 1]
            pool = [k for k in explored if utility[k] >= bar]
            chosen += [pool[i] for i in raced(rng, [utility[k] for k in pool])[: M - new]]
        return chosen

    rounds = compare(ap.oort(0.7, 0.9, 0.2, 0.6, 0.5, epochs=EPOCHS, **LOCAL), choose)
    assert len({tuple(s_t) for s_t in rounds}) > 2


def test_tifl() -> None:
    fleet = ap.Fleet(ap.Group("fast", 4), ap.Group("slow", 2, train_seconds=0.1))
    assigned = fleet.assign(islands(6).sizes())
    groups = {name: fleet.groups[place] for name, place in zip(islands(6).rows.names, assigned, strict=True)}
    tiers = {tier: sorted(k for k in groups if groups[k].name == tier) for tier in ("fast", "slow")}
    used = dict.fromkeys(tiers, 0)

    def choose(learners: dict[str, Client], losses: Losses, last: dict[str, int], t: int) -> list[str]:
        rng = generator(SEED, "selection", f"round {t - 1}")
        guess = sum(loss for loss, _ in losses.values()) / len(losses) if losses else 1.0
        chances = {
            tier: sum(losses[k][0] if k in losses else guess for k in names) / len(names)
            for tier, names in tiers.items()
        }
        left = [tier for tier in tiers if used[tier] < 5] or list(tiers)
        clocks = dict(zip(tiers, rng.exponential(size=2), strict=True))
        tier = min(left, key=lambda tier: clocks[tier] / chances[tier])
        used[tier] += 1
        return [tiers[tier][i] for i in rng.permutation(len(tiers[tier]))[:M]]

    rounds = compare(ap.tifl(None, 5, 0.5, epochs=EPOCHS, **LOCAL), choose, fleet=fleet)
    assert {len(s_t) for s_t in rounds} == {2, 3}, "both tiers were chosen"

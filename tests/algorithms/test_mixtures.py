"""Mixtures that no paper tried. Where a paper's program can be mixed by hand it is, else what a run did is recomputed
from the models that came and went."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import archipel as ap
from archipel.core.records import Committed, Handed, Returned
from archipel.core.types import Command, Event, Keep, Trained
from archipel.simulation.simulator import Simulator
from tests.algorithms.straight import Net, clients, fleet, islands, mean, micro_f1, run, selected

pytestmark = pytest.mark.slow

LOCAL: dict[str, Any] = {"batch": 16, "rate": 0.1}
SECONDS = {"00": 0.011, "01": 0.0371, "02": 0.0127, "03": 0.0871, "04": 0.0237, "05": 0.0193}
QUICK = {"00": 0.0011, "01": 0.0037, "02": 0.0013, "03": 0.0081, "04": 0.0023, "05": 0.0019}


class Watch:
    """An observer that keeps the models that come and the versions that are made."""

    def __init__(self) -> None:
        self.trained: dict[int, Tensor] = {}
        self.heads: dict[int, dict[str, Tensor]] = {}
        """Of every task, the private layers of all learners when it came back."""
        self.versions: dict[int, Tensor] = {}

    def before(self, simulator: Simulator, event: Event) -> None:
        if isinstance(event, Trained):
            self.trained[event.task] = simulator.controller.models.read(event.model).clone()
            private = {k: site.learner.private for k, site in simulator.sites.items()}
            self.heads[event.task] = {k: layers["head"].clone() for k, layers in private.items() if "head" in layers}

    def after(self, simulator: Simulator, commands: Sequence[Command]) -> Iterable[Any]:
        if any(isinstance(command, Keep) and isinstance(command.record, Committed) for command in commands):
            state = simulator.controller.state
            self.versions[state.version] = simulator.controller.models.read(state.model.name).clone()
        return ()

    def save(self) -> dict[str, Any]:
        return {}

    def load(self, saved: dict[str, Any]) -> None: ...


# ------------------------------------------------------------------------------------------ Relay with DVW weights


def test_relay_with_weights_by_distributed_validation() -> None:
    """RADFed's travelling models, each weighed by what all learners think of it."""
    widths, data, watch = (64, 32, 10), islands(6), Watch()
    algorithm = ap.Algorithm(
        "relay_dvw",
        protocol=ap.Relay(0.5, hops=3),
        weighting=ap.ByDistributedValidation(),
        plan=ap.Plan(**LOCAL),
    )
    found, _ = run(algorithm, data, widths, watch, ending=ap.Ending(rounds=12))
    learners = clients(Net(*widths), data, validation=0.05)
    assert len(found.commits) == 4
    for _, commit in found.commits:
        travelled = [watch.trained[task] for task in commit.tasks]
        weights = [micro_f1(np.sum([learner.confusion(w) for learner in learners.values()], axis=0)) for w in travelled]
        assert [spread[0] for spread in commit.weights] == weights
        assert all(0 < weight <= 1 for weight in weights)
        assert torch.equal(watch.versions[commit.version], mean(travelled, weights))
        assert [len(path) for path in commit.paths] == [3, 3, 3]
    assert len({weight[0] for _, commit in found.commits for weight in commit.weights}) > 4  # and they differ


# ------------------------------------------------------------------------------ private heads, DVW and asynchrony


def test_private_heads_under_asynchrony() -> None:
    """HDAFL's heads in Metis' community: everybody judges the features of an update under a head of their own."""
    widths, data, watch = (64, 32, 10), islands(6), Watch()
    algorithm = ap.Algorithm(
        "async_heads",
        protocol=ap.Stream(),
        weighting=ap.ByDistributedValidation(),
        merge=ap.Community(),
        planners=(ap.PrivateLayers("head"),),
        plan=ap.Plan(epochs=2, **LOCAL),
    )
    found, simulator = run(algorithm, data, widths, watch, fleet=fleet(SECONDS, QUICK), ending=ap.Ending(commits=30))
    net = Net(*widths)
    features, head = net.layers
    first = net.initial()
    learners = clients(net, data, validation=0.05)

    def judged(task: int) -> float:
        cm = np.zeros((10, 10))
        for k, learner in learners.items():
            mine = watch.trained[task].clone()
            mine[head] = watch.heads[task].get(k, first[head])  # who has not trained yet has the first one
            cm = cm + learner.confusion(mine)
        return micro_f1(cm)

    total, P = torch.zeros(features.stop, dtype=torch.float64), 0.0
    latest: dict[str, tuple[Tensor, float]] = {}
    for _, commit in found.commits:
        ((k, task),) = zip(commit.learners, commit.tasks, strict=True)
        p = judged(task)
        assert commit.weights[0][0] == p
        new = watch.trained[task][features]
        total.add_(new, alpha=p)
        if k in latest:
            total.sub_(latest[k][0], alpha=latest[k][1])
        P += p - (latest[k][1] if k in latest else 0.0)
        latest[k] = new, p
        assert torch.equal(watch.versions[commit.version][features], (total / P).float())
        assert torch.equal(watch.versions[commit.version][head], first[head])  # nobody ever sent one
        assert commit.layers == (0,)

    kept = {k: site.learner.private["head"] for k, site in simulator.sites.items()}
    assert len({tuple(own.tolist()) for own in kept.values()}) == 6
    moved = found.traffic
    assert moved["train up bytes"] == 4 * features.stop * moved["train up models"]
    first_tasks = len({task.learner for _, task in found.cycles})
    assert moved["train down bytes"] == 4 * (
        features.stop * moved["train down models"] + first_tasks * len(first[head])
    )
    assert moved["evaluate down bytes"] == 4 * features.stop * moved["evaluate down models"]


# ---------------------------------------------------------------------------------------- private heads in a Relay


def test_private_heads_in_a_relay() -> None:
    """RADFed's and HDAFL's programs in one: features travel, every learner puts its own head on them."""
    widths, hops, rounds = (64, 32, 10), 3, 3
    net, data = Net(*widths), islands(6)
    learners = clients(net, data)
    features, head = net.layers
    w = net.initial()
    heads = dict.fromkeys(learners, w[head])  # ClientInit
    for t in range(rounds):
        models = [w] * 3
        for s in range(hops):
            for i, k in enumerate(selected(list(learners), 3, t * hops + s)):
                trained = learners[k].train(torch.cat([models[i][features], heads[k]]), 1, **LOCAL)
                models[i], heads[k] = torch.cat([trained[features], w[head]]), trained[head]
        w = torch.cat([mean([model[features] for model in models], [1.0] * 3), w[head]])
    algorithm = ap.Algorithm(
        "relay_heads",
        protocol=ap.Relay(0.5, hops),
        weighting=ap.Equally(),
        planners=(ap.PrivateLayers("head"),),
        plan=ap.Plan(**LOCAL),
    )
    found, simulator = run(algorithm, data, widths, ending=ap.Ending(rounds=hops * rounds))
    assert torch.equal(found.model, w)
    for k, site in simulator.sites.items():
        assert torch.equal(site.learner.private["head"], heads[k])
    assert found.traffic["train up bytes"] == 4 * features.stop * found.traffic["train up models"]


# -------------------------------------------------------------------------------------- control variates with DVW


def test_control_variates_with_weights_by_distributed_validation() -> None:
    """SCAFFOLD's learners, weighed by what all of them think of an update; weights do not concern the variates."""
    widths, data, rounds = (64, 32, 10), islands(5), 4
    net = Net(*widths)
    learners = clients(net, data, validation=0.05)
    x, c = net.initial(), torch.zeros(net.size)
    c_i = {k: torch.zeros(net.size) for k in learners}
    weights: list[float] = []
    for _ in range(rounds):
        shifts = {k: c - c_i[k] for k in learners}
        y = {k: learners[k].train(x, 2, shift=shifts[k], **LOCAL) for k in sorted(learners)}
        c = c.clone()
        for k, y_k in y.items():
            plus = (y_k - x) / -(LOCAL["rate"] * 2 * learners[k].steps(LOCAL["batch"])) - shifts[k]
            c.add_(plus - c_i[k], alpha=1 / len(y))
            c_i[k] = plus
        opinions = [
            micro_f1(sum((k.confusion(y_k) for k in learners.values()), np.zeros((10, 10)))) for y_k in y.values()
        ]
        weights += opinions
        x = mean(list(y.values()), opinions)
    algorithm = ap.Algorithm(
        "scaffold_dvw",
        weighting=ap.ByDistributedValidation(),
        planners=(ap.ControlVariates(),),
        plan=ap.Plan(epochs=2, **LOCAL),
    )
    found, _ = run(algorithm, data, widths, ending=ap.Ending(rounds=rounds))
    assert torch.equal(found.model, x)
    assert [spread[0] for _, commit in found.commits for spread in commit.weights] == weights
    assert len({*weights}) > 4


# ------------------------------------------------------------------------------------- FedBuff and FedNova in a stream


def streamed(algorithm: ap.Algorithm) -> tuple[ap.Run, Watch, list[list[tuple[Tensor, int, int, float]]]]:
    """A run of a stream, and of each commit its updates: change, steps, staleness and weight, by learner."""
    watch, net = Watch(), Net(64, 32, 10)
    watch.versions[0] = net.initial()
    seconds = fleet(SECONDS, QUICK)
    found, _ = run(algorithm, islands(6), (64, 32, 10), watch, fleet=seconds, ending=ap.Ending(commits=8))
    began = {task.task: task.version for _, task in found.of(Handed)}
    steps = {task.task: task.steps for _, task in found.of(Returned)}
    commits = [
        [
            (
                watch.trained[task] - watch.versions[began[task]],
                steps[task],
                commit.version - 1 - began[task],
                spread[0],
            )
            for task, spread in zip(commit.tasks, commit.weights, strict=True)
        ]
        for _, commit in found.commits
    ]
    assert any(staleness > 0 for updates in commits for _, _, staleness, _ in updates), "nothing was stale"
    return found, watch, commits


def test_private_heads_under_fedbuff() -> None:
    net = Net(64, 32, 10)
    features, head = net.layers
    algorithm = replace(ap.fedbuff(3, **LOCAL), name="private heads", planners=(ap.PrivateLayers("head"),))
    found, watch, commits = streamed(algorithm)
    for version, updates in enumerate(commits, 1):
        w = watch.versions[version - 1].clone()
        for change, _, staleness, weight in updates:
            assert weight == (1 + staleness) ** -0.5
            w[features].add_(change[features], alpha=weight / 3)
        assert torch.equal(watch.versions[version], w)
    assert torch.equal(found.model[head], net.initial()[head])
    assert len(found.private) == 6
    assert set(found.layers["train up"]) == {"fc1"}


def test_freshness_in_fednova() -> None:
    algorithm = replace(
        ap.fednova(**LOCAL),
        name="fresh",
        protocol=ap.Stream(3),
        weighting=ap.Product(ap.ByExamples(), ap.ByFreshness("inv")),
    )
    found, watch, commits = streamed(algorithm)
    sizes = {learner.name: learner.examples for learner in found.participants}
    for (_, commit), updates in zip(found.commits, commits, strict=True):
        expected = [sizes[k] / (1 + u[2]) for k, u in zip(commit.learners, updates, strict=True)]
        assert [weight for *_, weight in updates] == pytest.approx(expected)
        total = math.fsum(weight for *_, weight in updates)
        tau = math.fsum(weight / total * steps for _, steps, _, weight in updates)
        w = watch.versions[commit.version - 1].clone()
        for change, steps, _, weight in updates:
            w.add_(change, alpha=weight / total * tau / steps)
        assert torch.equal(watch.versions[commit.version], w)


def test_a_relay_with_a_dynamic_regulariser_is_refused() -> None:
    with pytest.raises(ValueError, match=r"under Relay a model moves at several learners\. Use Rounds\(\.\.\.\)"):
        replace(ap.radfed(), merge=ap.DynamicMean(), planners=(ap.DynamicRegulariser(0.1),))


# ---------------------------------------------------------------------------------- D&C with PLU and Adam's server


def test_divide_and_conquer_with_periodic_layers_and_a_server_that_remembers() -> None:
    """A round sends what both planners let through; layers that stay at home do not move Adam's memory either."""
    widths, rounds = (64, 32, 24, 10), 9
    rate, eta, tau = 0.2, 0.05, 1e-3
    net, data = Net(*widths), islands(5)
    learners = clients(net, data)
    w = net.initial()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    sent = []
    for t in range(rounds):
        # D&C after a pre-pass of 2: features fc1 and fc2 in turn with the head
        if t < 2:
            trains, epochs, r = {0, 1, 2}, 2, rate
        elif t % 2 == 0:
            trains, epochs, r = {0, 1}, 2, rate
        else:
            trains, epochs, r = {2}, 1, rate / 2
        # PLU(R, 3, 1): fc2 and head in the first period and then in every third round only
        uploads = {0, 1, 2} if t < 3 or t % 3 == 2 else {0}
        w_k = [learners[k].train(w, epochs, batch=16, rate=r, trains=net.span(sorted(trains))) for k in learners]
        sent.append(tuple(sorted(trains & uploads)))
        w = w.clone()
        for place in (net.layers[layer] for layer in sent[-1]):
            delta = mean([model[place] for model in w_k], [1.0] * len(w_k)) - w[place]
            m[place] = (m[place] * 0.9).add(delta, alpha=1 - 0.9)
            v[place] = (v[place] * 0.99).add(delta * delta, alpha=1 - 0.99)
            w[place] = w[place].addcdiv(m[place], v[place].sqrt() + tau, value=eta)
    algorithm = ap.Algorithm(
        "dc_plu_adam",
        protocol=ap.Rounds(),
        weighting=ap.Equally(),
        server=ap.Adam(eta, tau=tau),
        planners=(
            ap.PeriodicLayers(3, 1, deep=("fc2", "head")),
            ap.DivideAndConquer(2, split=2, epochs=2, tuning_epochs=1),
        ),
        plan=ap.Plan(batch=16, rate=rate),
    )
    found, _ = run(algorithm, data, widths, ending=ap.Ending(rounds=rounds))
    assert [commit.layers for _, commit in found.commits] == sent
    assert sent == [(0, 1, 2), (0, 1, 2), (0, 1), (), (0,), (2,), (0,), (), (0, 1)]
    assert torch.equal(found.model, w)
    up = [0] + [commit.traffic["train up bytes"] for _, commit in found.commits]
    sizes = [place.stop - place.start for place in net.layers]
    assert [after - before for before, after in pairwise(up)] == [
        len(learners) * 4 * sum(sizes[layer] for layer in layers) for layers in sent
    ]


# ------------------------------------------------------------------------------------------------ a law of them all

LOOKED_AT = {
    "rounds": (ap.fedavg(0.5, epochs=1, **LOCAL), 0.0),
    "a stream for all": (ap.fedasync(epochs=1, **LOCAL), 0.0),
    "a stream that draws": (ap.fedasync(concurrency=2, epochs=1, **LOCAL), 0.0),
    "drawn evaluators": (ap.sync_dvw(evaluators=2, epochs=1, batch=16), 0.0),
    "lost tasks": (ap.fedavg(epochs=1, **LOCAL), 0.3),
}
"""Algorithms, and the share of tasks that is lost."""


@pytest.mark.parametrize("name", list(LOOKED_AT))
def test_how_often_a_model_is_scored_does_not_change_it(name: str) -> None:
    algorithm, loss = LOOKED_AT[name]
    models = [
        run(
            algorithm,
            islands(6),
            (64, 10),
            fleet=fleet(SECONDS, QUICK, loss),
            ending=ap.Ending(commits=8),
            evaluation=ap.Evaluation(every=every),
        )[0].model
        for every in (1, 5)
    ]
    assert torch.equal(*models)
